"""What a plan binds: a held request that gets the next free place of a node, before all other offers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from support.builders import cluster
from support.by_hand import asked, played, starts
from trimtab.domain.cluster import Cluster
from trimtab.domain.options import Cancel, Options
from trimtab.domain.planning import checked_plan
from trimtab.domain.policy import Decider, Policy
from trimtab.domain.requests import Requests
from trimtab.domain.view import BINDING, Plan, empty_plan
from trimtab.errors import PolicyError
from trimtab.live.clock import VirtualClock
from trimtab.live.runner import run_live

ONE, TWO = cluster(1), cluster(2)
Bound = tuple[int, int, float]  # serial, node, expires


def binding(rows: Sequence[Bound]) -> Plan:
    """A plan that binds."""
    array = np.zeros(len(rows), BINDING)
    for i, (serial, node, expires_s) in enumerate(rows):
        array[i] = serial, node, expires_s, 77
    return empty_plan()._replace(binding=array)


@dataclass(frozen=True)
class Binder(Policy):
    """Sends to node 0 while it is idle; its second plan, at 4 s, binds `rows`."""

    rows: tuple[Bound, ...] = ()
    plan_period_s: float = 4.0

    def plan(self, view: Any, history: Any, waiting: Any, rollout: Any) -> Plan | None:
        return binding(self.rows) if view.context.now_s == self.plan_period_s else None

    @staticmethod
    def dispatch(view: Any, plan: Any, work: Any, memory: Any, draws: Any, ranking: Any) -> int:
        ranking[0] = 0
        return int(view.nodes.in_flight[0] == 0)


class LastFirst(Policy):
    """The last that came is served first, so that the queue is a heap."""

    @staticmethod
    def order(view: Any, plan: Any, work: Any, memory: Any) -> float:
        return -float(work.arrival_s)


def started(
    rows: Sequence[Bound], c: Cluster = ONE, r: Requests | None = None, **options: Any
) -> list[float]:
    """When requests start that came at 0, 1, 2, 3 s and take 5, 1, 1, 1 s."""
    r = r or asked(c, [0.0, 1.0, 2.0, 3.0], [5.0, 1.0, 1.0, 1.0])
    return starts(played(c, r, Options(**options), Binder(tuple(rows))))


@pytest.mark.parametrize(
    ("rows", "expected_s"),
    [
        ([], [0.0, 5.0, 6.0, 7.0]),
        ([(3, 0, 9.0)], [0.0, 6.0, 7.0, 5.0]),  # it gets the next free place before the others
        ([(3, 0, 9.0), (2, 0, 9.0)], [0.0, 7.0, 6.0, 5.0]),  # the first in the plan goes first
        ([(3, 0, 5.0)], [0.0, 6.0, 7.0, 5.0]),  # a binding lasts until it expires
        ([(3, 0, 4.9)], [0.0, 5.0, 6.0, 7.0]),  # and not longer
        *(([stale], [0.0, 5.0, 6.0, 7.0]) for stale in ((0, 0, 9.0), (4, 0, 9.0), (-5, 0, 9.0))),  # not held
    ],
)
def test_bound_requests_go_first_on_their_node(rows: list[Bound], expected_s: list[float]) -> None:
    assert started(rows) == expected_s


def test_a_free_place_is_given_at_once() -> None:
    """Node 1, which the dispatcher never names, is idle when the plan takes force at 4 s."""
    assert started([(2, 1, 9.0)], TWO)[2] == 4.0


def test_a_cancelled_request_is_bound_no_longer() -> None:
    r = asked(ONE, [0.0, 1.0, 2.0, 3.0], [5.0, 1.0, 1.0, 1.0], deadline_s=[99.0, 99.0, 99.0, 4.5])
    assert started([(3, 0, 9.0)], r=r, cancel=Cancel.WAITING)[1:3] == [5.0, 6.0]


@pytest.mark.parametrize("chosen", range(1, 8))
def test_it_is_taken_out_of_a_heap_too(chosen: int) -> None:
    r = asked(ONE, [0.0, *np.linspace(1.0, 3.0, 7)], [5.0, *[1.0] * 7])
    d = played(ONE, r, Options(), Binder(((chosen, 0, 9.0),)), LastFirst())
    expected = [chosen, *(i for i in range(7, 0, -1) if i != chosen)]
    assert np.argsort(starts(d)).tolist() == [0, *expected]


def test_the_live_host_binds_as_the_simulator_does() -> None:
    r = asked(TWO, [0.0, 1.0, 2.0, 3.0], [5.0, 1.0, 1.0, 1.0])
    policy = Binder(((3, 0, 9.0), (1, 1, 9.0)))
    live = run_live(TWO, r, Options(), Decider.of(policy), clock=VirtualClock(), mode="interpreted")
    assert starts(live) == starts(played(TWO, r, Options(), policy)) == [0.0, 4.0, 6.0, 5.0]


@pytest.mark.parametrize("node", [-1, 2])
def test_a_node_that_does_not_exist_makes_it_no_plan(node: int) -> None:
    with pytest.raises(PolicyError, match=f"names node {node}; expected one of 2"):
        checked_plan(binding([(0, node, 1.0)]), 2)
