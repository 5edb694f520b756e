"""Plans and decisions of the policies that plan, in cases whose optimum is known."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from test_planning_helpers import of, past

from support.builders import cluster, faults, requests
from support.by_hand import asked, fault_table, once, played, starts
from support.dispatch_by_hand import Desk
from trimtab.domain.options import Options
from trimtab.domain.policy import Decider
from trimtab.domain.requests import Reason
from trimtab.domain.view import BINDING, OUTAGE, Plan, empty_plan, new_work
from trimtab.engine.simulator import run
from trimtab.forecast.queueing import mgc
from trimtab.policies import find
from trimtab.policies.hybrid.hybrid_optimise import HybridOptimise, slowness
from trimtab.policies.optimising.dual_price import DualPrice
from trimtab.policies.optimising.integer_plan import IntegerPlan, quotas
from trimtab.policies.predictive.predictive import Predictive, needs_of_models, shared_out
from trimtab.policies.predictive.staffing import services_of_models_s, slots_needed, staffed
from trimtab.policies.predictive.watch import availability
from trimtab.policies.resource_aware.hungarian import Hungarian, slots_ahead
from trimtab.policies.static.round_robin import RoundRobin

INF = math.inf


def waiting(n: int, **columns: Any) -> np.ndarray:
    """Held requests: WORK rows."""
    work = new_work(n)
    work["serial"], work["units"] = np.arange(n), 1.0
    work["model_idx"] = work["adapter_idx"] = -1
    work["deadline_s"] = INF
    for name, values in columns.items():
        work[name] = values
    return work


def bound(plan: Plan | None) -> dict[int, int]:
    """Serial → node."""
    assert plan is not None
    return dict(zip(plan.binding["serial"].tolist(), plan.binding["node_idx"].tolist(), strict=True))


# hungarian


def test_hungarian_sends_to_the_quickest_idle_node_and_else_holds() -> None:
    desk = Desk(cluster(3, types=3), Hungarian())
    assert desk.decide() == [2, 1, 0]  # the third type is the fastest
    desk.set(2, in_flight=1)
    assert desk.decide() == [1, 0]
    desk.set(0, in_flight=1)
    desk.set(1, in_flight=1)
    assert desk.decide() == []


def test_hungarian_holds_what_is_promised_a_slot_until_that_expires() -> None:
    desk = Desk(cluster(2), Hungarian())
    binding = np.zeros(1, BINDING)
    binding["serial"], binding["expires_s"] = desk.work["serial"][0], 5.0
    desk.follow(empty_plan()._replace(binding=binding))
    desk.at(5.0)
    assert desk.decide() == []
    desk.at(5.1)
    assert desk.decide() == [0, 1]


def test_slots_are_told_soonest_first() -> None:
    desk = Desk(cluster(3, slots=[2, 3, 1]), Hungarian())
    desk.set(0, in_flight=1, running=1, backlog_s=6.0)  # one slot idle, one in 6 s
    desk.set(1, in_flight=3, running=3, backlog_s=12.0)  # spread over 2 · 4 s
    desk.set(2, up=0)
    node, free_s = slots_ahead(desk.seen())
    assert node.tolist() == [0, 1, 1, 0, 1]
    assert free_s.tolist() == [0.0, 2.0, 4.0, 6.0, 6.0]


def test_hungarian_gives_each_request_the_node_that_holds_its_model() -> None:
    c = cluster(2, models=2)
    desk = Desk(c, Hungarian())
    desk.state.resident[0, 1] = desk.state.resident[1, 0] = 1
    for j in range(2):
        desk.set(j, in_flight=1, running=1, backlog_s=3.0)
    plan = Hungarian().plan(desk.seen(), past(waiting(0)), waiting(2, model_idx=[0, 1]), None)
    assert bound(plan) == {0: 1, 1: 0}


def test_who_waited_longer_is_matched_first_where_slots_are_few() -> None:
    desk = Desk(cluster(1), Hungarian())
    desk.at(9.0)
    rows = waiting(3, arrival_s=[5.0, 1.0, 3.0])
    assert bound(Hungarian().plan(desk.seen(), past(rows), rows, None)) == {1: 0}
    short = waiting(2, arrival_s=[1.0, 2.0], units=[9.0, 1.0])
    assert bound(Hungarian().plan(desk.seen(), past(short), short, None)) == {1: 0}
    assert bound(Hungarian(ageing=9.0).plan(desk.seen(), past(short), short, None)) == {0: 0}


@pytest.mark.parametrize("seed", range(6))
def test_the_matching_is_the_best_of_all(seed: int) -> None:
    """Against every way to match four requests to three one-slot nodes."""
    rng = np.random.default_rng(seed)
    c = cluster(3, types=3, classes=2, models=2, unserved=[(1, 0)])
    desk = Desk(c, Hungarian())
    desk.state.resident[:] = rng.integers(0, 2, desk.state.resident.shape)
    for j in range(3):
        desk.set(j, in_flight=1, running=1, backlog_s=rng.uniform(0.0, 5.0))
    rows = waiting(4, class_idx=rng.integers(0, 2, 4), units=rng.exponential(2.0, 4), model_idx=[0, 1, 0, 1])
    desk.at(0.0)
    view = desk.seen()

    def cost_s(i: int, j: int) -> float:
        k, m = rows["class_idx"][i], rows["model_idx"][i]
        service_s = c.fixed_s[k, c.type_idx[j]] + c.unit_s[k, c.type_idx[j]] * rows["units"][i]
        load_s = 0.0 if view.resident[j, m] else c.load_s[m, c.type_idx[j]]
        return float(view.nodes.backlog_s[j] + load_s + service_s)

    best = min(
        (-sum(cost < INF for cost in costs), sum(cost for cost in costs if cost < INF))
        for nodes in itertools.permutations([0, 1, 2, None])
        if (costs := [INF if j is None else cost_s(i, j) for i, j in enumerate(nodes)])
    )
    found = bound(Hungarian().plan(view, past(rows), rows, None))
    assert (-len(found), sum(cost_s(i, j) for i, j in found.items())) == pytest.approx(best)


def test_hungarian_saves_the_loads_that_first_come_first_served_pays() -> None:
    """Both nodes are busy until 5 s with what their models are for; those that wait came crosswise."""
    c = cluster(2, models=2, memory_gib=7.0, load_s=2.0)
    r = asked(c, [0.0, 0.1, 1.0, 1.1], [3.0, 3.0, 1.0, 1.0], model_idx=[0, 1, 1, 0], key=[0, 1, 0, 0])
    d = run(c, r, Options(), Decider.of(Hungarian()), mode="interpreted")
    assert d.state.counts["model_loads"][0] == 2
    assert d.state.requests["node_idx"].tolist() == [0, 1, 1, 0]
    assert starts(d) == pytest.approx([0.0, 0.1, 5.1, 5.0])


# integer-plan


def test_quotas_are_the_optimum_of_the_integer_programme() -> None:
    """Class 1 is served by the fast group only, whose 8 s are enough for it and two of class 0."""
    work = of([4.0, 3.0], [[1.0, 2.0, 2.0], [2.0, INF, INF]], [8.0, 20.0, 20.0])
    found = quotas(work, np.array([0, 1, 1]), 9.0)
    assert found is not None
    assert found == pytest.approx(np.array([[2.0, 1.0, 1.0], [3.0, 0.0, 0.0]]))


def test_what_does_not_fit_is_left_out() -> None:
    found = quotas(of([10.0], [[1.0, 2.0]], [4.0, 4.0]), np.array([0, 1]), 3.0)
    assert found is not None
    assert found.tolist() == [[4.0, 2.0]]


def test_integer_plan_follows_its_quotas_round_by_round() -> None:
    desk = Desk(cluster(3), IntegerPlan())
    quota = np.array([[2.0, 0.0, 1.0]])
    desk.follow(empty_plan()._replace(quota=quota, params=np.array([1.0])))
    assert [desk.decide()[0] for _ in range(6)] == [0, 0, 2, 0, 0, 2]
    desk.set(0, up=0)
    assert desk.decide()[0] == 2


def test_quotas_give_way_to_a_long_wait() -> None:
    desk = Desk(cluster(2), IntegerPlan(patience=1.0))
    desk.follow(empty_plan()._replace(quota=np.array([[4.0, 0.0]]), params=np.array([1.0])))
    own_s = float(desk.work["estimate_s"][0])
    desk.set(0, in_flight=1, running=1, backlog_s=0.9 * own_s)
    assert desk.decide() == [0, 1]
    desk.set(0, in_flight=1, running=1, backlog_s=1.1 * own_s)
    assert desk.decide() == [1, 0]


# dual-price


def test_a_price_sends_work_to_the_node_where_it_takes_less_time() -> None:
    desk = Desk(cluster(2, types=2, speeds=[1.0, 2.0]), DualPrice())
    own_s = float(desk.work["estimate_s"][0])  # on the fast node; five thirds of that on the slow one
    desk.set(1, in_flight=1, running=1, backlog_s=own_s)
    assert desk.decide() == [0, 1]  # 5/3 against 1 + 1
    desk.follow(empty_plan()._replace(price=np.array([[1.0], [1.0]])))
    assert desk.decide() == [1, 0]  # 1 + 2 against 10/3


def test_dual_prices_are_carried_from_plan_to_plan() -> None:
    """Overload: the last price, kept for four fifths, and a fifth of what it should be."""
    desk = Desk(cluster(1), DualPrice())
    rows = waiting(200, arrival_s=np.linspace(0.0, 10.0, 200))
    desk.at(10.0)
    last = empty_plan()._replace(price=np.array([[1.0]]))
    plan = DualPrice().plan(desk.seen(), past(rows, plan=last), rows[:0], None)
    assert plan.price == pytest.approx(0.8 * 1.0 + 0.2 * 2.0, abs=0.05)  # left out at three times its time


# hybrid-optimise


def test_slowness_is_what_services_took_over_what_was_planned() -> None:
    """Two nodes, ten services of a second in a row on each; the second takes three for each."""
    desk = Desk(cluster(2), HybridOptimise())
    rows = waiting(20, arrival_s=0.0)
    finish_s = np.concatenate([np.arange(1.0, 11.0), 3.0 * np.arange(1.0, 11.0)])
    history = past(rows, node_idx=np.repeat(np.array([0, 1], np.int32), 10), finish_s=finish_s)
    usual, doubt_s = 40.0 / 20.0, 4.0
    expected = [(10.0 / usual + doubt_s) / (10.0 + doubt_s), (30.0 / usual + doubt_s) / (10.0 + doubt_s)]
    assert slowness(desk.seen(), history) == pytest.approx(expected)


def test_without_a_past_no_node_is_slow() -> None:
    desk = Desk(cluster(3), HybridOptimise())
    assert slowness(desk.seen(), past(waiting(0))).tolist() == [1.0, 1.0, 1.0]


def test_feedback_finds_the_slow_nodes() -> None:
    """Two of six nodes work at half speed, which no estimate knows of."""
    c = cluster(6)
    r = requests(c, 1500, load=0.7)
    slow = faults([], [0, 1], mtbf_s=INF, mttr_s=0.0)
    slow["start_s"], slow["end_s"], slow["mtbf_s"] = 0.0, 1e9, INF

    def mean_s(name: str) -> float:
        state = run(c, r, Options(faults=slow), find(name), mode="interpreted").state
        return float((state.requests["finish_s"] - r.work["arrival_s"]).mean())

    assert mean_s("hybrid-optimise") < 0.95 * mean_s("dual-price")  # .92 over eight seeds


# predictive


@pytest.mark.parametrize(("rate", "mean_s", "scv"), [(0.3, 1.0, 1.0), (9.0, 2.0, 0.2), (40.0, 0.5, 3.0)])
def test_slots_are_the_fewest_at_which_waits_are_short(rate: float, mean_s: float, scv: float) -> None:
    first = next(c for c in range(1, 999) if mgc(c, rate, mean_s, scv).wait_s <= 0.25 * mean_s)
    assert slots_needed(rate, mean_s, scv, 0.25) == first


def test_who_has_the_fewest_nodes_chooses_first_and_what_is_left_is_for_all() -> None:
    desk = Desk(cluster(6, classes=2), RoundRobin())
    own_s = [[1.0] * 6, [INF, INF, INF, 1.0, 1.0, 1.0]]
    rate = np.array([1.0, 1.0])
    work = of([1.0, 1.0], own_s, [9.0] * 6)
    needed = slots_needed(1.0, 1.0, 1.0, 1.0)
    eligible = shared_out(desk.seen(), work, rate, np.ones(2), 1.0)
    assert needed == 2
    assert eligible.tolist() == [[1, 1, 1, 0, 0, 1], [0, 0, 0, 1, 1, 1]]


def test_where_there_is_too_little_all_get_their_share() -> None:
    desk = Desk(cluster(4, classes=2), RoundRobin())
    work = of([9.0, 9.0], [[1.0] * 4] * 2, [9.0] * 4)
    eligible = shared_out(desk.seen(), work, np.array([9.0, 9.0]), np.ones(2), 0.25)
    assert eligible.sum(axis=1).tolist() == [2, 2]
    assert eligible.sum(axis=0).tolist() == [1, 1, 1, 1]


def placement_of(
    desk: Desk, need_slots: list[float], service_s: list[list[float]], memory_gib: float = 1.0
) -> list[list[int]]:
    """What nodes are to hold [nodes, items]."""
    room_gib = np.full(len(desk.nodes), memory_gib)
    found = staffed(desk.seen(), np.array(need_slots), np.array(service_s), room_gib)
    assert (found.slots.sum(axis=0) <= desk.nodes["slots"]).all()
    placement: list[list[int]] = found.placement.tolist()
    return placement


def test_models_stay_where_they_are_while_these_nodes_are_enough() -> None:
    desk = Desk(cluster(4, models=2), RoundRobin())
    desk.state.item_gib[:] = 1.0
    desk.state.resident[[1, 3], 0] = desk.state.resident[2, 1] = 1
    assert placement_of(desk, [2.0, 1.0], [[1.0] * 4] * 2) == [[0, 0], [1, 0], [0, 1], [1, 0]]
    assert placement_of(desk, [1.0, 1.0], [[1.0] * 4] * 2) == [[0, 0], [1, 0], [0, 1], [0, 0]]


def test_a_model_that_lacks_slots_is_loaded_where_no_needed_one_is() -> None:
    """Node 2 keeps model 1; nodes 0 and 3 are free, and node 3 serves model 0 faster."""
    desk = Desk(cluster(4, models=2), RoundRobin())
    desk.state.item_gib[:] = 1.0
    desk.state.resident[1, 0] = desk.state.resident[2, 1] = desk.state.resident[3, 1] = 1
    service_s = [[2.0, 2.0, 2.0, 1.0], [1.0] * 4]
    assert placement_of(desk, [2.0, 1.0], service_s) == [[0, 0], [1, 0], [0, 1], [1, 0]]
    desk.set(3, up=0)
    assert placement_of(desk, [2.0, 1.0], service_s) == [[1, 0], [1, 0], [0, 1], [0, 0]]


def test_two_models_share_a_node_that_has_slots_and_room_for_both() -> None:
    desk = Desk(cluster(1, slots=4, models=2), RoundRobin())
    desk.state.item_gib[:] = 1.0
    desk.state.resident[0, 0] = 1
    assert placement_of(desk, [2.0, 2.0], [[1.0], [1.0]], memory_gib=2.0) == [[1, 1]]
    assert placement_of(desk, [2.0, 2.0], [[1.0], [1.0]], memory_gib=1.5) == [[1, 0]]


def test_a_model_needs_the_slots_of_its_own_queue() -> None:
    """Two requests a second of 1 s for model 1, for long; none for model 0."""
    desk = Desk(cluster(8, models=2), RoundRobin())
    desk.at(100.0)
    rows = waiting(200, arrival_s=np.arange(200) * 0.5 + 0.25, model_idx=1)
    service_s = services_of_models_s(desk.seen(), rows)
    assert np.isinf(service_s[0]).all()
    need = needs_of_models(desk.seen(), rows, service_s, Predictive(wait_frac=0.25))
    assert need.tolist() == [0.0, slots_needed(2.0, float(service_s[1, 0]), 1.0, 0.25)]


def test_loads_ahead_of_a_daily_cycle_save_waiting() -> None:
    """Two models of one a node, whose demand takes turns: six requests of ten become nine, and two."""
    c = cluster(8, models=2, memory_gib=7.0, load_s=20.0)
    n, day_s = 4_000, 600.0
    ratios = []
    for seed in range(2):
        rng = np.random.default_rng(seed)
        arrival_s = np.cumsum(rng.exponential(0.4, n))
        share = 0.5 + 0.45 * np.sin(2.0 * np.pi * arrival_s / day_s)
        model = (rng.random(n) > share).astype(np.int64)
        r = asked(c, arrival_s.tolist(), rng.lognormal(0.0, 0.5, n).tolist(), model_idx=model, key=model)
        mean_s = [
            np.nanmean(run(c, r, Options(), decider, mode="compiled").state.requests["finish_s"] - arrival_s)
            for decider in (find("predictive(admission=false)"), find("least-expected-completion"))
        ]
        ratios.append(mean_s[0] / mean_s[1])
    assert max(ratios) <= 0.97


def test_planned_outages_and_flaky_nodes_lose_less_work() -> None:
    """Every ten services another node is down for five; a quarter of the nodes fail all the time."""
    c = cluster(8, types=1)
    ratios, lost = [], []
    for seed in range(3):
        r = requests(c, 3_000, load=0.5, seed=seed)
        end_s = float(r.work["arrival_s"][-1])
        begins_s = np.arange(20.0, end_s, 20.0)
        outages = np.array([(t, t + 10.0, k % 6) for k, t in enumerate(begins_s)], OUTAGE)
        planned = [once(int(o["node_idx"]), o["start_s"], o["end_s"]) for o in outages]
        flaky = [(0.0, 0.0, 0.0, 15.0, 3.0, j, 0, 0, 0, 0.0, 0) for j in (6, 7)]
        options = Options(faults=fault_table(*planned, *flaky), outages=outages, max_retries=100)
        ends = [
            run(c, r, options, find(name), seed=seed, mode="compiled").state
            for name in ("predictive(admission=false,outside=0)", "least-expected-completion")
        ]
        mean_s = [np.nanmean(end.requests["finish_s"] - r.work["arrival_s"]) for end in ends]
        ratios.append(mean_s[0] / mean_s[1])
        lost.append(ends[0].counts["retries"][0] / ends[1].counts["retries"][0])
    assert np.mean(lost) < 0.9
    assert np.mean(ratios) < 1.0


def test_a_planner_counts_failures_that_were_not_planned() -> None:
    desk = Desk(cluster(3, types=1), Predictive())
    desk.state.contexts["now_s"] = 10.0
    _, params = availability(desk.seen(), np.zeros(0))
    desk.set(1, up=0)
    desk.at(20.0)
    price, params = availability(desk.seen(), params)
    desk.at(30.0)
    price, params = availability(desk.seen(), params)
    assert params[0] == 30.0
    assert params[4:7].tolist() == [0.0, 1.0, 0.0]
    assert params[7:].tolist() == [30.0, 20.0, 30.0]
    assert price[:, 0] == pytest.approx([1 / (80 + 30), 2 / (80 + 20), 1 / (80 + 30)])


def test_work_that_a_planned_outage_would_cut_short_goes_elsewhere() -> None:
    desk = Desk(cluster(2), Predictive())
    own_s = float(desk.work["estimate_s"][0])
    price = np.array([[0.0, 0.5 * own_s, 9.0 * own_s], [0.0, INF, INF]])
    plan = empty_plan()._replace(eligible=np.ones((1, 2), np.uint8), price=price)
    desk.follow(plan)
    assert desk.decide() == [1, 0]
    price[0, 1] = 1.5 * own_s  # it is done before
    desk.follow(plan._replace(price=price))
    assert desk.decide() == [0, 1]
    price[0, 0] = 0.1
    desk.follow(plan._replace(price=price))
    assert desk.decide() == [1, 0]  # the other one does not fail


def test_predictive_rejects_what_no_node_can_finish_in_time() -> None:
    desk = Desk(cluster(2, types=2, speeds=[1.0, 2.0]), Predictive())
    own_s = float(desk.work["estimate_s"][0])
    desk.work["deadline_s"][0] = 1.5 * own_s
    assert desk.decide() == [1, 0]
    desk.set(1, in_flight=1, running=1, backlog_s=own_s)
    assert desk.answer() == -int(Reason.POLICY)
    desk.work["deadline_s"][0] = INF
    assert desk.decide() == [0, 1]
    desk.adopt(Predictive(admission=False))
    desk.work["deadline_s"][0] = 1.5 * own_s
    assert desk.decide() == [0, 1]


def test_nodes_set_aside_for_others_cost_a_part_of_a_service() -> None:
    desk = Desk(cluster(2), Predictive(outside=0.5))
    desk.follow(empty_plan()._replace(eligible=np.array([[0, 1]], np.uint8)))
    assert desk.decide() == [1, 0]
    own_s = float(desk.work["estimate_s"][0])
    desk.set(1, in_flight=1, running=1, backlog_s=0.6 * own_s)
    assert desk.decide() == [0, 1]


def test_without_arrivals_there_is_no_plan() -> None:
    desk = Desk(cluster(2), Predictive())
    assert Predictive().plan(desk.seen(), past(waiting(0)), waiting(0), None) is None
    assert Hungarian().plan(desk.seen(), past(waiting(0)), waiting(0), None) is None
    assert played(cluster(1), asked(cluster(1), [0.0]), policy=Predictive()).n_arrived == 1
