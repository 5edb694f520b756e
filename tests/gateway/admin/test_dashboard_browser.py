"""The dashboard in a real Chromium without a screen: signing in, live numbers, both themes, the keyboard."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from support.gateway.admin_harness import Admin, admin_in_thread
from support.gateway.fake_control import FakeControl
from support.waiting import wait_until
from trimtab.domain.planning import Evidence
from trimtab.domain.policy import Policy
from trimtab.domain.view import Plan, empty_plan
from trimtab.gateway.decide.pool import ActiveCandidate
from trimtab.gateway.model import Health
from trimtab.policies.load_aware.cost_index import CostIndex
from trimtab.policies.load_aware.sampled_completion import SampledCompletion

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.xdist_group("dashboard-browser"),  # one browser for all
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None or DRIVER is None, reason="needs chromium and chromedriver"),
]
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="module")
def admin() -> Iterator[Admin]:
    with admin_in_thread(FakeControl(100, lived_s=35)) as opened:
        yield opened


@pytest.fixture(scope="module")
def chromium(admin: Admin, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One browser."""
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    try:
        yield driver
    finally:
        driver.quit()


@pytest.fixture
def browser(chromium: Any, admin: Admin) -> Any:
    """The dashboard, freshly loaded; signed in by a link where a test signed out, or none came before."""
    size(chromium, 1280)
    chromium.get(f"{admin.base}/")
    if chromium.current_url.endswith("/login"):
        chromium.get(f"{admin.base}/login?token={admin.auth.make_link_token()}")
    wait_until(lambda: text(chromium, "#live") == "Live")
    chromium.get_log("browser")  # what earlier tests provoked
    return chromium


class Simulating(Policy):
    """A composite with known evidence."""

    name = "auto"

    @property
    def candidates(self) -> tuple[Policy, ...]:
        return (CostIndex(), SampledCompletion(d=8))

    def evidence(self, plan: Plan) -> Evidence:
        """The first takes 2 s, the second half a second less."""
        apart = np.array([[0.0, -0.5], [0.0, 0.05]])
        return Evidence("mean", np.array([2.0, 1.5]), np.array([0.1, 0.08]), *apart)


def text(browser: Any, selector: str) -> str:
    """In one call, because panels are drawn anew every second."""
    return str(
        browser.execute_script("return document.querySelector(arguments[0])?.innerText ?? ''", selector)
    )


def size(browser: Any, width: int) -> None:
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def rows(browser: Any) -> list[str]:
    script = "return [...document.querySelectorAll('#nodes .node-name')].map((name) => name.textContent)"
    return list(browser.execute_script(script))


def colour(browser: Any) -> str:
    script = "return getComputedStyle(document.querySelector('.card')).backgroundColor"
    return str(browser.execute_script(script))


def test_live_numbers_without_errors(browser: Any) -> None:
    assert len(rows(browser)) == 100
    assert text(browser, "#policy .policy-name").startswith("least-expected-wait")
    assert "search" in text(browser, "#tenants")
    served = "return document.querySelector('#nodes tbody td:nth-of-type(7)').textContent"
    before = browser.execute_script(served)
    wait_until(lambda: browser.execute_script(served) != before)
    line = browser.find_element(By.CSS_SELECTOR, "#chart-latency path.line.one").get_attribute("d")
    assert line.count("L") > 30
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


def test_nothing_comes_from_other_hosts(browser: Any, admin: Admin) -> None:
    names = browser.execute_script(
        "return performance.getEntriesByType('resource').map((entry) => entry.name)"
    )
    assert names
    assert all(name.startswith(admin.base) for name in names)


def test_the_table_sorts_and_filters(browser: Any) -> None:
    title = browser.find_element(By.CSS_SELECTOR, "#nodes thead button")
    title.click()
    title.click()
    wait_until(lambda: rows(browser)[0].startswith("gpu-99"))
    head = browser.find_element(By.CSS_SELECTOR, "#nodes thead th")
    assert head.get_attribute("aria-sort") == "descending"
    search = browser.find_element(By.ID, "filter")
    search.send_keys("gpu-4")
    wait_until(lambda: len(rows(browser)) == 10)
    search.send_keys("x")
    wait_until(lambda: text(browser, "#nodes .empty") == "No node matches.")


