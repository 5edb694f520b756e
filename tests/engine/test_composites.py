"""Composite policies: who decides when, with what memory, and in which order what waits is served then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from support.builders import cluster, everything_on, requests, run
from support.by_hand import asked, played, starts
from support.same_state import differences
from trimtab.compiled.kernel import interpreted
from trimtab.domain.cluster import Cluster
from trimtab.domain.options import Options
from trimtab.domain.policy import Decider, Policy
from trimtab.domain.view import Memory, Plan, empty_plan, estimate_s, memory
from trimtab.engine.live_driver import LiveDriver, RequestSpec
from trimtab.errors import PolicyError
from trimtab.live.clock import VirtualClock
from trimtab.live.runner import run_live
from trimtab.policies.load_aware.least_expected_wait import LeastExpectedWait
from trimtab.policies.load_aware.power_of_d import PowerOfD
from trimtab.policies.load_aware.sampled_completion import SampledCompletion
from trimtab.policies.orders.sjf import Sjf
from trimtab.policies.shared.waits import OVERDUE_FRAC

ONE = cluster(1)
SAMPLERS = SampledCompletion(d=2), SampledCompletion(d=5)


@dataclass(frozen=True)
class Turns(Policy):
    """Candidate 0 and 1 by turns; each plan hands over to the other."""

    plan_period_s: float = 2.0
    others: ClassVar[tuple[Policy, ...]] = ()

    @property
    def candidates(self) -> tuple[Policy, ...]:
        return self.others

    def init(self, cluster: Cluster) -> Memory:
        return self.others[0].init(cluster)

    def plan(self, view: Any, history: Any, waiting: Any, rollout: Any) -> Plan | None:
        if view.context.now_s == 0.0:
            return None
        return empty_plan()._replace(active_idx=(history.plan.active_idx + 1) % len(self.others))


@dataclass(frozen=True)
class Scanned(Policy):
    """Least expected wait without trees, in plain Python: it remembers nothing."""

    aged: bool = True

    def init(self, cluster: Cluster) -> Memory:
        return memory(params=[self.aged])

    @staticmethod
    def dispatch(view: Any, plan: Any, work: Any, memory: Any, draws: Any, ranking: Any) -> int:
        nodes, seconds, best = view.nodes, interpreted(estimate_s), []
        for j in range(view.context.n_nodes):
            if (
                nodes.up[j] == 1
                and nodes.room[j] > 0
                and view.fixed_s[work.class_idx, nodes.type_idx[j]] < 1e9
            ):
                own_s, left_s = seconds(view, work, nodes.type_idx[j]), nodes.outstanding_s[j]
                if not memory.params[0]:
                    best.append(((left_s + own_s) / nodes.slots[j], j))
                    continue
                aged_s = nodes.anchor_s[j] + nodes.backlog_s[j] / nodes.slots[j] - view.context.now_s
                if aged_s <= 0.0:
                    is_free = nodes.in_flight[j] < nodes.slots[j]
                    aged_s = 0.0 if is_free else OVERDUE_FRAC * left_s / nodes.slots[j]
                best.append((aged_s + own_s / nodes.slots[j], j))
        if best:
            ranking[0] = min(best)[1]
        return min(1, len(best))


@dataclass(frozen=True)
class TreesByTurns(Turns):
    others: ClassVar[tuple[Policy, ...]] = (PowerOfD(), LeastExpectedWait())
    draws: int = 2
    dispatch = staticmethod(PowerOfD.dispatch)


@dataclass(frozen=True)
class ScansByTurns(TreesByTurns):
    others: ClassVar[tuple[Policy, ...]] = (PowerOfD(), Scanned())


@dataclass(frozen=True)
class TreesInFullByTurns(TreesByTurns):
    others: ClassVar[tuple[Policy, ...]] = (PowerOfD(), LeastExpectedWait(aged=False))


@dataclass(frozen=True)
class ScansInFullByTurns(TreesByTurns):
    others: ClassVar[tuple[Policy, ...]] = (PowerOfD(), Scanned(aged=False))


@dataclass(frozen=True)
class ShortestFirst(LeastExpectedWait):
    """With an order of its own."""

    order = staticmethod(Sjf.order)


@dataclass(frozen=True)
class OrdersByTurns(Turns):
    others: ClassVar[tuple[Policy, ...]] = (LeastExpectedWait(), ShortestFirst())
    dispatch = staticmethod(LeastExpectedWait.dispatch)


@dataclass(frozen=True)
class Counting(Policy):
    """Plain Python: counts its decisions in its memory, and sends to node 0 or 1 after the first `stays`."""

    stays: int = 1

    def init(self, cluster: Cluster) -> Memory:
        return memory(ints=[self.stays])

    @staticmethod
    def dispatch(view: Any, plan: Any, work: Any, memory: Any, draws: Any, ranking: Any) -> int:
        memory.ints[0] -= 1
        ranking[0] = 0 if memory.ints[0] >= 0 else 1
        return 1


@dataclass(frozen=True)
class CountsByTurns(Turns):
    others: ClassVar[tuple[Policy, ...]] = (Counting(1), Counting(2))
    dispatch = staticmethod(Counting.dispatch)


def wide() -> Cluster:
    """Nodes enough that trees have several levels."""
    return cluster(9, types=2, slots=[1, 2, 1, 3, 1, 1, 2, 1, 1], queue_max=2)


@pytest.mark.parametrize(
    "pair", [(TreesByTurns, ScansByTurns), (TreesInFullByTurns, ScansInFullByTurns)], ids=["aged", "in full"]
)
def test_who_takes_over_sees_every_node_and_remembers_nothing(pair: tuple[type[Turns], type[Turns]]) -> None:
    r = requests(wide(), 600, load=0.95, priorities=2)
    trees, scans = (run(wide(), r, Options(), p()) for p in pair)
    found = differences(*(s._replace(memories=[], order_memories=[]) for s in (trees, scans)))
    assert found == ["ranking.node_idx", "ranking.score"]  # trees name second choices too
    alone = run(wide(), r, Options(), PowerOfD())
    assert (alone.requests["node_idx"] != trees.requests["node_idx"]).mean() > 0.1


@pytest.mark.parametrize("compiled", [False, True])
def test_candidates_take_as_many_draws_as_they_ask_for(compiled: bool) -> None:
    """Two samples until the switch and five after it are what either policy would take alone."""

    @dataclass(frozen=True)
    class SamplesByTurns(Turns):
        plan_period_s: float = 50.0
        others: ClassVar[tuple[Policy, ...]] = SAMPLERS
        draws: int = 2
        dispatch = staticmethod(SampledCompletion.dispatch)

    c = cluster(9, types=3, slots=100)
    r = asked(c, np.arange(99.0).tolist(), 0.5)  # all idle: the fastest sample is taken
    nodes = [run(c, r, Options(), p, compiled=compiled).requests["node_idx"] for p in SAMPLERS]
    mixed = run(c, r, Options(), SamplesByTurns(), compiled=compiled).requests["node_idx"]
    np.testing.assert_array_equal(mixed, np.where(np.arange(99) < 50, *nodes))
    assert (nodes[0] != nodes[1]).any()


def test_a_memory_is_made_anew_at_every_turn() -> None:
    two = cluster(2, slots=9)
    times = [0.5, 1.0, 2.5, 3.0, 3.5, 4.5, 5.0]  # handed over at 2 and 4
    for mode in ("interpreted", "compiled"):
        driver = run_live(
            two, asked(two, times), Options(), Decider.of(CountsByTurns()), clock=VirtualClock(), mode=mode
        )
        assert driver.state.requests["node_idx"].tolist() == [0, 1, 0, 0, 1, 0, 1], mode


def test_what_waits_is_served_by_the_new_order_from_the_handover_on() -> None:
    sizes = [3.0, 5.0, 1.0, 2.0]
    d = played(ONE, asked(ONE, [0.0, 0.1, 0.2, 0.3], sizes), Options(), OrdersByTurns(plan_period_s=2.5))
    assert starts(d) == [0.0, 6.0, 3.0, 4.0]  # by size, though they came in another order
    d = played(
        ONE, asked(ONE, [0.0, 0.1, 0.2, 0.3], sizes), Options(), OrdersByTurns(plan_period_s=2.5), Policy()
    )
    assert starts(d) == [0.0, 3.0, 8.0, 9.0]  # an order of the host's stays


def test_what_is_held_is_served_by_the_new_order_too() -> None:
    small = cluster(1, queue_max=0)
    sizes = [3.0, 5.0, 1.0, 2.0]
    r = asked(small, [0.0, 0.1, 0.2, 0.3], sizes)
    assert starts(played(small, r, Options(), OrdersByTurns(plan_period_s=2.5))) == [0.0, 6.0, 3.0, 4.0]


def test_hosts_and_modes_agree_with_everything_on() -> None:
    c, r, options = everything_on()
    runs = [run(c, r, options, TreesByTurns(), compiled=compiled) for compiled in (False, True)]
    assert differences(*runs) == []
    assert runs[0].counts["finished"][0] > 400


def test_the_live_host_hands_over_as_the_simulator_does() -> None:
    r = requests(wide(), 300, load=0.95)
    live = run_live(
        wide(), r, Options(), Decider.of(TreesByTurns()), clock=VirtualClock(), mode="interpreted"
    ).state
    simulated = run(wide(), r, Options(), TreesByTurns())
    for name in ("node_idx", "start_s", "finish_s"):
        np.testing.assert_array_equal(live.requests[name], simulated.requests[name])


def test_a_shadow_may_be_a_composite() -> None:
    two = cluster(2, slots=9)
    live = LiveDriver(
        two, Options(), Decider.of(LeastExpectedWait()), rows=8, shadow=CountsByTurns(), mode="interpreted"
    )
    seen = []
    for i in range(6):
        row = live.enter(RequestSpec(0, 1.0, 1.0), float(i))
        live.advance(float(i))
        seen.append(live.decisions.shadow_idx[row])
        if i == 2:
            live.adopt_for_shadow(empty_plan()._replace(active_idx=np.ones(1, "i8")))
    assert seen == [0, 1, 1, 0, 0, 1]


@pytest.mark.parametrize("active_idx", [[2], [-1], [], [0, 1]])
def test_a_plan_for_a_candidate_that_is_not_there_is_none(active_idx: list[int]) -> None:
    class Wrong(TreesByTurns):
        def plan(self, view: Any, history: Any, waiting: Any, rollout: Any) -> Plan:
            return empty_plan()._replace(active_idx=np.array(active_idx, "i8"))

    with pytest.raises(PolicyError, match=r"active_idx.*one of 2 candidates"):
        run(ONE, asked(ONE, [0.0]), Options(), Wrong())
