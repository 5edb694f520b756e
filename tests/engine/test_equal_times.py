"""Completion, transfer, failure, repair, telemetry, plan, cancellation, arrival; then serial: by pairs."""

from __future__ import annotations

from typing import Any

import numpy as np

from support.builders import cluster
from support.by_hand import asked, fault_table, finishes, once, played, starts
from support.mini_policies import Emptiest, Scripted
from trimtab.domain.options import Cancel, OnRefusal, Options
from trimtab.domain.policy import Policy
from trimtab.domain.requests import Status
from trimtab.domain.view import Plan, empty_plan

ONE = cluster(1)
NO_QUEUE = cluster(1, queue_max=0)
STRICT = Options(on_refusal=OnRefusal.REJECT)


def test_a_completion_frees_the_slot_for_an_arrival_of_the_same_time() -> None:
    assert finishes(played(NO_QUEUE, asked(NO_QUEUE, [0.0, 1.0], 1.0), STRICT)) == [1.0, 2.0]


def test_a_completion_comes_before_a_transfer() -> None:
    """At 1 s request 0 finishes, then the payload of 1 arrives and finds a free slot: it never queues."""
    c = cluster(1, nic_gib_per_s=1.0)
    d = played(c, asked(c, [0.0, 0.0], 1.0, payload_gib=[0.0, 1.0]))
    assert finishes(d) == [1.0, 2.0]
    assert d.state.requests["key"][1] == 1.0  # still its position on the link, not a queue key


def test_a_completion_comes_before_a_failure() -> None:
    d = played(ONE, asked(ONE, [0.0], 1.0), Options(faults=fault_table(once(0, 1.0, 2.0)), max_retries=0))
    assert d.state.requests["status"].tolist() == [Status.FINISHED]


def test_a_transfer_comes_before_a_failure() -> None:
    """The payload arrives, its request starts, and is lost to the failure of the same moment."""
    c = cluster(1, nic_gib_per_s=1.0)
    r = asked(c, [0.0], 1.0, payload_gib=1.0)
    d = played(c, r, Options(faults=fault_table(once(0, 1.0, 2.0)), max_retries=0))
    assert starts(d) == [1.0]
    assert d.state.requests["status"].tolist() == [Status.LOST]


def test_a_failure_comes_before_a_repair() -> None:
    """One fault begins as another ends: the node is not up in between."""
    d = played(ONE, asked(ONE, [1.5], 1.0), Options(faults=fault_table(once(0, 2.0, 3.0), once(0, 1.0, 2.0))))
    assert starts(d) == [3.0]


def test_a_repair_comes_before_a_telemetry_sample() -> None:
    """The sample at 2 s, visible at once, shows the node up."""
    options = Options(faults=fault_table(once(0, 0.5, 2.0)), telemetry_period_s=1.0)
    assert starts(played(ONE, asked(ONE, [1.5], 1.0), options, Emptiest())) == [2.0]


class PlansByWhatItSees(Scripted):
    """Notes at every plan how much it sees in flight."""

    plan_period_s = 1.0

    def __init__(self) -> None:
        self.seen: list[int] = []

    def plan(self, view: Any, history: Any, waiting: Any, rollout: Any) -> Plan:
        self.seen.append(int(view.nodes.in_flight[0]))
        return empty_plan()


def test_telemetry_comes_before_a_plan() -> None:
    """Dispatcher 0 plans; request 1 is dispatcher 1's, sampled and shown at 1 s, just before the plan."""
    policy = PlansByWhatItSees()
    r = asked(ONE, [0.2, 0.3], 5.0)
    played(ONE, r, Options(telemetry_period_s=1.0, dispatchers=2), policy)
    assert policy.seen[:3] == [0, 2, 2]


class Opens(Policy):
    """Holds everything until it has planned at 1 s."""

    plan_period_s = 1.0

    def plan(self, view: Any, history: Any, waiting: Any, rollout: Any) -> Plan:
        return empty_plan()._replace(params=np.array([view.context.now_s]))

    @staticmethod
    def dispatch(view: Any, plan: Any, work: Any, memory: Any, draws: Any, ranking: Any) -> int:
        ranking[0] = 0
        return int(plan.params[0] >= 1.0)


def test_a_plan_comes_before_a_cancellation() -> None:
    r = asked(ONE, [0.0], 1.0, deadline_s=1.0)
    d = played(ONE, r, Options(cancel=Cancel.WAITING), Opens())
    assert finishes(d) == [2.0]


def test_a_completion_comes_before_the_cancellation_of_its_own_deadline() -> None:
    d = played(ONE, asked(ONE, [0.0], 1.0, deadline_s=1.0), Options(cancel=Cancel.ALWAYS))
    assert d.state.requests["status"].tolist() == [Status.FINISHED]


def test_a_cancellation_makes_room_for_an_arrival() -> None:
    r = asked(NO_QUEUE, [0.0, 1.0], 9.0, deadline_s=[1.0, np.inf])
    options = Options(cancel=Cancel.ALWAYS, on_refusal=OnRefusal.REJECT)
    assert starts(played(NO_QUEUE, r, options)) == [0.0, 1.0]


def test_equal_kinds_go_by_serial() -> None:
    """Requests 0 and 1 end together; 0 is dealt with first, so its node takes the held one, not the other."""
    c = cluster(2, queue_max=0)
    r = asked(c, [0.0, 0.0, 0.5], [1.0, 1.0, 1.0], key=[1, 0, 1000 * 2])
    assert played(c, r).state.requests["node_idx"].tolist() == [1, 0, 1]


def test_a_retry_goes_by_serial_among_arrivals() -> None:
    """At 1 s node 0 fails; request 0 is decided about again before request 1 arrives, and takes node 1."""
    c = cluster(2, queue_max=0)
    r = asked(c, [0.0, 1.0], 4.0, key=1000 * 2)
    d = played(c, r, Options(faults=fault_table(once(0, 1.0, 99.0)), on_refusal=OnRefusal.REJECT))
    assert d.state.requests["status"].tolist() == [Status.FINISHED, Status.REJECTED]
