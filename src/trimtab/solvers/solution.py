"""The result of a solver."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from trimtab.solvers.problem import AssignmentProblem, FloatArray, IntArray

PROVED_FRAC = 1e-9  # a gap below this is rounding


class Status(Enum):
    """How a solve ended."""

    OPTIMAL = "optimal"  # proved
    FEASIBLE = "feasible"  # the best that was found, with its gap
    INFEASIBLE = "infeasible"  # proved that there is no solution; `reason` says why
    UNKNOWN = "unknown"  # no solution was found, and no proof that there is none


@dataclass(frozen=True, slots=True)
class Solution:
    """An assignment with its value, bound and gap.

    Attributes:
        status: how the solve ended.
        objective: value of the assignment; NaN without one.
        bound: proven bound; no assignment is better.
        gap_frac: |objective − bound| / |objective|; infinite without an assignment.
        time_s: wall time of the solve.
        method: which method found it; of a method of several parts, those that had a turn.
        assignment: [tasks] node of each task, −1 for none.
        prices: [nodes, resources] what a unit of capacity is worth (λ of the dual); None where unknown.
        reason: in words, why there is no solution or why the search ended before a proof; empty otherwise.
    """

    status: Status
    objective: float
    bound: float
    gap_frac: float
    time_s: float
    method: str
    assignment: IntArray
    prices: FloatArray | None = None
    reason: str = ""

    @property
    def has_assignment(self) -> bool:
        """Whether there is a feasible assignment."""
        return self.status in (Status.OPTIMAL, Status.FEASIBLE)


def gap_frac(objective: float, bound: float) -> float:
    """Relative gap between objective and bound."""
    if not math.isfinite(objective) or not math.isfinite(bound):
        return math.inf
    distance = abs(objective - bound)
    return (
        0.0 if distance <= PROVED_FRAC * max(1.0, abs(objective)) else distance / max(abs(objective), 1e-12)
    )


def found(
    problem: AssignmentProblem,
    assignment: IntArray,
    bound: float,
    time_s: float,
    method: str,
    *,
    prices: FloatArray | None = None,
    reason: str = "",
) -> Solution:
    """The solution of a feasible assignment; `bound` in units of value.

    A bound that equals the objective within rounding counts as a proof of optimality.
    """
    objective = problem.objective(assignment)
    bound = problem.sign * min(problem.sign * bound, problem.sign * objective)
    gap = gap_frac(objective, bound)
    status = Status.OPTIMAL if gap == 0 else Status.FEASIBLE
    bound = objective if gap == 0 else bound
    why = "" if gap == 0 else reason
    return Solution(status, objective, bound, gap, time_s, method, assignment, prices, why)


def nothing(
    problem: AssignmentProblem,
    status: Status,
    assignment: IntArray,
    bound: float,
    time_s: float,
    method: str,
    reason: str,
) -> Solution:
    """The solution without an assignment: infeasible, or none found."""
    return Solution(status, math.nan, bound, math.inf, time_s, method, assignment, None, reason)