def test_draining_asks_first(browser: Any, admin: Admin) -> None:
    drain = browser.find_element(By.CSS_SELECTOR, "button[aria-label='Drain gpu-01']")
    drain.click()
    assert text(browser, "#confirm-title") == "Drain gpu-01?"
    browser.find_element(By.CSS_SELECTOR, "#confirm button[value=no]").click()
    time.sleep(0.2)
    assert admin.control.node_list[1].health is Health.UP
    drain.click()
    browser.find_element(By.CSS_SELECTOR, "#confirm button[value=yes]").click()
    wait_until(lambda: admin.control.node_list[1].health is Health.DRAINING)
    wait_until(lambda: not drain.is_enabled())


def test_a_receipt_is_shown(browser: Any, admin: Admin) -> None:
    browser.find_element(By.ID, "request-id").send_keys(f"req-{admin.control.serial}", Keys.ENTER)
    wait_until(lambda: "Candidates of least-expected-wait" in text(browser, "#receipt .body"))
    field = browser.find_element(By.ID, "request-id")
    field.clear()
    field.send_keys("unknown", Keys.ENTER)
    wait_until(lambda: "no such request" in text(browser, "#receipt .body"))


def test_candidates_of_a_composite_and_why_one_of_them_decides(browser: Any, admin: Admin) -> None:
    policy = Simulating()
    standing = ActiveCandidate(policy, 0.0)
    admin.control.candidates = standing.summary(200.0)
    wait_until(lambda: "Nothing was simulated yet" in text(browser, "#policy"))
    standing.note(empty_plan()._replace(active_idx=np.array([1])), 200.0)
    admin.control.candidates = standing.summary(230.0)
    wait_until(lambda: "simulated 30 s ago" in text(browser, "#policy"))
    shown = "return [...document.querySelectorAll('#policy tbody tr')].map((row) => row.innerText)"
    assert browser.execute_script(shown) == [
        "cost-index\t2 s ± 100 ms\t–",
        "sampled-completion (d 8)in force\t1.50 s ± 80 ms\t−25.0 % ± 2.5 %",
    ]
    assert "Before\ncost-index" in text(browser, "#policy")
    for width in (1280, 390):
        size(browser, width)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    admin.control.candidates = None


def test_dark_by_the_system_and_by_the_button(browser: Any) -> None:
    def system(scheme: str) -> None:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    light, dark = "rgb(255, 255, 255)", "rgb(23, 26, 33)"
    system("light")
    assert colour(browser) == light
    system("dark")
    assert colour(browser) == dark
    browser.find_element(By.ID, "theme").click()
    assert colour(browser) == light
    browser.refresh()
    wait_until(lambda: text(browser, "#live") == "Live")
    assert colour(browser) == light  # remembered


def test_the_keyboard_reaches_everything_in_order(browser: Any) -> None:
    order = []
    for _ in range(16):
        browser.switch_to.active_element.send_keys(Keys.TAB)
        focused = browser.switch_to.active_element
        name = focused.get_attribute("id") or focused.get_attribute("aria-label") or focused.text
        order.append(name)
    expected = [
        "Skip to the nodes",
        "theme",
        "Sign out",
        "filter",
        "Table of nodes",
        "Node",
        "Health",
        "In flight",
    ]
    assert order[:8] == expected
    assert order[15] == "Drain gpu-00"
    assert browser.execute_script("return document.activeElement.matches(':focus-visible')")


def test_every_control_has_a_name_and_tables_have_captions(browser: Any) -> None:
    nameless = browser.execute_script(
        "return [...document.querySelectorAll('button, input')].filter((e) => !e.textContent.trim()"
        " && !e.getAttribute('aria-label') && !e.labels?.length).map((e) => e.outerHTML)"
    )
    assert nameless == []
    uncaptioned = "return [...document.querySelectorAll('table')].filter((e) => !e.caption).length"
    assert browser.execute_script(uncaptioned) == 0


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_fits(browser: Any, width: int) -> None:
    size(browser, width)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width


def test_an_ended_session_leads_to_the_sign_in_page(browser: Any) -> None:
    browser.find_element(By.CSS_SELECTOR, "header form button").click()
    wait_until(lambda: browser.current_url.endswith("/login"))
    assert text(browser, "h1") == "Sign in"
