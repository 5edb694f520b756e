"""A rollout from a reported state against the simulation that goes on from there."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest

from support.builders import cluster, requests
from support.by_hand import fault_table, once
from trimtab.domain.cluster import Cluster
from trimtab.domain.needs import Need
from trimtab.domain.options import OnRefusal, Options
from trimtab.domain.planning import Variant
from trimtab.domain.policy import Decider, Policy
from trimtab.domain.requests import Requests, Status
from trimtab.domain.view import OUTAGE, Memory, empty_plan
from trimtab.engine.driver import Driver
from trimtab.engine.rollout import StateRollout
from trimtab.errors import PolicyError
from trimtab.policies.catalogue import find
from trimtab.policies.load_aware.late_binding import LateBinding

TICK = 2.0**-10


@dataclass(frozen=True)
class Planner(Policy):
    """Sends to the node with the fewest requests; uses rollouts."""

    needs: ClassVar[frozenset[Need]] = frozenset({Need.ROLLOUT})

    @staticmethod
    def dispatch(view: Any, plan: Any, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        ranking[0] = min(range(view.context.n_nodes), key=lambda j: (view.nodes.in_flight[j], j))
        return 1


def dyadic(r: Requests) -> Requests:
    """Times and sizes in whole ticks, so that every sum of them is exact."""
    for name in ("arrival_s", "units", "deadline_s"):
        r.work[name] = np.round(r.work[name] / TICK) * TICK
    r.truth["units"] = r.work["units"]
    return r


def case(name: str) -> tuple[Cluster, Requests, Options]:
    """Slots one by one and speeds that are powers of 2; estimates are right."""
    kinds: dict[str, dict[str, Any]] = {
        "queues": {},
        "held": {"queue_max": 1},
        "models": {"models": 3, "memory_gib": 13.0},
    }
    c = cluster(4, types=2, speeds=[1.0, 2.0], rtt_s=0.0, **kinds[name])
    c = replace(c, load_s=np.round(c.load_s / TICK) * TICK, unit_s=np.array([[1.0, 0.5]]))
    return c, dyadic(requests(c, 300, load=0.9)), Options()


def driven(c: Cluster, r: Requests, options: Options, policy: Policy, until_s: float) -> Driver:
    """A run up to a time, by a policy that uses rollouts."""
    driver = Driver(c, r, options, Decider.of(policy), mode="interpreted")
    driver.advance(until_s)
    return driver


def rollout_of(driver: Driver) -> StateRollout:
    """What a planner would be given now."""
    rollouts = driver.rollouts_for(Decider.of(Planner()))
    assert rollouts is not None
    return rollouts.from_state(driver.view(), driver.history(), driver.waiting())


def to_come(driver: Driver) -> np.ndarray:
    """The rest of the work, as if it were known."""
    work = driver.state.work[driver.n_arrived :].copy()
    for name in ("arrival_s", "deadline_s"):
        work[name] -= driver.now_s
    return work


@pytest.mark.parametrize("name", ["queues", "held", "models"])
@pytest.mark.parametrize("spec", ["least-expected-completion", "least-connections", "cost-index"])
def test_it_is_the_simulation_that_goes_on_where_the_state_can_be_told_exactly(name: str, spec: str) -> None:
    policy = find(spec)[0]
    driver = driven(*case(name), policy, 35.0)
    driver.advance(float("inf"), 1)  # up to an event: the view is of its time
    future, waiting = to_come(driver), driver.waiting()
    n_before, now_s = driver.n_arrived, driver.now_s
    assert driver.state.counts["in_nodes"][0] > 3
    assert (len(waiting) > 0) == (name == "held")
    told = rollout_of(driver)([Variant(policy)], future)[0]
    driver.advance()
    rows = driver.state.requests
    assert (rows["status"] == Status.FINISHED).all()
    after_s = rows["finish_s"][n_before:] - driver.state.work["arrival_s"][n_before:]
    np.testing.assert_array_equal(told[len(waiting) :], after_s)
    waiting_finish_s = rows["finish_s"][waiting["serial"]]
    np.testing.assert_array_equal(told[: len(waiting)], waiting_finish_s - now_s)


@pytest.mark.parametrize("begins_s", [0.0, 35.0, 60.0])
@pytest.mark.parametrize("ageing", [0.1, 4.0])
def test_held_requests_are_compared_by_their_age_as_in_the_simulation(ageing: float, begins_s: float) -> None:
    policy = replace(LateBinding(), ageing=ageing)
    driver = driven(*case("models"), policy, begins_s)
    driver.advance(float("inf"), 1 if begins_s else 0)  # up to an event: the view is of its time
    now_s, waiting, n_before = driver.now_s, driver.waiting(), driver.n_arrived
    others = [Variant(find(spec)[0]) for spec in ("least-connections", "late-binding")]
    told = rollout_of(driver)([Variant(policy), *others], to_come(driver))[0]
    driver.advance()
    rows = np.concatenate([waiting["serial"], np.arange(n_before, len(driver.state.work))])
    since_s = np.maximum(driver.state.work["arrival_s"][rows], now_s)
    np.testing.assert_allclose(told, driver.state.requests["finish_s"][rows] - since_s, atol=1e-9)


def test_variants_are_simulated_from_the_same_state_one_after_the_other() -> None:
    driver = driven(*case("models"), Planner(), 35.0)
    rollout, future = rollout_of(driver), to_come(driver)
    a, b = (Variant(find(spec)[0]) for spec in ("random", "least-expected-wait"))
    both = rollout([a, b, a], future)
    np.testing.assert_array_equal(both[0], both[2])
    np.testing.assert_array_equal(both[1], rollout([b], future)[0])
    assert both[1].mean() < both[0].mean()


def test_a_plan_counts() -> None:
    driver = driven(*case("queues"), Planner(), 35.0)
    prices = empty_plan()._replace(params=np.array([0.0, 0.0, 0.0, 1e6]))
    policy = find("cost-index")[0]
    plain, dear = rollout_of(driver)([Variant(policy), Variant(policy, prices)], to_come(driver))
    assert dear.mean() > plain.mean()


def test_node_time_may_count_as_seconds() -> None:
    """Of one node at a dollar an hour, whose requests start one after the other."""
    c = cluster(1)
    driver = driven(c, requests(c, 40), Options(), Planner(), 0.0)
    variants, future = [Variant(find("round-robin")[0])], to_come(driver)
    plain, priced = (rollout_of(driver)(variants, future, s_per_usd=s)[0] for s in (0.0, 3600.0))
    np.testing.assert_allclose(priced - plain, future["units"])


@pytest.mark.parametrize("slots", [1, 3])
def test_with_several_slots_and_old_reports_it_comes_near(slots: int) -> None:
    c = cluster(6, types=2, slots=slots, models=2, zones=2)
    r = requests(c, 1500, load=0.8, noise=True)
    options = Options(dispatchers=2, telemetry_period_s=0.5, telemetry_delay_s=0.25)
    policy = find("power-of-d")[0]
    driver = driven(c, r, options, policy, r.work["arrival_s"][500])
    future, n_before = to_come(driver), driver.n_arrived
    told = rollout_of(driver)([Variant(policy)], future)[0]
    driver.advance()
    after_s = (driver.state.requests["finish_s"] - driver.state.work["arrival_s"])[n_before:]
    assert np.isfinite(told).all()
    assert told[-len(after_s) :].mean() == pytest.approx(after_s.mean(), rel=0.1)


def test_what_arrives_may_differ_from_its_estimates_alike_for_all() -> None:
    """On nodes that never queue, completion is service: its factors have mean 1 and the spread asked for."""
    c = cluster(4000)
    r = requests(c, 4000, load=0.9)
    r.work["units"] = 1.0
    rollout = rollout_of(driven(c, r, Options(), find("round-robin")[0], 0.0))
    r.work["arrival_s"] = 0.0
    variants = [Variant(find("round-robin")[0])] * 2
    exact, noisy = rollout(variants, r.work), rollout(variants, r.work, 0.3)
    np.testing.assert_array_equal(noisy[0], noisy[1])
    factor = noisy[0] / exact[0]
    assert factor.mean() == pytest.approx(1.0, abs=4.0 * 0.3 / np.sqrt(len(factor)))
    assert factor.std() == pytest.approx(0.3, rel=0.1)


def test_what_is_not_served_is_nan() -> None:
    c = cluster(2, queue_max=0)
    r = requests(c, 200, load=3.0)
    options = Options(on_refusal=OnRefusal.REJECT)
    driver = driven(c, r, options, Planner(), 5.0)
    told = rollout_of(driver)([Variant(find("least-connections")[0])], to_come(driver))[0]
    assert 0.2 < np.isnan(told).mean() < 0.9


def test_requests_that_are_not_in_the_history_count_by_what_their_node_reports() -> None:
    driver = driven(*case("queues"), Planner(), -1.0)
    view = driver.view()
    view.nodes.in_flight[:] = view.nodes.running[:] = [1, 0, 2, 0]
    view.nodes.backlog_s[:] = view.nodes.outstanding_s[:] = [4.0, 0.0, 10.0, 0.0]
    rollouts = driver.rollouts_for(Decider.of(Planner()))
    assert rollouts is not None
    future = driver.state.work[:1].copy()
    future["arrival_s"], future["units"], future["estimate_s"] = 1.0, 2.0, 1.0
    to = [empty_plan()._replace(params=np.array([float(j)])) for j in range(4)]
    rollout = rollouts.from_state(view, driver.history(), driver.waiting())
    told = rollout([Variant(Sender(), plan) for plan in to], future)[:, 0]
    np.testing.assert_allclose(told, [4.0 - 1.0 + 2.0, 1.0, 10.0 - 1.0 + 2.0, 1.0])


@dataclass(frozen=True)
class Sender(Policy):
    """To the node that the plan says."""

    @staticmethod
    def dispatch(view: Any, plan: Any, work: Any, memory: Any, draws: Any, ranking: Any) -> int:
        ranking[0] = int(plan.params[0])
        return 1 if plan.params[0] < 5 else 10**6


def test_nodes_that_are_down_stay_down() -> None:
    c, r, options = case("queues")
    driver = driven(c, r, options, Planner(), -1.0)
    driver.state.nodes["up"] = [0, 1, 1, 1]
    policy = find("least-connections")[0]
    told = rollout_of(driver)([Variant(policy)], to_come(driver))[0]
    assert np.isfinite(told).all()
    driver.state.nodes["up"] = 0
    assert np.isnan(rollout_of(driver)([Variant(policy)], to_come(driver))).all()


def test_a_variant_that_decides_badly_is_named() -> None:
    driver = driven(*case("queues"), Planner(), -1.0)
    bad = Variant(Sender(), empty_plan()._replace(params=np.array([9.0])))
    with pytest.raises(PolicyError, match=r"Sender.*answered 1000000.*rollout"):
        rollout_of(driver)([bad], to_come(driver))


def test_a_rollout_after_one_that_broke_off_begins_anew() -> None:
    driver = driven(*case("models"), Planner(), 35.0)
    variants, future = [Variant(find("least-expected-wait")[0])], to_come(driver)
    bad = Variant(Sender(), empty_plan()._replace(params=np.array([9.0])))
    rollout = rollout_of(driver)
    before = rollout(variants, future)
    with pytest.raises(PolicyError):
        rollout([*variants, bad], future)
    np.testing.assert_array_equal(rollout([*variants, variants[0]], future), [before[0], before[0]])


def test_it_goes_to_another_process_and_is_known_there_from_plan_to_plan() -> None:
    driver = driven(*case("held"), Planner(), 40.0)
    rollouts = driver.rollouts_for(Decider.of(Planner()))
    there, again = (pickle.loads(pickle.dumps(rollouts)) for _ in range(2))
    assert there is again
    told = driver.view(), driver.history(), driver.waiting()
    variants, future = [Variant(find("least-connections")[0])], to_come(driver)
    assert rollouts is not None
    in_process = there.from_state(*told)(variants, future)
    np.testing.assert_array_equal(in_process, rollouts.from_state(*told)(variants, future))


def test_a_rollout_has_the_planned_outages_to_come() -> None:
    """It is the run that goes on from there, in which the node is down at those times."""
    c, r, _ = case("queues")
    at_s = float(r.work["arrival_s"][100])
    begin_s, end_s = (float(r.work["arrival_s"][k]) + TICK / 2 for k in (130, 200))
    outages = np.array([(0.0, 0.5 * TICK, 2), (begin_s, end_s, 1)], OUTAGE)
    options = Options(faults=fault_table(once(1, begin_s, end_s)), outages=outages)
    driver = driven(c, r, options, Planner(), at_s)
    found_s = rollout_of(driver)([Variant(Planner())], to_come(driver))[0]
    driver.advance(float("inf"))
    rows = driver.state.requests[-len(found_s) :]
    assert driver.state.counts["retries"][0] > 0
    expected_s = rows["finish_s"] - driver.state.work["arrival_s"][-len(found_s) :]
    assert found_s == pytest.approx(expected_s, rel=1e-9)
    unaware = driven(c, r, replace(options, outages=None), Planner(), at_s)
    without_s = rollout_of(unaware)([Variant(Planner())], to_come(unaware))[0]
    assert np.nanmean(without_s) < np.nanmean(found_s)
