"""The integer programme, or its core, solved by HiGHS.

The core keeps the pairs that a good solution is likely to have. The duals say of each pair what a solution
costs at least that uses it, its floor: by tasks L(λ) + the pair's excess over the task's least reduced cost,
by resources L(u) + what the node loses where it has to take the task. So

    min(bound of the core, least floor of what was left out)

bounds the whole programme: with every pair there it is the exact method.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import highspy
import numpy as np

from trimtab.solvers.candidate_pairs import CandidatePairs, Floats, Ints
from trimtab.solvers.problem import TOLERANCE_FRAC, BoolArray


@dataclass(frozen=True, slots=True)
class CoreResult:
    """Result of HiGHS: a choice [tasks] of columns of `candidates`, or None; a bound of the core's cost."""

    choice: Ints | None
    bound: float
    is_infeasible: bool
    timed_out: bool


class CoreSearch:
    """HiGHS on the pairs of `candidates` in `kept` [tasks, width], in a thread of its own."""

    def __init__(
        self, candidates: CandidatePairs, kept: BoolArray, time_limit_s: float, start: Ints | None = None
    ) -> None:
        self._task, self._column = np.nonzero(kept)
        self._candidates = candidates
        self._highs = highs = highspy.Highs()
        for name, value in _options(time_limit_s).items():
            highs.setOptionValue(name, value)
        highs.passModel(_model(candidates, self._task, self._column))
        if start is not None:
            self._suggest(start)
        highs.HandleUserInterrupt = True
        self._thread = highs.startSolve()

    def _suggest(self, start: Ints) -> None:
        """Give HiGHS a solution: the column of each task."""
        columns = np.flatnonzero(start[self._task] == self._column).astype(np.int32)
        solution = highspy.HighsSolution()
        chosen = np.zeros(self._task.size)
        chosen[columns] = 1.0
        solution.col_value = chosen.tolist()
        self._highs.setSolution(solution)

    @property
    def is_running(self) -> bool:
        """Whether the search is running."""
        return bool(self._highs.is_solver_running())

    def cancel(self) -> None:
        """Request the end of the search."""
        self._highs.cancelSolve()

    def result(self) -> CoreResult:
        """Wait for the end; returns the result."""
        self._highs.joinSolve(self._thread)
        status, info = self._highs.getModelStatus(), self._highs.getInfo()
        kinds = highspy.HighsModelStatus
        is_infeasible = status in (kinds.kInfeasible, kinds.kUnboundedOrInfeasible)
        bound = math.inf if is_infeasible else info.mip_dual_bound
        return CoreResult(self._choice(info), bound, is_infeasible, status == kinds.kTimeLimit)

    def _choice(self, info: Any) -> Ints | None:
        if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
            return None
        chosen = np.flatnonzero(np.asarray(self._highs.getSolution().col_value) > 0.5)
        choice = np.full(self._candidates.node.shape[0], -1, np.int32)
        choice[self._task[chosen]] = self._column[chosen]
        return choice if (choice >= 0).all() and self._keeps_capacities(choice) else None

    def _keeps_capacities(self, choice: Ints) -> bool:
        """Whether the choice keeps all capacities; HiGHS checks only within its own tolerances."""
        rows, load = np.arange(choice.size), np.zeros_like(self._candidates.capacity)
        np.add.at(load, self._candidates.node[rows, choice], self._candidates.demand[rows, choice])
        return bool((load <= self._candidates.capacity * (1 + TOLERANCE_FRAC)).all())


def _options(time_limit_s: float) -> dict[str, Any]:
    return {
        "output_flag": False,
        "time_limit": max(time_limit_s, 0.01),
        "mip_rel_gap": 0.0,
        "mip_abs_gap": 1e-9,
        "mip_feasibility_tolerance": 1e-9,
        "primal_feasibility_tolerance": 1e-9,
        "parallel": "off",
        "threads": 1,
        "log_to_console": False,
    }


def _model(candidates: CandidatePairs, task: np.ndarray[Any, Any], column: np.ndarray[Any, Any]) -> Any:
    """A column per pair; a row per task (exactly one) and per node and resource (at most its capacity)."""
    tasks, resources = candidates.node.shape[0], candidates.capacity.shape[1]
    node, demand = candidates.node[task, column], candidates.demand[task, column]
    used = demand > 0
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = int(task.size), tasks + candidates.capacity.size
    lp.col_cost_ = candidates.cost[task, column]
    lp.col_lower_, lp.col_upper_ = np.zeros(task.size), np.ones(task.size)
    lp.row_lower_ = np.concatenate([np.ones(tasks), np.full(candidates.capacity.size, -highspy.kHighsInf)])
    lp.row_upper_ = np.concatenate([np.ones(tasks), candidates.capacity.reshape(-1)])
    lp.integrality_ = np.full(task.size, highspy.HighsVarType.kInteger).tolist()
    rows = tasks + node[:, None] * resources + np.arange(resources)
    entries = np.column_stack([task, rows])  # [pairs, 1 + resources]
    values = np.column_stack([np.ones(task.size), demand])
    present = np.column_stack([np.ones(task.size, np.bool_), used])
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_ = np.append(0, np.cumsum(present.sum(axis=1)))
    lp.a_matrix_.index_ = entries[present]
    lp.a_matrix_.value_ = values[present]
    return lp


def core_bound(result: CoreResult, kept: BoolArray, floors: Floats, least_dropped: float) -> float:
    """Bound of the whole programme's cost, from the core's bound and the bounds of the excluded pairs.

    Args:
        result: HiGHS's result for the core.
        kept: [tasks, width] the pairs of the core.
        floors: [tasks, width] lower bound of the cost of a solution that uses a pair.
        least_dropped: the least such bound of all pairs without a column in `floors`.
    """
    return min(result.bound, float(np.where(kept, np.inf, floors).min()), least_dropped)
