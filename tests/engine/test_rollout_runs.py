"""Rollouts that start from runs of chains that are half done."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest

from engine.test_live_runs import ARRIVALS_S, Player
from engine.test_rollout import TICK, Planner, driven, dyadic
from support.builders import cluster, requests
from support.by_hand import asked, fault_table, once
from support.chains import Stage, after, chained
from trimtab.domain.chains import Flow
from trimtab.domain.cluster import Cluster
from trimtab.domain.options import Options
from trimtab.domain.planning import History, Runs, Variant
from trimtab.domain.policy import Decider
from trimtab.domain.requests import Requests, Status
from trimtab.domain.view import OUTAGE
from trimtab.engine.driver import Driver
from trimtab.engine.live_driver import LiveDriver
from trimtab.engine.live_runs import LiveRuns
from trimtab.engine.rollout import StateRollout
from trimtab.engine.run_row_writer import RunSpec, StageNeeds
from trimtab.engine.simulator import go_to
from trimtab.engine.state import STAGES
from trimtab.engine.told_runs import declared_runs, joined, last_of, runs_of
from trimtab.policies.catalogue import find

DIAMOND = {
    "first": Stage(1.0, output_gib=0.5),
    "each": Stage([0.5, 1.5, 0.25], after={"first": Flow.ALL}, output_gib=0.25),
    "then": Stage([1.0, 0.5, 0.25], after={"each": Flow.EACH}, output_gib=0.25),
    "side": Stage(0.5, after={"first": Flow.ALL}, output_gib=0.25),
    "skipped": Stage(2.0, after={"side": Flow.ALL}, is_skipped=True),
    "last": Stage(0.75, after={"then": Flow.ALL, "side": Flow.ALL}),
}


def case(
    queue_max: int = 1 << 20, n: int = 200, nic_gib_per_s: float = np.inf
) -> tuple[Cluster, Requests, Options]:
    c = cluster(6, types=2, speeds=[1.0, 2.0], rtt_s=0.0, queue_max=queue_max, nic_gib_per_s=nic_gib_per_s)
    c = replace(c, unit_s=np.array([[1.0, 0.5]]))
    r = dyadic(requests(c, n, load=0.15))
    r.work["payload_gib"] = 0.0
    return c, chained(c, r, DIAMOND), Options()


def history_of(driver: Driver) -> History:
    """What a planner that uses rollouts is told now."""
    driver.rollouts = driver.rollouts_for(Decider.of(Planner()))
    return driver.history()


def rollout_of(driver: Driver) -> StateRollout:
    past = history_of(driver)
    assert driver.rollouts is not None
    return driver.rollouts.from_state(driver.view(), past, driver.waiting())


def to_come(driver: Driver) -> np.ndarray:
    """The rest of the runs, as if they were known: each is as the first run was."""
    work = driver.state.work[driver.n_arrived : driver.n_requests].copy()
    for name in ("arrival_s", "deadline_s"):
        work[name] -= driver.now_s
    work["serial"] = 0
    return work


def paused(driver: Driver) -> np.ndarray:
    """The runs in flight, after all events of the time of the next one."""
    driver.advance(float("inf"), 1)
    driver.advance(driver.now_s)
    return np.flatnonzero(driver.state.requests["status"][: driver.n_arrived] == Status.RUNNING)


@pytest.mark.parametrize(
    ("queue_max", "spec", "nic_gib_per_s"),
    [
        (0, "least-expected-completion", np.inf),
        (1 << 20, "least-expected-completion", np.inf),
        (0, "late-binding", np.inf),
        (0, "downstream-aware", np.inf),
        (0, "downstream-aware", 2.0),  # outputs move, and copies of them stay
    ],
)
def test_it_is_the_simulation_that_goes_on_where_all_runs_are_alike(
    queue_max: int, spec: str, nic_gib_per_s: float
) -> None:
    policy = find(spec)[0]
    driver = driven(*case(queue_max, nic_gib_per_s=nic_gib_per_s), policy, 60.0)
    live = paused(driver)
    while (driver.state.requests["status"] == Status.TRANSFER).any():  # a rollout knows of none
        live = paused(driver)
    assert len(live) > 2
    future, now_s, n_before = to_come(driver), driver.now_s, driver.n_arrived
    told = rollout_of(driver)([Variant(policy)], future)[0]
    driver.advance()
    rows, arrival_s = driver.state.requests, driver.state.work["arrival_s"]
    assert (rows["status"][: driver.n_requests] == Status.FINISHED).all()
    after_s = (rows["finish_s"] - arrival_s)[n_before : driver.n_requests]
    np.testing.assert_allclose(told, np.append(rows["finish_s"][live] - now_s, after_s), atol=1e-9)


def test_lost_outputs_are_made_again_as_in_the_simulation() -> None:
    c, r, _ = case(0)
    begin_s, end_s = 62.02, 65.02
    options = Options(
        faults=fault_table(once(1, begin_s, end_s)), outages=np.array([(begin_s, end_s, 1)], OUTAGE)
    )
    policy = find("least-expected-completion")[0]
    driver = driven(c, r, options, policy, 60.0)
    live = paused(driver)
    future, now_s, n_before = to_come(driver), driver.now_s, driver.n_arrived
    told = rollout_of(driver)([Variant(policy)], future)[0]
    driver.advance()
    rows, arrival_s = driver.state.requests, driver.state.work["arrival_s"]
    assert driver.state.counts["recomputed_s"][0] > 0.0
    after_s = (rows["finish_s"] - arrival_s)[n_before : driver.n_requests]
    np.testing.assert_allclose(told, np.append(rows["finish_s"][live] - now_s, after_s), atol=1e-9)


def differing(r: Requests, known: np.ndarray) -> Requests:
    """The same requests, of which everything is different that is not known; `known` [rows of stages]."""
    chains = r.chains
    assert chains is not None
    truth, work = chains.truth.copy(), chains.work.copy()
    skipped, output_gib = chains.is_skipped.copy(), chains.output_gib.copy()
    truth["factor"][~known] = 7.0
    truth["units"][~known], work["units"][~known] = 5.0, 4.0
    work["estimate_s"][~known] = work["rank_s"][~known] = 3.0
    skipped[~known] ^= True
    output_gib[~known] = 9.0
    return replace(
        r, chains=replace(chains, truth=truth, work=work, is_skipped=skipped, output_gib=output_gib)
    )


def test_nothing_is_told_of_what_is_to_come() -> None:
    """Sizes, conditions and outputs of stages that are not known may be what they like."""
    c, r, options = case(0)
    assert r.chains is not None
    sums_s = np.tile([1.0, 2.25, 1.75, 0.5, 2.0, 0.75], len(r))
    declared = replace(r.chains, expected_s=sums_s, expected_gib=np.full(len(sums_s), 0.5))
    r = replace(r, chains=declared)
    policy = find("late-binding")[0]
    driver = driven(c, r, options, policy, 60.0)
    paused(driver)
    state, n = driver.state, len(r)
    known = state.groups["known"][state.stages["group"][n:]] == 1
    assert 0.2 < known.mean() < 0.8
    other = driven(c, differing(r, known), options, policy, driver.now_s)
    told, told_other = history_of(driver).runs, history_of(other).runs
    assert told is not None
    assert told_other is not None
    for name in Runs._fields:
        np.testing.assert_array_equal(getattr(told, name), getattr(told_other, name), err_msg=name)
    variants, future = [Variant(find("downstream-aware")[0])], to_come(driver)
    np.testing.assert_array_equal(*(rollout_of(d)(variants, future) for d in (driver, other)))


def test_runs_to_come_change_no_decision_before_they_come() -> None:
    """Also not through the rollouts of `auto`. Twin runs are equal."""
    c, r, options = case(0)
    assert r.chains is not None
    until, spec = 120, "auto(window=64,plan_period_s=2)"
    known = np.arange(len(r.chains.work)) < until * (len(r.chains.work) // len(r))
    drivers = [Driver(c, of, options, find(spec), mode="compiled") for of in (r, r, differing(r, known))]
    for driver in drivers:
        go_to(driver, float(r.work["arrival_s"][until]) - TICK)
    first, twin, other = ({name: d.state.requests[name] for name in ("node_idx", "start_s")} for d in drivers)
    assert drivers[0].planning.made > 2
    for name, values in first.items():
        np.testing.assert_array_equal(values, twin[name])
        np.testing.assert_array_equal(values, other[name])
    assert [d.switches for d in drivers] == [drivers[0].switches] * 3


def test_variants_start_from_the_same_state_also_in_another_process() -> None:
    driver = driven(*case(0), find("late-binding")[0], 60.0)
    paused(driver)
    future, past = to_come(driver), history_of(driver)
    a, b = (Variant(find(spec)[0]) for spec in ("random", "downstream-aware"))
    both = rollout_of(driver)([a, b, a], future, 0.3)
    np.testing.assert_array_equal(both[0], both[2])
    assert driver.rollouts is not None
    there = pickle.loads(pickle.dumps(driver.rollouts))
    told = pickle.loads(pickle.dumps((driver.view(), past, driver.waiting())))
    np.testing.assert_array_equal(there.from_state(*told)([b], future, 0.3)[0], both[1])
    assert both[1].mean() < both[0].mean()


def test_before_a_run_is_over_declared_runs_tell_what_follows() -> None:
    """One run in its first stage: what follows is that of the declared workload, else what is declared."""
    c, r, options = case(0, n=4)
    other = chained(c, requests(c, 3), DIAMOND)
    r.work["arrival_s"] = [0.0, 100.0, 200.0, 300.0]
    driver = Driver(c, r, options, find("late-binding"), mode="interpreted", declared=declared_runs(other, 6))
    driver.advance(0.125)
    rollout = rollout_of(driver)
    assert rollout.declared is not None
    assert (rollout.declared["serial"] < 0).all()
    policy = Variant(find("late-binding")[0])
    both = rollout([policy], rollout.declared[:1])[0]
    driver.advance()
    now_s = 0.125
    assert both[0] == pytest.approx(driver.state.requests["finish_s"][0] - now_s, abs=0.125)
    assert np.isfinite(both).all()


def test_what_came_without_stages_is_simulated_among_runs() -> None:
    c, r, options = case(0, n=40)
    assert r.chains is not None
    is_run, per_run = np.arange(40) % 2 == 0, len(r.chains.work) // 40
    kept = np.repeat(is_run, per_run)
    names = ("work", "truth", "output_gib", "is_skipped")
    chains = replace(
        r.chains,
        template_idx=np.where(is_run, 0, -1).astype(np.int32),
        counts=r.chains.counts[np.repeat(is_run, 6)],
        **{name: getattr(r.chains, name)[kept] for name in names},
    )
    policy = find("late-binding")[0]
    driver = driven(c, replace(r, chains=chains), options, policy, float(r.work["arrival_s"][20]))
    past = history_of(driver)
    assert past.runs is not None
    sizes = np.diff(past.runs.first_stage)
    assert set(sizes.tolist()) == {0, 6}
    future = past.came[-4:].copy()
    future["arrival_s"] = 1000.0 * np.arange(1, 5)  # each alone
    told = rollout_of(driver)([Variant(policy)], future)[0][-4:]
    of_runs, of_requests = told[sizes[-4:] == 6], told[sizes[-4:] == 0]
    alone = driven(*case(0, n=1), policy, np.inf).state
    assert of_runs == pytest.approx(alone.requests["finish_s"][0] - alone.work["arrival_s"][0])
    assert of_requests == pytest.approx(0.5 * future["units"][sizes[-4:] == 0])


def test_the_last_of_several_runs_are_as_they_were_alone() -> None:
    driver = driven(*case(0, n=40), find("late-binding")[0], np.inf)
    rows = np.arange(20)
    whole = runs_of(driver.state, rows)
    parts = [runs_of(driver.state, some) for some in (rows[:1], rows[:0], rows[1:13], rows[13:])]
    for made, expected in (
        (joined(parts), whole),
        (last_of(whole, 7), parts[3]),
        (last_of(whole, 99), whole),
    ):
        for name in Runs._fields:
            np.testing.assert_array_equal(getattr(made, name), getattr(expected, name), err_msg=name)


@pytest.mark.parametrize("until_s", [1.7, 12.0])
def test_a_live_driver_tells_of_its_runs_as_the_simulator_does(until_s: float) -> None:
    """The same runs at the same time: rollouts are equal. Later some of the runs have left."""
    c, units = cluster(2, types=2, queue_max=0), [1.0, 0.75, 0.5, 0.25]
    stages = {
        "list": Stage(units[0]),
        "draw": Stage([units[1]] * 3, after("list")),
        "name": Stage([units[2]] * 3, {"draw": Flow.EACH}),
        "film": Stage(units[3], after("draw", "name")),
    }
    r = chained(c, asked(c, ARRIVALS_S), stages)
    driver = driven(c, r, Options(), Planner(), until_s)
    assert r.chains is not None
    live = LiveDriver(
        c, Options(), Decider.of(Planner()), rows=80, mode="interpreted", host=STAGES,
        templates=r.chains.templates,
    )  # fmt: skip
    p = Player(live, LiveRuns(live, r.chains.templates))
    entered_runs = []
    for at_s in ARRIVALS_S:
        p.play(until_s=at_s)
        needs = [StageNeeds(0, many, u) for many, u in zip((1, 3, 3, 1), units, strict=True)]
        found = p.runs.enter(0, RunSpec(), needs, p.now_s)
        assert found is not None
        entered_runs.append(found)
    p.play(until_s=until_s)
    for run in entered_runs:
        if run.row in p.ended:
            p.runs.leave(run, 0)
    assert (len(p.ended) > 0) == (until_s > 10.0)
    told = []
    past = live.history(), driver.history()
    for one, host in zip(past, (live, driver), strict=True):
        future = one.came[[0, 0]].copy()
        future["arrival_s"] = [0.5, 2.0]
        assert host.rollouts is not None
        rollout = host.rollouts.from_state(host.view(), one, host.waiting())
        told.append(rollout([Variant(find("least-expected-completion")[0])], future)[0])
    np.testing.assert_allclose(told[0], told[1], atol=1e-9)
    assert len(told[0]) == 2 + len(ARRIVALS_S) - len(p.ended)
