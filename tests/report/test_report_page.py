from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import zlib
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import reduce
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from support.synthetic import POLICIES, comparison
from trimtab.errors import UsageError
from trimtab.experiments.serving.run import simulate
from trimtab.metrics import METRICS, Estimate
from trimtab.report.comparison_page import comparison_page
from trimtab.report.packed_text import packed
from trimtab.report.run_page import run_page
from trimtab.report.short_pages import write_trace_report
from trimtab.report.whole_files import write_text
from trimtab.traces import rate_series, summarise

MADE_AT = datetime(2026, 5, 4, 3, 2, tzinfo=UTC)
HOSTILE = '</script><img src="https://example.org/x.png" onerror=alert(1)>'
VOID = {"meta", "line", "path", "circle", "img", "wbr"}


def unpacked(digits: str, n_bytes: int) -> str:
    """The text of a packed one, digit by digit."""
    alphabet = [chr(code) for code in range(ord("#"), ord("x") + 1) if chr(code) != "<"]
    value = {digit: i for i, digit in enumerate(alphabet)}
    fives = (digits[i : i + 5] for i in range(0, len(digits), 5))
    words = [reduce(lambda word, digit: 85 * word + value[digit], five, 0) for five in fives]
    stream = b"".join(word.to_bytes(4) for word in words)
    return zlib.decompress(stream[:n_bytes], wbits=-15).decode()


@dataclass
class Parsed(HTMLParser):
    """What a browser would find in a page, as far as these tests ask."""

    tags: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)  # of elements with an id
    open_: list[tuple[str, str | None]] = field(default_factory=list)
    unbalanced: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def figures(self) -> dict[str, Any]:
        """The packed figures by name."""
        size = next(attrs["data-bytes"] for _, attrs in self.tags if attrs.get("id") == "figure-data")
        figures: dict[str, Any] = json.loads(unpacked(self.texts["figure-data"], int(size or 0)))
        return figures

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open_.append((tag, dict(attrs).get("id")))

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        if not self.open_ or self.open_.pop()[0] != tag:
            self.unbalanced.append(tag)

    def handle_data(self, data: str) -> None:
        if self.open_ and (id_ := self.open_[-1][1]):
            self.texts[id_] = self.texts.get(id_, "") + data

    def all(self, attribute: str) -> list[str]:
        return [attrs[attribute] or "" for _, attrs in self.tags if attribute in attrs]


def parsed(path: Path) -> Parsed:
    page = Parsed()
    page.feed(path.read_text(encoding="utf-8"))
    page.close()
    return page


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    return write_text(path, comparison_page(comparison(unfit=12), MADE_AT))


def test_the_page_is_small_enough_to_mail(report: Path) -> None:
    assert report.stat().st_size < 1_200_000  # noise, of which these figures are made, hardly compresses


def test_the_script_in_the_page_is_of_the_version_that_makes_the_figures_and_draws_all_of_them(
    report: Path,
) -> None:
    from plotly.offline import get_plotlyjs_version

    page = parsed(report)
    size = next(attrs["data-bytes"] for _, attrs in page.tags if attrs.get("id") == "plotly")
    script = unpacked(page.texts["plotly"], int(size or 0))
    made_by = re.search(r"plotly\.js \(cartesian - minified\) v(\d+)", script)
    assert made_by is not None
    assert made_by[1] == get_plotlyjs_version().partition(".")[0]
    kinds = {trace["type"] for figure in page.figures().values() for trace in figure["data"]}
    assert kinds == {"bar", "heatmap", "scatter"}  # the bundle has these


@pytest.mark.parametrize("text", ["", "a", "ab", "abc", "abcd", "abcde", "déjà vu · 図", HOSTILE * 99])
def test_packed_texts_are_unpacked_and_hold_no_markup(text: str) -> None:
    made = packed(text)
    assert unpacked(made.digits, made.n_bytes) == text
    assert "<" not in made.digits


def test_nothing_in_the_page_points_outside(report: Path) -> None:
    page = parsed(report)
    outward = [
        value for name in ("src", "srcset", "data", "action", "xlink:href") for value in page.all(name)
    ]
    assert outward == []
    assert [href for href in page.all("href") if not href.startswith("#")] == []
    style = re.search(r"<style>(.*?)</style>", report.read_text(), re.S)
    assert style is not None
    assert "url(" not in style[1]
    assert "@import" not in style[1]


def test_the_page_forbids_itself_the_network(report: Path) -> None:
    policy = next(a["content"] for t, a in parsed(report).tags if t == "meta" and "http-equiv" in a)
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert not any("http" in sources or "*" in sources for sources in rules.values())


