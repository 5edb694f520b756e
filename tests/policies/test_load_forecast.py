"""load-forecast: levels, shares and rates by hand; its base with fresh reports; a gain with old ones."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
from test_planning_helpers import past

from support.builders import cluster, requests
from support.dispatch_by_hand import Desk
from trimtab.compiled.kernel import interpreted
from trimtab.domain.options import Options
from trimtab.domain.policy import Decider, Policy
from trimtab.domain.view import empty_plan, new_work
from trimtab.engine.simulator import run
from trimtab.errors import UsageError
from trimtab.policies import find
from trimtab.policies.load_aware.load_forecast import LoadForecast, draw_below, level_of
from trimtab.policies.shared.demand_forecast import FORECASTERS, forecast_means
from trimtab.policies.shared.selection import NOTES
from trimtab.policies.shared.waits import OVERDUE_FRAC

STALE = {"telemetry_period_s": 5.0, "dispatchers": 8}


def level(loads_s: list[float], service_s: list[float], n: float, slots: list[int] | None = None) -> float:
    """The level to which n requests fill the nodes."""
    desk = Desk(cluster(len(loads_s), slots=slots or 1), LoadForecast())
    desk.memory.floats[NOTES : NOTES + len(loads_s)] = memoryview(np.array(loads_s))
    plan = empty_plan()._replace(weights=np.array(service_s))
    return float(interpreted(level_of)(desk.seen(), plan, desk.memory.floats, n))


def test_requests_fill_the_least_loaded_nodes_to_one_level() -> None:
    assert level([0.0, 1.0, 5.0], [1.0, 1.0, 1.0], 3.0) == pytest.approx(2.0)  # 2 and 1 requests
    assert level([0.0, 1.0, 5.0], [1.0, 1.0, 1.0], 0.5) == pytest.approx(0.5)
    assert level([0.0, 1.0, 5.0], [1.0, 1.0, 1.0], 12.0) == pytest.approx(6.0)
    assert level([0.0, 0.0], [1.0, 0.25], 5.0) == pytest.approx(1.0)  # a fast node takes four a second
    assert level([0.0, 0.0], [1.0, 1.0], 4.0, slots=[1, 3]) == pytest.approx(1.0)
    assert level([0.0, np.inf], [1.0, 1.0], 2.0) == pytest.approx(2.0)  # one node can't take it
    assert level([np.inf, np.inf], [1.0, 1.0], 2.0) == -1.0


def test_the_level_solves_its_equation(rng: np.random.Generator) -> None:
    for _ in range(50):
        loads_s, service_s = rng.exponential(4.0, 20), rng.uniform(0.2, 3.0, 20)
        n = float(rng.exponential(30.0))
        found = level(loads_s.tolist(), service_s.tolist(), n)
        assert (np.maximum(0.0, found - loads_s) / service_s).sum() == pytest.approx(n)


def test_nodes_below_the_level_are_drawn_in_proportion_to_their_speed() -> None:
    desk = Desk(cluster(4, slots=[1, 2, 1, 1]), LoadForecast())
    desk.memory.floats[NOTES : NOTES + 4] = memoryview(np.array([0.0, 1.0, 9.0, 2.0]))
    plan = empty_plan()._replace(weights=np.array([1.0, 1.0, 1.0, 0.2]))
    u = (np.arange(800) + 0.5) / 800
    args = desk.seen(), plan, desk.memory.floats, 2.0
    drawn = [interpreted(draw_below)(*args, each) for each in u]
    assert np.bincount(drawn).tolist() == [100, 200, 0, 500]  # 1 : 2 : – : 5
    assert interpreted(draw_below)(*args[:3], -1.0, 0.5) == -1


class LeastLeft(Policy):
    """The reference: least work left and own service, per slot."""

    name: ClassVar[str] = "least-left"

    def choose(self, cluster: Any, request: Any) -> Any:
        left_s = cluster.anchor_s + cluster.backlog_s / cluster.slots - cluster.now_s
        overdue_s = OVERDUE_FRAC * cluster.outstanding_s / cluster.slots
        idle = cluster.in_flight < cluster.slots
        left_s = np.where(left_s > 0.0, left_s, np.where(idle, 0.0, overdue_s))
        return cluster.least(left_s + cluster.estimate_s(request) / cluster.slots, request)


@pytest.mark.parametrize("forecaster", FORECASTERS)
def test_with_fresh_reports_the_least_work_left_decides(forecaster: str) -> None:
    c = cluster(5, types=2, slots=2)
    r = requests(c, 300, load=0.9, noise=True)
    nodes = [
        run(c, r, Options(), decider, mode="interpreted").state.requests["node_idx"]
        for decider in (find(f"load-forecast(forecaster={forecaster})"), Decider.of(LeastLeft()))
    ]
    np.testing.assert_array_equal(*nodes)


def test_an_old_report_is_corrected_by_what_others_sent() -> None:
    """Four dispatchers, a report of 2 s ago, 4 requests a second: others sent 6, to a level of 4 s."""
    desk = Desk(cluster(3), LoadForecast())
    desk.state.contexts["n_dispatchers"], desk.state.contexts["reported_s"] = 4, 10.0
    desk.at(12.0)
    for j, load_s in enumerate((1.0, 3.0, 8.0)):
        desk.set(j, anchor_s=10.0, backlog_s=load_s, outstanding_s=load_s, in_flight=1, running=1)
    plan = empty_plan()._replace(weights=np.array([1.0, 1.0, 1.0]), params=np.array([4.0]))
    assert desk.decide([0.7]) == [0, 1, 2]  # no plan yet: by the report
    desk.follow(plan)
    assert desk.decide([0.4]) == [0, 1, 2]  # 2 + 4 + 6 − 2 · 1 = 2 · level: both are below it
    assert desk.decide([0.7]) == [1, 0, 2]
    desk.state.contexts["n_dispatchers"] = 1  # then there are no others
    assert desk.decide([0.7]) == [0, 1, 2]


def test_the_plan_has_the_rate_of_arrivals_and_the_services() -> None:
    c = cluster(2, types=2, speeds=[1.0, 2.0])
    desk = Desk(c, LoadForecast())
    desk.state.contexts["n_dispatchers"], desk.state.contexts["reported_s"] = 2, 0.0
    work = new_work(40)
    work["arrival_s"], work["units"] = np.arange(40) * 0.5 + 0.25, 3.0
    desk.at(20.0)
    plan = LoadForecast().plan(desk.seen(), past(work), work[:0], None)
    assert plan is not None
    assert plan.params == pytest.approx([2.0])
    assert plan.weights == pytest.approx([c.fixed_s[0, g] + 3.0 * c.unit_s[0, g] for g in c.type_idx])
    desk.state.contexts["n_dispatchers"] = 1
    assert LoadForecast().plan(desk.seen(), past(work), work[:0], None) is None


@pytest.mark.parametrize("forecaster", FORECASTERS)
def test_forecasters_repeat_a_constant_and_are_never_negative(forecaster: str) -> None:
    assert forecast_means(np.tile([3.0, 0.0], (20, 1)), 4, forecaster) == pytest.approx([3.0, 0.0], abs=1e-6)
    assert forecast_means(np.array([[4.0], [2.0]]), 4, forecaster) == pytest.approx([3.0])
    assert forecast_means(np.arange(30.0, 0.0, -1.5)[:, None], 40, forecaster)[0] >= 0.0


def test_holt_and_arima_follow_a_trend_and_arima_returns_to_its_mean() -> None:
    grows = np.arange(20.0)[:, None]
    assert min(forecast_means(grows, 1, name)[0] for name in ("holt", "arima")) > 19.0
    noise = np.random.default_rng(5).normal(size=400)
    series = 50.0 + np.array([sum(0.5**k * noise[t - k] for k in range(30)) for t in range(30, 400)])
    assert forecast_means(series[:, None], 100, "arima")[0] == pytest.approx(50.0, abs=0.5)


def test_a_forecaster_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UsageError, match="naive, ses"):
        LoadForecast(forecaster="oracle")


def test_old_reports_cost_it_much_less_than_its_base() -> None:
    """Twenty nodes, reports five services old: the base sends all to the same nodes."""
    c = cluster(20)
    ratios = []
    for seed in range(3):
        r = requests(c, 3_000, load=0.8, seed=seed)
        mean_s = [
            float(
                np.nanmean(
                    run(c, r, Options(**STALE), find(name), seed=seed, mode="compiled").state.requests[
                        "finish_s"
                    ]
                    - r.work["arrival_s"]
                )
            )
            for name in ("load-forecast", "least-expected-wait")
        ]
        ratios.append(mean_s[0] / mean_s[1])
    assert max(ratios) < 0.9
