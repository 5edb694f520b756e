"""A policy that compares what is held: the host gives a free slot to the request that scores least."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from support.builders import cluster
from support.by_hand import asked, fault_table, finishes, once, played, starts
from trimtab.compiled.kernel import interpreted, kernel
from trimtab.domain.options import Options
from trimtab.domain.policy import Decider, Policy
from trimtab.domain.requests import Status
from trimtab.domain.view import Memory, Plan, View, can_take
from trimtab.engine.simulator import run
from trimtab.policies.shared.selection import rank

ONE, TWO = cluster(1), cluster(2)
ANY_NODE = 9


@dataclass(frozen=True)
class ShortestOfThree(Policy):
    """Idle nodes only (`key` names one, or any); of three that are held, the shortest is served first."""

    compares: ClassVar[int] = 3

    @staticmethod
    @kernel
    def dispatch(view: View, plan: Plan, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        """Rank the idle nodes that the key allows."""
        count = 0
        for j in range(view.context.n_nodes):
            is_idle = view.nodes.in_flight[j] < view.nodes.slots[j] and can_take(view, work, j)
            if is_idle and work.key in (j, 9):
                count = rank(ranking, count, j, work.units)
        return count


def test_the_best_of_the_first_few_is_served_first() -> None:
    units = [1.0, 5.0, 4.0, 3.0, 2.0]  # the last is not among the first three when 0 ends, but when 3 does
    d = played(ONE, asked(ONE, [0.0, 0.1, 0.2, 0.3, 0.4], units), policy=ShortestOfThree())
    assert starts(d) == [0.0, 1.0 + 3.0 + 2.0 + 4.0, 1.0 + 3.0 + 2.0, 1.0, 1.0 + 3.0]


def test_equal_scores_go_by_arrival() -> None:
    d = played(ONE, asked(ONE, [0.0, 0.1, 0.2, 0.3], 1.0), policy=ShortestOfThree())
    assert starts(d) == [0.0, 1.0, 2.0, 3.0]


def test_what_no_free_node_suits_is_not_among_those_compared() -> None:
    """Node 0 is busy until 9 s: the three that want it do not hide from node 1 who comes after them."""
    key = [0, 1, 0, 0, 0, 1, 1]
    r = asked(TWO, [0.0, 0.0, 0.1, 0.2, 0.3, 0.4, 0.5], [9.0, 1.0, 1.0, 1.0, 1.0, 3.0, 2.0], key=key)
    d = played(TWO, r, policy=ShortestOfThree())
    assert starts(d)[5:] == [3.0, 1.0]
    assert starts(d)[2:5] == [9.0, 10.0, 11.0]


def test_slots_that_are_free_at_once_are_filled_one_after_the_other() -> None:
    """Both nodes fail and come back together, with four held."""
    faults = fault_table(once(0, 0.5, 2.0), once(1, 0.5, 2.0))
    units = [9.0, 4.0, 3.0, 2.0]
    r = asked(TWO, [0.6, 0.7, 0.8, 0.9], units, key=ANY_NODE)
    d = played(TWO, r, Options(faults=faults), policy=ShortestOfThree())
    assert starts(d)[2] == 2.0  # the shortest of the first three
    assert starts(d)[3] == 2.0  # then of those that are left
    assert starts(d)[1] == 4.0


def test_being_compared_is_no_decision() -> None:
    d = played(ONE, asked(ONE, [0.0, 0.1, 0.2, 0.3], [1.0, 3.0, 2.0, 1.0]), policy=ShortestOfThree())
    assert d.state.requests["attempt"].tolist() == [1, 2, 2, 2]


class ShortestInPython(Policy):
    """The same in plain Python, with `dispatch`."""

    compares: ClassVar[int] = 3
    dispatch = staticmethod(interpreted(ShortestOfThree.dispatch))


class ShortestChosen(Policy):
    """The same with `choose`, which gives each candidate its score."""

    compares: ClassVar[int] = 3

    def choose(self, cluster: Any, request: Any) -> Any:
        idle = (cluster.in_flight < cluster.slots) & cluster.can_take(request)
        return [(j, request.units) for j in np.flatnonzero(idle) if request.key in (j, ANY_NODE)]


class FirstChosen(ShortestChosen):
    """Without scores."""

    def choose(self, cluster: Any, request: Any) -> Any:
        return [j for j, _ in super().choose(cluster, request)]


@pytest.mark.parametrize("policy", [ShortestOfThree(), ShortestInPython(), ShortestChosen()])
@pytest.mark.parametrize("mode", ["compiled", "interpreted"])
def test_policies_in_plain_python_score_in_the_same_form(policy: Policy, mode: str) -> None:
    rng = np.random.default_rng(5)
    asks = np.cumsum(rng.exponential(0.5, 60)).tolist(), rng.exponential(1.1, 60)
    r = asked(TWO, *asks, key=rng.choice([0, 1, ANY_NODE], 60))
    expected = played(TWO, r, policy=ShortestOfThree())
    assert starts(run(TWO, r, Options(), Decider.of(policy), mode=mode)) == starts(expected)


def test_without_scores_requests_are_offered_in_turn() -> None:
    units = [1.0, 5.0, 4.0, 3.0]
    d = played(ONE, asked(ONE, [0.0, 0.1, 0.2, 0.3], units, key=ANY_NODE), policy=FirstChosen())
    assert starts(d) == [0.0, 1.0, 6.0, 10.0]


@dataclass(frozen=True)
class Picky(ShortestOfThree):
    """Rejects what bears the key 8 as soon as it is compared."""

    @staticmethod
    @kernel
    def dispatch(view: View, plan: Plan, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        """Reject, or rank the nodes that are idle."""
        if work.key == 8 and view.context.attempt > 0:
            return -1
        count = 0
        for j in range(view.context.n_nodes):
            if view.nodes.in_flight[j] < view.nodes.slots[j]:
                count = rank(ranking, count, j, work.units)
        return count


def test_what_is_rejected_when_it_is_compared_ends_there_and_the_others_are_compared() -> None:
    key = [ANY_NODE, ANY_NODE, 8, ANY_NODE]
    d = played(ONE, asked(ONE, [0.0, 0.1, 0.2, 0.3], [1.0, 3.0, 1.0, 2.0], key=key), policy=Picky())
    rows = d.state.requests
    assert [starts(d)[r] for r in (0, 1, 3)] == [0.0, 3.0, 1.0]
    assert rows["status"][2] == Status.REJECTED
    assert rows["ended_s"][2] == 1.0
    assert rows["attempt"].tolist() == [1, 2, 2, 2]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("n_nodes", [1, 3])
def test_against_a_plain_queue(seed: int, n_nodes: int) -> None:
    """The same rule on lists: whoever is free takes the shortest of the first three that wait."""
    rng, c = np.random.default_rng(seed), cluster(n_nodes)
    arrival_s = np.cumsum(rng.exponential(1.0 / n_nodes, 200))
    units = rng.exponential(1.1, 200)
    d = played(c, asked(c, arrival_s.tolist(), units, key=ANY_NODE), policy=ShortestOfThree())
    assert finishes(d) == pytest.approx(_finishes_of_plain_queue(arrival_s, units, n_nodes))


def _finishes_of_plain_queue(arrival_s: Any, units: Any, n_nodes: int) -> list[float]:
    finish_s, free_s = [0.0] * len(units), [0.0] * n_nodes
    held: list[int] = []
    coming = list(range(len(units)))
    while coming or held:
        now_s = min(free_s)
        while coming and (arrival_s[coming[0]] < now_s or (not held and coming)):
            now_s = max(now_s, arrival_s[coming[0]])
            held.append(coming.pop(0))
        best = min(held[:3], key=lambda i: units[i])
        held.remove(best)
        finish_s[best] = now_s + units[best]
        free_s[free_s.index(min(free_s))] = finish_s[best]
    return finish_s
