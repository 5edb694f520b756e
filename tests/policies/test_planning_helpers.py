"""What planners compute from the View and the past: tables, rates, prices."""

from __future__ import annotations

import numpy as np
import pytest

from support.builders import cluster, requests
from support.dispatch_by_hand import Desk
from trimtab.compiled.kernel import interpreted
from trimtab.domain.planning import History
from trimtab.domain.view import empty_plan, estimate_s, missing_load_s, new_work
from trimtab.engine.bound_state import Columns, record_of
from trimtab.policies.shared.demand_forecast import (
    Expected,
    counts,
    expected,
    loads_s,
    mean_loads_s,
    node_prices,
    rates_per_s,
    remaining_s,
    services_s,
)
from trimtab.policies.static.round_robin import RoundRobin

C = cluster(5, types=2, slots=2, classes=3, models=3, adapters=2, unserved=[(2, 0)])


def past(work: np.ndarray, **columns: object) -> History:
    """A history in which everything is still on its way to nowhere."""
    n = len(work)
    fields = {
        "finish_s": np.full(n, np.nan),
        "node_idx": np.full(n, -1, np.int32),
        "in_flight": np.zeros(n, bool),
        "plan": empty_plan(),
    }
    return History(work, **(fields | columns))  # type: ignore[arg-type]


def test_tables_are_what_kernels_see_request_by_request() -> None:
    desk = Desk(C, RoundRobin(), n_requests=40)
    desk.state.resident[:] = np.random.default_rng(3).integers(0, 2, desk.state.resident.shape)
    view, work = desk.seen(), desk.work
    services, loads = services_s(view, work), loads_s(view, work)
    row = record_of(Columns(work))
    for i in range(40):
        row.row = i
        for j in range(5):
            g = view.nodes.type_idx[j]
            assert services[i, g] == interpreted(estimate_s)(view, row, g)
            assert loads[i, j] == pytest.approx(interpreted(missing_load_s)(view, row, j))


def test_what_remains_is_worked_off_by_running_slots() -> None:
    desk = Desk(C, RoundRobin())
    desk.set(0, backlog_s=10.0, anchor_s=1.0, running=2)
    desk.set(1, backlog_s=3.0, anchor_s=1.0, running=2)
    desk.at(4.0)
    assert remaining_s(desk.seen()).tolist() == [4.0, 0.0, 0.0, 0.0, 0.0]


def test_arrivals_are_counted_in_whole_steps_before_now() -> None:
    times, series = [0.5, 1.0, 1.5, 2.9, 3.0, 4.4], [0, 1, 1, 0, 1, 0]
    table = counts(times, series, 2, 4.5, 1.0)  # steps (0.5, 1.5], (1.5, 2.5], (2.5, 3.5], (3.5, 4.5]
    assert table.tolist() == [[0.0, 2.0], [0.0, 0.0], [1.0, 1.0], [1.0, 0.0]]
    assert counts([], np.zeros(0, int), 2, 4.5, 1.0).shape == (0, 2)


def test_rates_are_means_before_there_is_enough_to_forecast_from() -> None:
    assert rates_per_s([0.0, 1.0, 2.0], [0, 0, 1], 2, 4.0, 2.0, 1).tolist() == [0.5, 0.25]
    assert rates_per_s([], np.zeros(0, int), 2, 4.0, 2.0, 1).tolist() == [0.0, 0.0]


def test_a_steady_stream_is_expected_to_go_on() -> None:
    times = np.arange(0.25, 40.0, 0.5)
    rates = rates_per_s(times, np.arange(len(times)) % 2, 2, 40.0, 2.0, 4)
    assert rates == pytest.approx([1.0, 1.0])


def test_expected_work_counts_what_comes_what_waits_and_what_is_free() -> None:
    c = cluster(2, slots=2)
    desk = Desk(c, RoundRobin())
    desk.set(0, backlog_s=5.0)
    desk.set(1, up=0)
    work = new_work(8)
    work["arrival_s"], work["units"] = np.arange(8) + 0.5, 3.0
    work["model_idx"] = work["adapter_idx"] = -1
    desk.at(8.0)
    found = expected(desk.seen(), past(work), work[:2], 2.0, 4.0)  # services of 3 s: 12 s ahead
    assert found.ahead_s == 12.0
    assert found.requests == pytest.approx([1.0 * 12.0 + 2.0])
    assert found.own_s.tolist() == [[3.0, 3.0]]
    assert found.capacity_s.tolist() == [2 * 12.0 - 5.0, 0.0]


def test_mean_loads_are_means_over_the_class() -> None:
    desk = Desk(C, RoundRobin(), n_requests=60)
    desk.state.resident[2, 0] = 1
    table = mean_loads_s(desk.seen(), desk.work)
    rows = loads_s(desk.seen(), desk.work)
    for k in range(3):
        assert table[k] == pytest.approx(rows[desk.work["class_idx"] == k].mean(axis=0))


def of(requests_: list[float], own_s: list[list[float]], capacity_s: list[float]) -> Expected:
    return Expected(np.array(requests_), np.array(own_s), np.array(capacity_s), 1.0)


def test_prices_of_two_nodes_are_those_of_the_programme() -> None:
    """The fast node takes 10 of 20 requests; its second is worth what it saves: one of the slow one's."""
    prices = node_prices(of([20.0], [[1.0, 2.0]], [10.0, 100.0]), np.zeros(2), 5.0)
    assert prices == pytest.approx([1.0, 0.0], abs=0.1)


def test_what_there_is_plenty_of_costs_nothing() -> None:
    assert node_prices(of([20.0], [[1.0, 2.0]], [50.0, 50.0]), np.zeros(2), 5.0) == pytest.approx([0.0, 0.0])
    assert node_prices(of([0.0], [[1.0, 2.0]], [50.0, 50.0]), np.ones(2), 5.0).tolist() == [0.0, 0.0]


def test_in_overload_prices_are_what_leaving_work_out_costs() -> None:
    """All of both nodes is used; what is left out costs 3 s, so a second is worth 2, and ½; smoothed."""
    prices = node_prices(of([100.0], [[1.0, 2.0]], [10.0, 10.0]), np.zeros(2), 3.0)
    assert prices == pytest.approx([2.0, 0.5], abs=0.25)


def test_a_class_keeps_others_from_the_only_node_that_serves_it() -> None:
    """Node 0 alone serves class 1, and has time for no more than that: class 0 is priced away."""
    inf = np.inf
    prices = node_prices(of([10.0, 10.0], [[1.0, 1.5], [1.0, inf]], [10.0, 100.0]), np.zeros(2), 5.0)
    assert prices[0] >= 0.4
    assert prices[1] == pytest.approx(0.0, abs=0.05)


def test_requests_of_a_class_that_never_came_change_nothing() -> None:
    r = requests(C, 50)
    desk = Desk(C, RoundRobin())
    desk.at(float(r.work["arrival_s"][-1]) + 1.0)
    only = r.work[r.work["class_idx"] == 0]
    found = expected(desk.seen(), past(only), only[:0], 1.0, 4.0)
    assert found.requests[0] > 0.0
    assert found.requests[1:].tolist() == [0.0, 0.0]
