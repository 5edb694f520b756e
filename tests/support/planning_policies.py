"""Policies whose plans go well or wrong; at the top of a module, as a planning process needs them."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from trimtab.compiled.kernel import kernel
from trimtab.domain.needs import Need
from trimtab.domain.planning import Variant
from trimtab.domain.policy import Policy
from trimtab.domain.requests import Status
from trimtab.domain.view import Memory, can_take, empty_plan
from trimtab.policies.load_aware.late_binding import LateBinding


@dataclass(frozen=True)
class Steering(Policy):
    """Weights nodes by all that a planner is told; chooses the greatest weight for what is in flight."""

    plan_period_s: float = 1.0

    def plan(self, view: Any, history: Any, waiting: Any, rollout: Any) -> Any:
        finished = float(np.isfinite(history.finish_s).sum())
        told = np.arange(view.context.n_nodes) * (1.0 + finished) + view.nodes.running + len(waiting)
        return empty_plan()._replace(weights=1.0 + np.mod(told * (1.0 + view.context.now_s), 7.0))

    @staticmethod
    @kernel
    def dispatch(view: Any, plan: Any, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        best, best_score = -1, 0.0
        for j in range(view.context.n_nodes):
            weight = plan.weights[j] if len(plan.weights) > 0 else 1.0
            score = weight / (1.0 + view.nodes.in_flight[j])
            if score > best_score and can_take(view, work, j):
                best, best_score = j, score
        if best < 0:
            return 0
        ranking[0] = best
        return 1


@dataclass(frozen=True)
class Gate(Policy):
    """Holds everything until a plan opens the gate; what `answer` says becomes of planning."""

    plan_period_s: float = 5.0
    answer: str = "plan"
    opens_s: float = 0.0  # when it first opens

    def plan(self, view: Any, history: Any, waiting: Any, rollout: Any) -> Any:
        return None if view.context.now_s < self.opens_s else _ANSWERS[self.answer]()

    @staticmethod
    def dispatch(view: Any, plan: Any, work: Any, memory: Any, draws: Any, ranking: Any) -> int:
        ranking[0] = 0
        return min(1, len(plan.params))


def _open() -> Any:
    return empty_plan()._replace(params=np.ones(1))


def _raise() -> Any:
    raise ArithmeticError("no solution")


def _die() -> Any:
    os._exit(3)


_ANSWERS: dict[str, Any] = {
    "plan": _open,
    "none": lambda: None,
    "raise": _raise,
    "text": lambda: "a plan",
    "ragged": lambda: empty_plan()._replace(weights=[[1.0], [2.0, 3.0]]),
    "words": lambda: empty_plan()._replace(params=["one"]),
    "shape": lambda: empty_plan()._replace(weights=np.ones(99)),
    "nan": lambda: empty_plan()._replace(params=np.array([np.nan])),
    "hang": lambda: time.sleep(3600.0),
    "die": _die,
}


RUNS_SEEN: list[tuple[float, dict[float, float]]] = []
"""Of each plan of `LooksAhead` its time, and when each run in flight is expected to end, by its arrival."""


@dataclass(frozen=True)
class LooksAhead(LateBinding):
    """Late binding, which looks at what rollouts tell of runs in flight once others are over."""

    name: ClassVar[str] = "looks-ahead"
    needs: ClassVar[frozenset[Need]] = LateBinding.needs | {Need.ROLLOUT}
    plan_period_s: float = 7.0

    def plan(self, view: Any, history: Any, waiting: Any, rollout: Any) -> None:
        runs, now_s = history.runs, view.context.now_s
        live = np.flatnonzero(runs.status < Status.FINISHED)
        if 0 < len(live) < len(runs.work):
            left_s = rollout([Variant(LateBinding())], history.came[:0])[0]
            ends_s = dict(zip(runs.work["arrival_s"][live].tolist(), (now_s + left_s).tolist(), strict=True))
            RUNS_SEEN.append((float(now_s), ends_s))
