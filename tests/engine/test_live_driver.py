"""Requests told one by one: the simulator's decisions, and what only live hosts do."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from support import builders
from support.conformance_cases import in_turn
from support.invariants import check_held_items
from support.learned import decider_with_weights
from trimtab.domain.options import Cancel, Options
from trimtab.domain.policy import Decider, Policy
from trimtab.domain.requests import Reason, Status
from trimtab.domain.view import BACKGROUND
from trimtab.engine.driver import PlanningLog
from trimtab.engine.live_driver import LiveDriver, RequestSpec
from trimtab.engine.simulator import run
from trimtab.live.dispatch_loop import DispatchLoop
from trimtab.live.planner import InlinePlanner
from trimtab.policies import find, names

C = builders.cluster(6, types=2, slots=3, classes=2, queue_max=0)


def asked(work: Any) -> RequestSpec:
    """What a row of WORK asks for."""
    shared = ("class_idx", "units", "estimate_s", "tenant_idx", "priority", "deadline_s", "cost", "key")
    return RequestSpec(**{name: work[name].item() for name in shared})


def replay(live: LiveDriver, requests: Any, c: Any) -> dict[int, tuple[int, float]]:
    """Feed requests at their times, serve them as the simulator would; serial → (node, finish or nan)."""
    pending: list[tuple[float, int, int]] = []
    row_of: dict[int, int] = {}
    ends: dict[int, tuple[int, float]] = {}
    serial_of: dict[int, int] = {}

    time_s = [0.0]
    loop = DispatchLoop(live, InlinePlanner(live.policy, PlanningLog()), lambda: time_s[0], lambda plan: None)

    def settle(now_s: float) -> None:
        time_s[0] = now_s
        loop.step(now_s)
        for row, node in live.take_started():
            serial = serial_of[row]
            k, g = requests.work["class_idx"][serial], c.type_idx[node]
            true_s = c.fixed_s[k, g] + c.unit_s[k, g] * requests.truth["units"][serial]
            end_s = now_s + true_s * requests.truth["factor"][serial]
            heapq.heappush(pending, (end_s, serial, row))
            ends[serial] = (node, end_s)
        for row, _, _ in live.take_ended():
            ends[serial_of[row]] = (-1, np.nan)

    def run_until(until_s: float) -> None:
        while True:
            own_s = live.next_event_s()
            next_s = min(pending[0][0] if pending else np.inf, own_s)
            is_over = until_s == np.inf and not pending and live.n_held == 0  # though plans are made for ever
            if next_s > until_s or next_s == np.inf or is_over:
                return
            if pending and pending[0][0] <= own_s:
                end_s, _, row = heapq.heappop(pending)
                live.complete(row, end_s)
            settle(next_s)

    for serial, work in enumerate(requests.work):
        run_until(work["arrival_s"])
        assert live.has_row
        row = live.enter(asked(work), work["arrival_s"].item())
        row_of[serial], serial_of[row] = row, serial
        settle(work["arrival_s"].item())
    run_until(np.inf)
    return ends


@in_turn(
    [*names("dispatch"), "least-connections+edf", "random+vtc", "random+fair-share"],
    # Two neighbours have both modes, and are with and without lanes
    ["compiled", "interpreted, lanes", "compiled, lanes", "interpreted"],
    each=2,
)
def test_rows_used_again_change_no_decision(spec: str, case: str) -> None:
    mode, _, lanes = case.partition(", ")
    requests = builders.requests(C, 400, load=1.1, tenants=3, deadline_s=4.0, noise=True)
    options = Options(cancel=Cancel.WAITING, lookahead=2, lane_per_class=bool(lanes))
    chosen = decider_with_weights(find(spec))
    simulated = run(C, requests, options, chosen, seed=5, mode="compiled")
    live = LiveDriver(C, options, chosen, rows=200, tenants=3, seed=5, mode=mode)
    ends = replay(live, requests, C)
    rows = simulated.state.requests
    served = rows["status"] == Status.FINISHED
    assert served.sum() > 200
    nodes = [ends[i][0] if served[i] else -1 for i in range(400)]
    np.testing.assert_array_equal(nodes, np.where(served, rows["node_idx"], -1))
    np.testing.assert_array_equal([ends[i][1] for i in np.flatnonzero(served)], rows["finish_s"][served])


def live_of(policy: str = "least-connections", nodes: int = 2, slots: int = 1, **more: Any) -> LiveDriver:
    c = builders.cluster(nodes, slots=slots, queue_max=0, classes=more.pop("classes", 1))
    options = Options(cancel=Cancel.WAITING, lookahead=2, **more.pop("options", {}))
    return LiveDriver(c, options, find(policy), rows=50, **more)


ONE = RequestSpec(0, 1.0, 1.0)


@pytest.mark.parametrize("mode", ["compiled", "interpreted"])
def test_the_tables_estimate_what_the_host_leaves_open(mode: str) -> None:
    c = builders.cluster(2, types=2, slots=1, queue_max=0, classes=2, unserved=[(1, 0), (1, 1)])
    live = LiveDriver(c, Options(cancel=Cancel.WAITING), find("least-connections"), rows=1, mode=mode)
    for units in (1.0, 40.0):  # the second request has the row of the first
        row = live.enter(RequestSpec(0, units), units)
        live.advance(units)
        best_s = min(c.fixed_s[0] + c.unit_s[0] * units)
        assert live.state.work["estimate_s"][row] == best_s == live.best_estimate_s(0, units)
        assert [started for started, _ in live.take_started()] == [row]
        live.complete(row, units)
        live.advance(units)
    stuck = live.enter(RequestSpec(1, 1.0), 50.0)  # no type serves its class yet
    live.advance(50.0)
    assert live.waiting()["estimate_s"].tolist() == [1.0] == [live.best_estimate_s(1, 1.0)]
    assert live.state.requests["node_idx"][stuck] == -1


def test_a_lost_request_goes_to_another_node_and_never_back() -> None:
    live = live_of(nodes=3)
    row = live.enter(ONE, 0.0)
    live.advance(0.0)
    tried = [node for _, node in live.take_started()]
    for at_s in (1.0, 2.0):
        live.lose(row, at_s)
        live.advance(at_s)
        tried += [node for _, node in live.take_started()]
    assert sorted(tried) == [0, 1, 2]
    live.lose(row, 3.0)
    live.advance(3.0)
    assert [(e.row, e.status) for e in live.take_ended()] == [(row, Status.LOST)]
    assert list(live.nodes.in_flight) == [0, 0, 0]
    assert list(live.nodes.up) == [1, 1, 1]


def test_an_aborted_request_ends_wherever_it_is() -> None:
    live = live_of(nodes=1)
    running, held = live.enter(ONE, 0.0), live.enter(ONE, 0.0)
    live.advance(0.0)
    assert live.take_started() == [(running, 0)]
    assert live.n_held == 1
    live.abort(held, 1.0)
    live.abort(running, 1.0)
    live.advance(1.0)
    assert live.take_started() == []  # the second began when the first left, and left at once
    assert {e.row: e.reason for e in live.take_ended()} == {running: Reason.ABORTED, held: Reason.ABORTED}
    assert (live.n_held, live.nodes.in_flight[0]) == (0, 0)
    for k in range(200):  # rows come back, those of the held too
        row = live.enter(ONE, 2.0 + k)
        live.advance(2.0 + k)
        assert live.take_started() == [(row, 0)]
        live.complete(row, 2.5 + k)
        live.advance(2.5 + k)


def test_a_node_that_is_off_gets_nothing_and_its_work_goes_on() -> None:
    live = live_of(nodes=1)
    row = live.enter(ONE, 0.0)
    live.advance(0.0)
    live.take_started()
    live.switch(0, False, 0.5)
    waiting = live.enter(ONE, 1.0)
    live.advance(1.0)
    live.complete(row, 2.0)
    live.advance(2.0)
    assert live.take_started() == []
    live.switch(0, True, 3.0)
    live.advance(3.0)
    assert live.take_started() == [(waiting, 0)]


def test_a_deadline_ends_waiting_once_even_where_its_row_was_used_again() -> None:
    live = live_of(nodes=1)
    live.enter(ONE, 0.0)
    late = live.enter(ONE._replace(deadline_s=1.0), 0.0)
    live.advance(0.0)
    assert live.next_event_s() == 1.0
    live.advance(1.0)
    assert [(e.row, e.reason) for e in live.take_ended()] == [(late, Reason.DEADLINE)]


def test_lanes_let_other_classes_pass_what_no_node_can_take() -> None:
    c = builders.cluster(2, types=2, slots=1, queue_max=0, classes=2, unserved=[(0, 1), (1, 0)])
    live = LiveDriver(
        c, Options(cancel=Cancel.WAITING, lane_per_class=True), find("least-connections"), rows=50
    )
    live.switch(0, False, 0.0)
    for _ in range(10):  # class 0 is served by node 0 only, which is off
        live.enter(RequestSpec(0, 1.0, 1.0), 0.0)
    first, second = live.enter(RequestSpec(1, 1.0, 1.0), 0.0), live.enter(RequestSpec(1, 1.0, 1.0), 0.0)
    live.advance(0.0)
    assert live.take_started() == [(first, 1)]
    live.complete(first, 1.0)
    live.advance(1.0)
    assert live.take_started() == [(second, 1)]


def test_background_work_waits_for_all_other_and_leaves_places_free() -> None:
    live = live_of(nodes=1, slots=3)
    live.reserve(0, 1)
    background = [live.enter(ONE._replace(priority=BACKGROUND), 0.0) for _ in range(3)]
    live.advance(0.0)
    assert live.take_started() == [(background[0], 0), (background[1], 0)]
    urgent = [live.enter(ONE, 1.0), live.enter(ONE, 2.0)]
    live.advance(2.0)
    assert live.take_started() == [(urgent[0], 0)]
    live.complete(background[0], 3.0)
    live.advance(3.0)
    assert live.take_started() == [(urgent[1], 0)]


def test_tokens_in_flight_are_bounded() -> None:
    live = live_of(nodes=1, slots=10)
    live.limit_tokens(0, 100.0)
    big, small = ONE._replace(tokens=80.0), ONE._replace(tokens=30.0)
    rows = [live.enter(big, 0.0), live.enter(small, 0.0)]
    live.advance(0.0)
    assert live.take_started() == [(rows[0], 0)]
    live.complete(rows[0], 1.0)
    live.advance(1.0)
    assert live.take_started() == [(rows[1], 0)]
    whole = live.enter(ONE._replace(tokens=1000.0), 2.0)  # more than it ever has: alone
    live.complete(rows[1], 3.0)
    live.advance(3.0)
    assert live.take_started() == [(whole, 0)]


def test_a_session_goes_home_where_there_is_room_and_waits_where_it_must() -> None:
    live = live_of(nodes=2, slots=2)
    rows = [live.enter(ONE._replace(affinity_node_idx=1), 0.0) for _ in range(3)]
    must = live.enter(ONE._replace(affinity_node_idx=1, pinned=True), 0.0)
    live.advance(0.0)
    assert live.take_started() == [(rows[0], 1), (rows[1], 1), (rows[2], 0)]
    live.complete(rows[0], 1.0)
    live.advance(1.0)
    assert live.take_started() == [(must, 1)]


def test_load_from_elsewhere_takes_room() -> None:
    live = live_of(nodes=2, slots=2)
    live.add_load(0, 2, 5.0, 0.0)
    rows = [live.enter(ONE, 0.0) for _ in range(3)]
    live.advance(0.0)
    assert live.take_started() == [(rows[0], 1), (rows[1], 1)]
    live.add_load(0, -2, -5.0, 1.0)
    live.advance(1.0)
    assert live.take_started() == [(rows[2], 0)]


@dataclass(frozen=True)
class Failing(Policy):
    """Raises for every request of odd units."""

    name: ClassVar[str] = ""

    @staticmethod
    def dispatch(view: Any, plan: Any, work: Any, memory: Any, draws: Any, ranking: Any) -> int:
        """Fail, or take node 1."""
        if work.units == 1.0:
            raise RuntimeError("no")
        ranking[0] = 1
        return 1 if view.nodes.room[1] > 0 else 0


@pytest.mark.parametrize("mode", ["compiled", "interpreted"])
def test_where_a_policy_fails_least_connections_decides(mode: str) -> None:
    c = builders.cluster(2, slots=1, queue_max=0)
    live = LiveDriver(c, Options(cancel=Cancel.WAITING), Decider.of(Failing()), rows=10, mode=mode)
    rows = [live.enter(ONE, 0.0)]
    live.advance(0.0)
    rows.append(live.enter(ONE._replace(units=2.0), 0.0))
    live.advance(0.0)
    rows.append(live.enter(ONE, 0.0))
    live.advance(0.0)
    assert live.take_started() == [(rows[0], 0), (rows[1], 1)]
    assert (live.policy_failures, live.n_held) == (2, 1)
    assert "RuntimeError" in live.last_failure
    live.complete(rows[1], 1.0)
    live.advance(1.0)
    assert live.take_started() == [(rows[2], 1)]


@pytest.mark.parametrize("mode", ["compiled", "interpreted"])
def test_a_shadow_is_asked_and_changes_nothing(mode: str) -> None:
    c = builders.cluster(4, slots=2, queue_max=0)
    plain = LiveDriver(c, Options(cancel=Cancel.WAITING), find("power-of-d"), rows=50, mode=mode)
    shadow = find("least-connections")[0]
    watched = LiveDriver(
        c, Options(cancel=Cancel.WAITING), find("power-of-d"), rows=50, shadow=shadow, mode=mode
    )
    alone = LiveDriver(c, Options(cancel=Cancel.WAITING), Decider.of(shadow), rows=50, mode=mode)
    for k in range(6):
        starts = []
        for live in (plain, watched, alone):
            live.enter(ONE, float(k))
            live.advance(float(k))
            starts.append(live.take_started())
        assert starts[0] == starts[1]
        if k == 0:
            assert watched.decisions.shadow_idx[starts[1][0][0]] == starts[2][0][1]


@pytest.mark.parametrize("mode", ["compiled", "interpreted"])
def test_what_is_held_is_counted_by_model_whatever_becomes_of_it(mode: str) -> None:
    """Held, started, timed out, aborted, lost, and put back by a policy and a shadow that fail."""
    c = builders.cluster(2, slots=1, queue_max=0, models=3, adapters=2, memory_gib=100.0)
    options = Options(cancel=Cancel.WAITING)
    live = LiveDriver(c, options, Decider.of(Failing()), rows=60, shadow=find("random")[0], mode=mode)
    random, now_s, running = np.random.default_rng(1), 0.0, []
    for k in range(300):
        now_s += float(random.exponential(0.4))
        model, adapter = int(random.integers(-1, 3)), int(random.choice([-1, 3, 4]))
        deadline_s = now_s + float(random.choice([1.0, np.inf]))
        spec = RequestSpec(0, float(random.integers(1, 3)), model_idx=model, adapter_idx=adapter)
        row = live.enter(spec._replace(deadline_s=deadline_s), now_s)
        live.advance(now_s)
        if k % 7 == 0:
            live.abort(row, now_s)
        running += [(row, live.state.requests["version"][row]) for row, _ in live.take_started()]
        for row, version in running[: 1 + k % 2]:
            if live.state.requests["version"][row] == version:
                (live.lose if k % 5 == 0 else live.complete)(row, now_s)
        del running[: 1 + k % 2]
        live.advance(now_s)
        running += [(row, live.state.requests["version"][row]) for row, _ in live.take_started()]
        live.take_ended()
        held = np.flatnonzero(live.state.requests["status"] == Status.HELD)
        check_held_items(live.state, held)
        assert len(held) == live.n_held
    assert live.policy_failures > 50


def test_a_shadow_that_fails_disturbs_nobody() -> None:
    c = builders.cluster(2, slots=2, queue_max=0)
    live = LiveDriver(c, Options(), find("least-connections"), rows=10, shadow=Failing())
    row = live.enter(ONE, 0.0)
    live.advance(0.0)
    assert live.take_started() == [(row, 0)]
    assert (live.shadow_failures, live.policy_failures) == (1, 0)
    assert live.decisions.shadow_idx[row] == -1
