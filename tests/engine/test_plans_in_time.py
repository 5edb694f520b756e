"""When plans are asked for, when they take force, and what the planner is told of the past."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from support.builders import cluster
from support.by_hand import asked, count, played, starts
from trimtab.domain.options import Cancel, Options
from trimtab.domain.policy import Policy
from trimtab.domain.requests import Status
from trimtab.domain.view import Memory, Plan, empty_plan

ONE = cluster(1, slots=4)


@dataclass(frozen=True)
class Gate(Policy):
    """Holds everything until plan number `opens` is in force; keeps a diary of when it was asked."""

    plan_period_s: float = 2.0
    opens: int = 1
    asked_at_s: list[float] = field(default_factory=list)
    histories: list[Any] = field(default_factory=list)
    waiting: list[list[int]] = field(default_factory=list)

    def init(self, cluster: Any) -> Memory:
        return Memory(np.array([float(self.opens)]), np.zeros(0, "i8"), np.zeros(0))

    def plan(self, view: Any, history: Any, waiting: Any, rollout: Any) -> Plan:
        self.asked_at_s.append(view.context.now_s)
        self.histories.append(history)
        self.waiting.append(waiting["serial"].tolist())
        return empty_plan()._replace(params=np.array([float(len(self.asked_at_s))]))

    @staticmethod
    def dispatch(view: Any, plan: Any, work: Any, memory: Any, draws: Any, ranking: Any) -> int:
        ranking[0] = 0
        return int(len(plan.params) > 0 and plan.params[0] >= memory.params[0])


def test_a_plan_takes_force_at_once_and_held_requests_are_offered_under_it() -> None:
    gate = Gate(opens=3)
    d = played(ONE, asked(ONE, [0.5, 1.5], 1.0), Options(lookahead=1), gate)
    assert gate.asked_at_s[:3] == [0.0, 2.0, 4.0]
    assert gate.waiting[:3] == [[], [0, 1], [0, 1]]
    assert starts(d) == [4.0, 4.0]


def test_a_plan_takes_force_after_its_latency() -> None:
    d = played(ONE, asked(ONE, [0.5], 1.0), Options(plan_latency_s=0.75), Gate(opens=2))
    assert starts(d) == [2.75]


def test_a_latency_beyond_the_period_delays_every_plan_alike() -> None:
    gate = Gate(opens=2)
    d = played(ONE, asked(ONE, [0.5], 1.0), Options(plan_latency_s=5.0), gate)
    assert gate.asked_at_s[:3] == [0.0, 2.0, 4.0]
    assert starts(d) == [7.0]  # plan 2, asked for at 2 s; not at 5 s, when plan 1 takes force


def test_the_history_knows_only_what_has_finished() -> None:
    gate = Gate(opens=1)
    r = asked(ONE, [0.0, 0.0, 0.0], [1.0, 5.0, 3.0], deadline_s=[np.inf, np.inf, 1.5])
    d = played(ONE, r, Options(cancel=Cancel.ALWAYS), gate)
    assert d.state.requests["status"][2] == Status.CANCELLED
    at_4 = gate.histories[2]
    np.testing.assert_array_equal(at_4.finish_s, [1.0, np.nan, np.nan])
    assert count(d, "finished") == 2
