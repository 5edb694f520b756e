"""The maintenance calendar: its windows by hand, the drain at their time, and what policies see of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from support.gateway.dispatch_bench import Asked, Bench, on_bench
from trimtab.errors import ConfigError
from trimtab.forecast.availability import next_outages_s
from trimtab.gateway.app.config_mapping import declared_of
from trimtab.gateway.config import parse_config
from trimtab.gateway.decide.dispatch_rules import Declared
from trimtab.gateway.model import Health
from trimtab.gateway.nodes.node_state import Hold
from trimtab.gateway.nodes.planned_outages import WEEK_S, Maintenance, Window

NODES = "nodes: [{name: a, url: 'http://x:1'}, {name: b, url: 'http://x:2'}]\n"
BEGUN_S = 1.8e9  # since 1970, at time 0 of the bench


def windows_of(entry: str) -> tuple[Window, ...]:
    return declared_of(parse_config(f"{NODES}maintenance: [{{node: b, {entry}}}]", "g.yaml")).windows


def utc(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    "start", ["2026-12-24T02:00:00Z", "'2026-12-24T02:00:00Z'", "2026-12-24T03:00:00+01:00"]
)
def test_an_outage_with_a_start_and_an_end(start: str) -> None:
    (window,) = windows_of(f"start: {start}, end: 2026-12-24T04:30:00Z")
    assert window == Window("b", utc("2026-12-24T02:00"), utc("2026-12-24T04:30"))
    assert window.next(0.0) == [(window.start_s, window.end_s)]


def test_a_weekly_window_comes_every_week() -> None:
    (window,) = windows_of("weekly: sunday 23:30, duration_s: 3600")
    first = utc("2026-12-20T23:30")  # a Sunday
    for now in ("2026-12-14T00:30", "2026-12-20T23:29", "2026-12-20T23:31", "2026-12-21T00:29"):
        assert window.next(utc(now)) == [(first, first + 3600), (first + WEEK_S, first + WEEK_S + 3600)]
    assert window.next(utc("2026-12-21T00:30"))[0][0] == first + WEEK_S


@pytest.mark.parametrize(
    ("entry", "field", "value", "expected"),
    [
        ("{node: c, weekly: sunday 02:00, duration_s: 60}", "maintenance[0].node", "c", "one of 'a', 'b'"),
        ("{node: a}", "maintenance[0]", None, "either start and end, or weekly and duration_s"),
        ("{node: a, start: 2026-12-24T02:00:00Z}", "maintenance[0]", None, "either start and end"),
        ("{node: a, weekly: sun 2, duration_s: 60}", "maintenance[0].weekly", "sun 2", "'sunday 02:00'"),
        ("{node: a, weekly: sunday 24:00, duration_s: 60}", "maintenance[0].weekly", "sunday 24:00", "UTC"),
        ("{node: a, weekly: sunday 02:00, duration_s: 0}", "maintenance[0].duration_s", 0, "greater than 0"),
        ("{node: a, weekly: sunday 02:00, duration_s: 1e6}", "maintenance[0]", None, "below 604800, a week"),
        (
            "{node: a, start: '2026-12-24 02:00', end: 2026-12-24T03:00:00Z}",
            "maintenance[0].start",
            "2026-12-24 02:00",
            "a time with its zone",
        ),
        ("{node: a, start: soon, end: 2026-12-24T03:00:00Z}", "maintenance[0].start", "soon", "a time with"),
        (
            "{node: a, start: 2026-12-24T03:00:00Z, end: 2026-12-24T03:00:00Z}",
            "maintenance[0]",
            None,
            "an end after the start",
        ),
    ],
)
def test_what_is_wrong_is_named(entry: str, field: str, value: object, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(f"{NODES}maintenance: [{entry}]", "g.yaml")
    error = caught.value
    assert error.exit_code == 2
    assert error.file == "g.yaml"
    assert error.field == field
    assert value is None or error.value == value
    assert expected in str(error)


def on_calendar(
    test: object, *windows: Window, policy: str = "least-connections", nodes: Sequence[Mapping[str, Any]] = ()
) -> None:
    """A bench of two nodes whose calendar is followed."""

    async def with_calendar(bench: Bench) -> None:
        calendar = Maintenance(
            bench.fleet, windows, bench.dispatcher.write_outages, lambda: BEGUN_S + bench.loop.time()
        )
        calendar.look()
        calendar.start()
        try:
            await test(bench)  # type: ignore[operator]
        finally:
            await calendar.close()

    loop_s = lambda: BEGUN_S + asyncio.get_running_loop().time()  # noqa: E731
    on_bench(with_calendar, policy, *nodes, declared=Declared(windows=windows), utc_s=loop_s)


def test_a_node_gets_no_work_in_its_window_and_policies_see_it_before() -> None:
    async def test(bench: Bench) -> None:
        begin_s, end_s = next_outages_s(bench.view().outages, 2, 0.0)
        assert begin_s.tolist() == pytest.approx([np.inf, 100.0])
        assert end_s.tolist() == pytest.approx([np.inf, 160.0])
        assert set(bench.one_by_one(4)) == {"n0", "n1"}
        await asyncio.sleep(101.0)
        node = bench.fleet.nodes[1]
        assert node.health is Health.DRAINING
        assert node.reason == "maintenance until 2027-01-15T08:02:40+00:00"
        assert set(bench.one_by_one(4)) == {"n0"}
        await asyncio.sleep(60.0)
        assert set(bench.one_by_one(4)) == {"n0", "n1"}

    on_calendar(test, Window("n1", BEGUN_S + 100.0, BEGUN_S + 160.0), policy="round-robin")


def served_for(bench: Bench, seconds: float) -> None:
    """Requests of the class take so long; the first one makes it known."""
    bench.dispatcher.abort(bench.submit())
    (of,) = bench.dispatcher.registry.classes
    for _ in range(8):
        bench.dispatcher.registry.estimates.observe(of.key, "same", Asked().units or 1.0, seconds)
    bench.dispatcher.rebuild()


@pytest.mark.parametrize("policy", ["predictive(admission=False)", "outage-aware", "what-if(window=64)"])
@pytest.mark.parametrize("with_outage", [True, False])
def test_no_work_goes_where_an_outage_would_cut_it_short(policy: str, with_outage: bool) -> None:
    """Services take 30 s. The first node, which all else prefers, has an outage at 160 s; now it is 135 s."""

    async def test(bench: Bench) -> None:
        served_for(bench, 30.0)
        running: list[Asked] = []
        for _ in range(135):
            running.append(bench.submit())
            await asyncio.sleep(1.0)
            if len(running) > 30:
                bench.done(running.pop(0), 30.0)
        assert bench.submit().node == ("n1" if with_outage else "n0")

    windows = [Window("n0", BEGUN_S + 160.0, BEGUN_S + 1000.0)] if with_outage else []
    on_calendar(test, *windows, policy=policy, nodes=[{"max_requests": 64}, {"max_requests": 64}])


def test_policies_see_the_next_week_once_a_window_is_over() -> None:
    async def test(bench: Bench) -> None:
        assert bench.fleet.nodes[0].health is Health.DRAINING
        await asyncio.sleep(20.0)
        begin_s, _ = next_outages_s(bench.view().outages, 2, bench.dispatcher.now_s())
        assert begin_s[0] == pytest.approx(WEEK_S)

    start_s = BEGUN_S - 3 * WEEK_S
    on_calendar(test, Window("n0", start_s, start_s + 10.0, is_weekly=True))


def test_an_operators_drain_is_no_failure_and_a_failed_check_is_one() -> None:
    async def test(bench: Bench) -> None:
        first, second = bench.fleet.nodes
        await asyncio.sleep(10.0)
        bench.fleet.drain("n0")
        bench.fleet.hold(second, Hold.CHECKS, "refused")
        begin_s, _ = next_outages_s(bench.view().outages, 2, 10.0)
        assert begin_s.tolist() == [10.0, np.inf]
        bench.fleet.undrain("n0")
        assert first.health is Health.UP
        assert np.isinf(next_outages_s(bench.view().outages, 2, 10.0)[0]).all()

    on_calendar(test)
