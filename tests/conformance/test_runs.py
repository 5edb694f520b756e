"""What holds for every policy in every case: determinism, conservation, capacity, sound decisions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.builders import cluster, requests, run
from support.conformance_cases import CASES, SPECS, covering, in_turn, pair
from support.invariants import check_tree
from trimtab.compiled.kernel import interpreted, is_kernel
from trimtab.domain.options import OnRefusal, Options
from trimtab.domain.policy import Decider, Policy, members
from trimtab.domain.requests import Reason, Status
from trimtab.domain.view import MAX_RANKED, can_take
from trimtab.engine.driver import Driver
from trimtab.engine.loop import PLAN_DUE, REACHED
from trimtab.engine.state import State
from trimtab.policies import names, policy_class

RECORDED = ("requests", "nodes", "hidden", "counts")

# They wait for a nearer node, for one that is not reserved, or for one of a few, although others would do.
HOLD_BY_THEMSELVES = {"downstream-aware", "locality", "priority-reservation", "sparrow"}

every_policy = pytest.mark.parametrize("spec", SPECS)


def assert_same(a: State, b: State) -> None:
    for name in RECORDED:
        one, other = getattr(a, name), getattr(b, name)
        for field in one.dtype.names:
            np.testing.assert_array_equal(one[field], other[field], err_msg=f"{name}.{field}", strict=True)


@covering(0)
def test_compiled_equals_interpreted_bit_for_bit(spec: str, case: str) -> None:
    policy, order = pair(spec)
    assert is_kernel(policy.dispatch)
    assert is_kernel(order.order)
    runs = [run(*CASES[case](), *pair(spec), seed=5, compiled=compiled) for compiled in (True, False)]
    assert_same(*runs)


@every_policy
def test_twin_runs_are_identical_even_with_the_same_policy_objects(spec: str) -> None:
    policies = pair(spec)
    first = run(*CASES["stale"](), *policies, compiled=True)
    assert_same(first, run(*CASES["stale"](), *policies, compiled=True))
    assert_same(first, run(*CASES["stale"](), *pair(spec), compiled=True))


class Watched(Policy):
    """Passes on what another policy decides, after a look at it."""

    def __init__(self, policy: Policy) -> None:
        object.__setattr__(self, "_policy", policy)
        self.draws, self.plan_period_s = policy.draws, policy.plan_period_s
        self.init, self.plan, self.order = policy.init, policy.plan, policy.order  # type: ignore[method-assign]
        decide, able = interpreted(policy.dispatch), interpreted(can_take)
        self.needs, self.compares = policy.needs, policy.compares  # type: ignore[misc]
        self.degrades = policy.degrades  # type: ignore[misc]
        self.watched = tuple(Watched(candidate) for candidate in policy.candidates)
        self._own_decisions = 0

        def dispatch(view: Any, plan: Any, work: Any, memory: Any, draws: Any, ranking: Any) -> int:
            count = decide(view, plan, work, memory, draws, ranking)
            assert count <= MAX_RANKED
            for j in ranking.node_idx[: max(count, 0)]:
                assert 0 <= j < view.context.n_nodes
                assert able(view, work, j), f"node {j} can't take request {work.serial} as far as is seen"
            self._own_decisions += 1
            return int(count)

        self.dispatch = dispatch  # type: ignore[method-assign]

    @property
    def candidates(self) -> tuple[Policy, ...]:
        return self.watched

    @property
    def decisions(self) -> int:
        return self._own_decisions + sum(candidate.decisions for candidate in self.watched)


@covering(1)
def test_decisions_name_nodes_that_could_take_the_work(spec: str, case: str) -> None:
    policy, order = pair(spec)
    watched = Watched(policy)
    run(*CASES[case](), watched, watched if order is policy else order)
    assert watched.decisions > 0


class AsksTwice(Policy):
    """Decides as another policy that compares, which it asks about an earlier request first."""

    def __init__(self, policy: Policy) -> None:
        self.draws, self.compares, self.init = policy.draws, policy.compares, policy.init  # type: ignore[misc, method-assign]
        self.plan_period_s, self.plan = policy.plan_period_s, policy.plan  # type: ignore[method-assign]
        self.needs, self.degrades = policy.needs, policy.degrades  # type: ignore[misc]
        self.order = policy.order  # type: ignore[method-assign]
        decide, earlier = interpreted(policy.dispatch), []

        def dispatch(view: Any, plan: Any, work: Any, memory: Any, draws: Any, ranking: Any) -> int:
            if earlier:
                decide(view, plan, earlier[-1], memory, draws, ranking)
            earlier[:] = [work]
            return int(decide(view, plan, work, memory, draws, ranking))

        self.dispatch = dispatch  # type: ignore[method-assign]


@covering(4, specs=[name for name in names("dispatch") if policy_class(name).compares])
def test_a_comparison_leaves_no_trace_in_the_memory(spec: str, case: str) -> None:
    policy, order = pair(spec)
    twice = AsksTwice(policy)
    assert_same(run(*CASES[case](), twice, twice), run(*CASES[case](), policy, order))


def check_conservation(state: State) -> None:
    counts, status = state.counts[0], state.requests["status"]
    ended = {"finished": Status.FINISHED, "rejected": Status.REJECTED, "cancelled": Status.CANCELLED}
    for name, value in (ended | {"lost": Status.LOST}).items():
        assert counts[name] == (status == value).sum()
    in_flight = ((status > Status.PENDING) & (status < Status.FINISHED)).sum()
    assert counts["in_system"] == in_flight
    assert counts["arrived"] == (status != Status.PENDING).sum()


def check_capacity(state: State) -> None:
    nodes, rows = state.nodes, state.requests
    assert (nodes["running"] <= nodes["slots"]).all()
    assert (nodes["room"] >= 0).all()
    running = rows["node_idx"][rows["status"] == Status.RUNNING]
    np.testing.assert_array_equal(np.bincount(running, minlength=len(nodes)), nodes["running"])


def advance_planning(driver: Driver, until_s: float) -> None:
    """Let everything happen until then, plans included, as the simulator does."""
    while (code := driver.advance(until_s)) != REACHED:
        assert code == PLAN_DUE
        if (plan := driver.make_plan()) is not None:
            driver.adopt(plan, driver.now_s)


@covering(2)
def test_conservation_and_capacity_at_every_moment(spec: str, case: str) -> None:
    c, r, options = CASES[case]()
    policy, order = pair(spec)
    driver = Driver(c, r, options, Decider.of(policy, order), seed=5, mode="interpreted")
    for until_s in np.linspace(0.0, r.work["arrival_s"][-1], 60):
        advance_planning(driver, until_s)
        check_conservation(driver.state)
        check_capacity(driver.state)


@in_turn(SPECS, ["queued"])
def test_limits_of_queues_hold_at_every_moment(spec: str, case: str) -> None:
    c, r, options = CASES[case]()
    driver = Driver(c, r, options, pair(spec), seed=5, mode="compiled")
    for until_s in np.linspace(0.0, r.work["arrival_s"][-1], 20):
        advance_planning(driver, until_s)
        check_conservation(driver.state)
        check_tree(driver.state)
    assert driver.state.tree["preempted"][0] == driver.state.counts["preempted"][0]


@covering(3)
def test_records_never_show_more_running_than_slots(spec: str, case: str) -> None:
    state = run(*CASES[case](), *pair(spec))
    done = state.requests[state.requests["status"] == Status.FINISHED]
    for j, slots in enumerate(state.nodes["slots"]):
        mine = done[done["node_idx"] == j]
        times = np.concatenate([mine["start_s"], mine["finish_s"]])
        steps = np.repeat([1, -1], len(mine))
        running = np.cumsum(steps[np.lexsort([steps, times])])  # what ends makes room before what starts
        assert running.max(initial=0) <= slots
    assert (done["start_s"] >= state.work["arrival_s"][state.requests["status"] == Status.FINISHED]).all()
    assert (done["finish_s"] > done["start_s"]).all()


@pytest.mark.parametrize(
    "spec",
    [spec for spec in SPECS if not HOLD_BY_THEMSELVES & {member.name for member in members(pair(spec)[0])}],
)
def test_without_queues_refused_work_is_rejected_at_once(spec: str) -> None:
    """Bounded at its slots, with `reject`: nothing ever waits, whether a policy names full nodes or none."""
    c = cluster(4, types=2, slots=2, queue_max=0)
    r = requests(c, 400, load=1.5, seed=5)
    rows = run(c, r, Options(on_refusal=OnRefusal.REJECT), *pair(spec)).requests
    served = rows["status"] == Status.FINISHED
    assert np.array_equal(rows["start_s"][served], r.work["arrival_s"][served])
    assert set(rows["reason"][~served]) == {int(Reason.REFUSED)}
