"""Private tenants: what is counted and released when, and that no exact figure is left anywhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.backends import Options, launched
from support.gateway.observe_builders import make_exchange
from support.served import KEY, Served, chat, config_of, key_entry, served
from trimtab.errors import ConfigError
from trimtab.gateway.config import KeySpec, PrivacySpec, parse_config
from trimtab.gateway.decide.learning import RequestClass, ServiceEstimates
from trimtab.gateway.model import Kind, Outcome, Tenant, Usage
from trimtab.gateway.observe.private_counts import DAY_S, PrivateTenants
from trimtab.privacy.mechanisms import Counts

PERIOD_S = 3600.0
OTHER_KEY = "tt-another-key-0123456789abcdef"
N_PRIVATE = 37  # requests; no other figure here is 37, or a multiple of its tokens


def no_noise(counts: Counts, sigma: float) -> Counts:
    return counts


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0 * DAY_S

    def __call__(self) -> float:
        return self.now_s


def key(**changed: Any) -> KeySpec:
    privacy = PrivacySpec(**{"epsilon": 1.0, "period_s": PERIOD_S, "max_output_tokens": 100} | changed)
    return KeySpec(name="clinic", sha256="a" * 64, privacy=privacy)


def exchange(tokens: int = 10, outcome: Outcome = Outcome.DONE) -> Any:
    made = make_exchange()
    made.tenant = Tenant("clinic", 0, is_private=True)
    made.usage, made.outcome = Usage(5, tokens, 0), outcome
    return made


def test_totals_come_out_at_the_end_of_a_period_and_are_clipped() -> None:
    clock = Clock()
    private = PrivateTenants([key()], clock, no_noise)
    private.ended([exchange(), exchange(10**6, Outcome.FAILED)])
    private.tick()
    assert private.figures()["clinic"].requests == 0
    clock.now_s += PERIOD_S
    private.tick()
    shown = private.figures()["clinic"]
    assert (shown.requests, shown.failed, shown.prompt_tokens, shown.output_tokens) == (2, 1, 10, 110)
    assert 0.0 < shown.epsilon < 1.0
    private.ended([exchange()])
    private.tick()
    assert private.figures()["clinic"] == shown


def test_days_add_up_and_each_has_a_budget_of_its_own() -> None:
    clock = Clock()
    private = PrivateTenants([key()], clock, no_noise)
    shown = []
    for _ in range(50):
        private.ended([exchange()])
        clock.now_s += PERIOD_S
        private.tick()
        shown.append(private.figures()["clinic"])
    assert [figures.requests for figures in shown] == list(range(1, 51))
    assert shown[22].epsilon == pytest.approx(1.0, rel=0.01)
    assert shown[23].epsilon == 0.0  # the second day begins


def test_a_clock_that_jumps_about_spends_no_more_than_the_budget() -> None:
    clock = Clock()
    private = PrivateTenants([key()], clock, no_noise)
    for k in range(200):
        private.ended([exchange()])
        clock.now_s = 1000.0 * DAY_S + PERIOD_S * (k % 20)
        private.tick()
    figures = private.figures()["clinic"]
    assert figures.requests == 25  # 24 releases, the first of two requests; then they stay as they are
    assert figures.epsilon == pytest.approx(1.0, rel=0.01)


def test_what_is_shown_never_falls() -> None:
    draws, clock = np.random.default_rng(5), Clock()

    def noise(counts: Counts, sigma: float) -> Counts:
        return np.rint(counts + draws.normal(0.0, sigma, counts.shape)).astype(np.int64)

    private, shown = PrivateTenants([key(requests=3)], clock, noise), [0]
    for _ in range(60):
        clock.now_s += PERIOD_S
        private.tick()
        shown.append(private.figures()["clinic"].requests)
    assert shown == sorted(shown)
    assert shown[-1] > 0


def test_estimates_that_leave_the_process_are_learned_without_private_tenants() -> None:
    kind = RequestClass(("llama", Kind.CHAT), 0)
    estimates = ServiceEstimates()
    estimates.public = public = ServiceEstimates()
    known_by = make_exchange().attempts[0].node.type_name or make_exchange().attempts[0].node.name
    for k in range(40):
        private = exchange()
        private.units = 10.0 + k
        estimates.learn(private, kind, 9.0, is_timed=True)
    assert estimates.observed(kind.key, known_by) == 40.0
    assert public.observed(kind.key, known_by) == 0.0
    assert public.of(kind.key, known_by) == ServiceEstimates().of(kind.key, known_by)
    estimates.learn(make_exchange(units=5.0), kind, 2.0, is_timed=True)
    assert public.observed(kind.key, known_by) == 1.0


def config_text(privacy: str) -> str:
    return f"keys: [{{name: a, sha256: '{'a' * 64}', privacy: {privacy}}}]"


@pytest.mark.parametrize(
    ("privacy", "field", "value", "expected"),
    [
        ("{epsilon: 0}", "epsilon", 0, "greater than 0"),
        ("{epsilon: -1}", "epsilon", -1, "greater than 0"),
        ("{epsilon: .nan}", "epsilon", None, "finite"),
        ("{epsilon: .inf}", "epsilon", None, "finite"),
        ("{delta: 1.0e-6}", "epsilon", None, "a value"),
        ("{epsilon: 1, delta: 0}", "delta", 0, "greater than 0"),
        ("{epsilon: 1, delta: 1}", "delta", 1, "less than 1"),
        ("{epsilon: 1, period_s: 1.0e+6}", "period_s", 1e6, "less than or equal to 86400"),
        ("{epsilon: 1, requests: 0}", "requests", 0, "or equal to 1"),
        ("{epsilon: 1, max_service_s: 0}", "max_service_s", 0, "greater than 0"),
        ("{epsilon: 1, sigma: 3}", "sigma", None, "'"),
    ],
)
def test_settings_that_promise_nothing_are_refused(
    privacy: str, field: str, value: object, expected: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(config_text(privacy), "g.yaml")
    error = caught.value
    assert (error.exit_code, error.file, error.field) == (2, "g.yaml", f"keys[0].privacy.{field}")
    assert expected in str(error.expected)
    if value is not None:
        assert error.value == value


@pytest.fixture
def clinic(tmp_path: Path) -> Iterator[Served]:
    privacy = {"epsilon": 1.0, "period_s": 0.2}
    keys = [key_entry("clinic", KEY, privacy=privacy), key_entry("studio", OTHER_KEY)]
    telemetry = {"log_requests": True, "log_format": "json"}
    with launched(Options(output_s=0.0, prefill_s=0.0)) as started:
        more = {"keys": keys, "record": {"folder": "recording"}, "shadow": {"policy": "round-robin"}}
        with served(tmp_path, config_of(*started, telemetry=telemetry, **more)) as gateway:
            yield gateway


def numbers_in(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        for name, inner in value.items():
            if name not in ("started_at", "history", "port"):
                yield from numbers_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from numbers_in(inner)
    elif isinstance(value, int | float):
        yield float(value)


def test_no_exact_figure_and_no_request_leaves_the_process(clinic: Served, tmp_path: Path) -> None:
    """Against the same gateway's public tenant, whose requests are everywhere."""
    for k in range(N_PRIVATE):
        answer = clinic.call("/v1/chat/completions", chat(max_tokens=3), x_request_id=f"private-{k}")
        assert answer.status == 200
    for k in range(3):
        path = "/v1/chat/completions"
        assert clinic.call(path, chat(max_tokens=3), key=OTHER_KEY, x_request_id=f"public-{k}").status == 200
    assert clinic.metric("trimtab_requests_total") == clinic.metric("trimtab_node_served_total") == 3.0
    assert clinic.metric("trimtab_tenant_requests_total", tenant="studio") == 3.0
    assert clinic.metric("trimtab_shadow_decisions_total") == 3.0
    metrics = clinic.admin("/metrics").body.decode()
    exact = {float(N_PRIVATE), N_PRIVATE + 3.0, 3.0 * N_PRIVATE}
    samples = [line.rsplit(" ", 1) for line in metrics.splitlines() if not line.startswith("#")]
    assert not {name for name, value in samples if float(value) in exact and "clinic" not in name}
    for path in ("/admin/status", "/admin/usage", "/admin/nodes"):
        told = clinic.admin(path).json()
        public = [row for row in told.get("tenants", told.get("usage", ())) if row.get("tenant") != "clinic"]
        rest = {name: value for name, value in told.items() if name not in ("tenants", "usage")}
        assert not exact & set(numbers_in([public, rest])), path
    (of_clinic,) = [row for row in clinic.admin("/admin/usage").json()["usage"] if row["tenant"] == "clinic"]
    assert of_clinic["model"] == "*"
    assert clinic.admin("/admin/requests/private-0").status == 404
    assert clinic.receipt("public-0")["tenant"] == "studio"
    clinic.tell(2)
    assert clinic.wait() == 0
    files = (tmp_path / "recording").iterdir()
    rows = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    (of_class,) = next(row["classes"] for row in reversed(rows) if row.get("record") == "estimates")
    assert of_class["name"] == "demo-chat/chat"
    assert len([row for row in rows if "record" not in row]) == 3
    logged = (tmp_path / "said").read_text()
    assert "public-0" in logged
    assert "private-" not in logged


def test_privacy_begins_at_a_start(tmp_path: Path) -> None:
    with served(tmp_path, config_of()) as gateway:
        keys = [key_entry("tests", KEY, privacy={"epsilon": 1.0})]
        gateway.configure(config_of(keys=keys))
        answer = gateway.admin("/admin/reload", {})
        assert answer.status == 400
        assert b"privacy" in answer.body
        assert b"start" in answer.body