def test_elements_are_balanced_and_ids_unique(report: Path) -> None:
    page = parsed(report)
    ids = page.all("id")
    assert page.unbalanced == []
    assert page.open_ == []
    assert len(set(ids)) == len(ids)


def test_every_figure_has_its_place_and_the_other_way_round(report: Path) -> None:
    page = parsed(report)
    places = {attrs["id"] for _, attrs in page.tags if attrs.get("class") == "plot"}
    assert places == set(page.figures())


def test_every_label_and_choice_refers_to_something(report: Path) -> None:
    page = parsed(report)
    ids = set(page.all("id"))
    assert set(page.all("aria-labelledby")) <= ids
    assert set(page.all("data-plot")) <= ids


def test_headings_do_not_skip_levels(report: Path) -> None:
    levels = [int(tag[1]) for tag, _ in parsed(report).tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_figures_and_controls_are_labelled(report: Path) -> None:
    tags = parsed(report).tags
    assert all(
        attrs.get("aria-label") for tag, attrs in tags if attrs.get("class") == "plot" or tag == "select"
    )
    assert next(attrs for tag, attrs in tags if tag == "html")["lang"] == "en"


def test_the_table_holds_every_metric_of_every_policy(report: Path) -> None:
    page = parsed(report)
    table = comparison(unfit=12)
    cells = [attrs["data-value"] for tag, attrs in page.tags if tag == "td" and "data-value" in attrs]
    per_row = len(METRICS) + 1  # and the distance to the bound
    assert len(cells) == len(POLICIES) * per_row
    best = table.ranked()[0]
    assert float(cells[0] or "nan") == pytest.approx(best.metrics["completion_mean_s"].mean, rel=1e-8)
    assert float(cells[1] or "nan") == pytest.approx(best.distance_frac.mean, rel=1e-8)


def test_the_header_says_where_the_figures_come_from(report: Path) -> None:
    text = report.read_text(encoding="utf-8")
    for part in (
        "synthetic-images",
        "10,000 per seed",
        "80 %",
        "0, 1, 2, 3, 4",
        "5f3c9a7be1d2",
        "2026-05-04 03:02 UTC",
    ):
        assert part in text
    assert "60 requests fit no node and were rejected (seed 0: 0, 1, 2, 3, 4, …)" in text
    assert "It assumes: no preemption; true service times." in text


def test_names_from_outside_cannot_become_markup(tmp_path: Path) -> None:
    hostile = comparison((HOSTILE, "random"), scenario_name=HOSTILE)
    path = write_text(tmp_path / "r.html", comparison_page(hostile))
    page = parsed(path)
    assert not any(tag == "img" for tag, _ in page.tags)
    assert page.unbalanced == []
    assert page.figures()["cdf"]["data"][0]["name"] == HOSTILE


def test_without_bound_sweep_or_curves_their_parts_are_left_out(tmp_path: Path) -> None:
    table = comparison(("random",), (0,), loads=(), bounded=False)
    page = parsed(write_text(tmp_path / "r.html", comparison_page(table)))
    figures = page.figures()
    assert not any(name.startswith("load-") for name in figures)
    assert "shapes" not in figures["objective"]["layout"]
    assert "No lower bound holds" in (tmp_path / "r.html").read_text()


def test_a_page_that_cannot_be_written_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"out: can't write there"):
        write_text(tmp_path / "file" / "r.html", comparison_page(comparison(("random",), (0,))))


def test_a_metric_that_is_nothing_for_all_policies_has_no_bars(tmp_path: Path) -> None:
    table = comparison(("random", "power-of-d"), (0,))
    shown = set(parsed(write_text(tmp_path / "r.html", comparison_page(table))).figures())
    name = next(n for n in table.kind.figures.bars if f"bar-{n}" in shown)
    for value in (0.0, math.nan):
        for result in table.results:
            result.metrics[name] = Estimate(value, None)
        left = set(parsed(write_text(tmp_path / "r.html", comparison_page(table))).figures())
        assert left == shown - {f"bar-{name}"}


def test_a_run_has_a_page(tmp_path: Path) -> None:
    run = simulate("tiny", "random", mode="interpreted")
    page = parsed(write_text(tmp_path / "r.html", run_page(run)))
    assert set(page.figures()) == {"cdf", "queue", "heat", "latency"}
    assert page.unbalanced == []


@pytest.mark.parametrize("with_sizes", [True, False])
def test_a_trace_has_a_page(tmp_path: Path, *, with_sizes: bool) -> None:
    table = pl.DataFrame({"arrival_s": np.arange(100.0), "size": np.arange(1.0, 101.0)})
    size = table["size"].to_numpy() if with_sizes else None
    path = write_trace_report(summarise(table), rate_series(table, 10), tmp_path / "t.html", size=size)
    assert set(parsed(path).figures()) == ({"rate", "size"} if with_sizes else {"rate"})


def test_a_trace_of_one_instant_has_a_page_without_figures(tmp_path: Path) -> None:
    table = pl.DataFrame({"arrival_s": [1.0, 1.0], "size": [1.0, 2.0]})
    assert "2 requests." in write_trace_report(summarise(table), None, tmp_path / "t.html").read_text()


BROWSER = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chrome")


needs_browser = pytest.mark.skipif(BROWSER is None, reason="needs Chromium")

USE_THE_PAGE = """ready.then(() => {
const heads = [...document.querySelectorAll("thead th")];
const heading = (text) => heads.find((th) => th.innerText.startsWith(text));
const order = () => [...document.querySelectorAll(".comparison tbody th")].map((th) => th.textContent);
const shown = () => heads.filter((th) => !th.hidden).length;
const traces = (id) => document.getElementById(id).data;
const visible = (id) => traces(id).filter((t) => t.visible !== false).map((t) => t.name);
const colour = () => getComputedStyle(document.body).backgroundColor;
const seen = { first: order(), headline: shown(), lightPage: colour() };
heading("SLO").querySelector("button").click();
seen.bySlo = order();
heading("SLO").querySelector("button").click();
seen.bySloReversed = order();
seen.sorted = heading("SLO").ariaSort;
document.querySelector('[data-group="Queueing"]').click();
seen.queueing = shown();
document.querySelector('[data-all="false"]').click();
document.querySelector('[data-policy="random"]').click();
seen.onlyRandom = visible("queue");
const select = document.querySelector("select");
select.value = "bounded-hash";
select.dispatchEvent(new Event("change"));
seen.heat = visible("heat");
heading("queueing").querySelector("button").focus();
seen.tip = document.getElementById("tip").textContent;
const before = document.getElementById("cdf").layout.font.color;
document.getElementById("theme").click();
seen.darkPage = colour();
seen.fontChanged = before !== document.getElementById("cdf").layout.font.color;
document.body.innerHTML = "";
document.body.dataset.seen = JSON.stringify(seen);
});"""


def browse(page: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """The page as Chromium leaves it, with every name lookup refused."""
    assert BROWSER is not None
    flags = (
        "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --enable-logging=stderr --v=0"
    )
    offline = "--disable-background-networking --disable-component-update --disable-sync"
    more = [
        "--host-resolver-rules=MAP * ~NOTFOUND",
        f"--user-data-dir={folder}",
        "--virtual-time-budget=20000",
    ]
    command = [BROWSER, *flags.split(), *offline.split(), *more, "--dump-dom", f"{page.as_uri()}#light"]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


@needs_browser
def test_a_browser_without_network_draws_every_figure(report: Path, tmp_path: Path) -> None:
    done = browse(report, tmp_path)
    assert [line for line in done.stderr.splitlines() if "CONSOLE" in line] == []
    plots = done.stdout.count('class="plot js-plotly-plot"')
    assert plots == report.read_text().count('class="plot"')


@needs_browser
def test_sorting_choosing_and_themes_work(report: Path, tmp_path: Path) -> None:
    used = tmp_path / "used.html"
    before, _, after = report.read_text().rpartition("</body>")
    used.write_text(f"{before}<script>{USE_THE_PAGE}</script></body>{after}")
    done = browse(used, tmp_path / "profile")
    page = Parsed()
    page.feed(done.stdout)
    seen = json.loads(page.all("data-seen")[0])
    table = comparison(unfit=12)
    by_slo = [result.policy for result in table.ranked("slo_attained_frac")]
    assert seen["first"] == [result.policy for result in table.ranked()]
    assert seen["bySlo"] == by_slo
    assert seen["bySloReversed"] == by_slo[::-1]
    assert seen["sorted"] == "ascending"
    assert seen["headline"] == 2 + sum(metric.headline for metric in METRICS.values())
    assert seen["queueing"] == 1 + sum(name.startswith("queueing_") for name in METRICS)
    assert seen["onlyRandom"] == ["random"]
    assert seen["heat"] == ["bounded-hash"]
    assert METRICS["queueing_mean_s"].definition in seen["tip"]
    assert seen["lightPage"] != seen["darkPage"]
    assert seen["fontChanged"]
