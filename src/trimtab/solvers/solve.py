"""The one way in: a problem in, a `Solution` out, by the method that fits its size."""

from __future__ import annotations

import math
import time

import numpy as np

from trimtab.solvers.exact import CoreSearch
from trimtab.solvers.near import nearest
from trimtab.solvers.problem import AssignmentProblem
from trimtab.solvers.refutation import why_infeasible
from trimtab.solvers.solution import Solution, Status, found, nothing

EXACT_PAIRS = 2_000  # up to here HiGHS alone is the quickest way to a proof
TIME_LIMIT_S = 10.0


def solve(problem: AssignmentProblem, *, time_limit_s: float = TIME_LIMIT_S) -> Solution:
    """Solve, or get as near as the time allows; the solution says by which method and how near.

    Args:
        problem: see `assignment_problem`.
        time_limit_s: wall time to end within.
    """
    begun_s = time.perf_counter()
    reason = why_infeasible(problem)
    if reason:
        return nothing(
            problem,
            Status.INFEASIBLE,
            np.full(problem.tasks, -1, np.int32),
            problem.sign * math.inf,
            time.perf_counter() - begun_s,
            "refutation",
            reason,
        )
    return solve_exact(problem, time_limit_s=time_limit_s)


def solve_exact(problem: AssignmentProblem, *, time_limit_s: float = TIME_LIMIT_S) -> Solution:
    """The whole programme by HiGHS: a proof, if the time allows one."""
    begun_s = time.perf_counter()
    free = np.zeros((problem.nodes + 1, problem.capacity.shape[1]))
    near = nearest(problem, free, problem.nodes + 1)
    left_s = time_limit_s - (time.perf_counter() - begun_s)
    result = CoreSearch(near, near.node >= 0, left_s).result()
    took_s, reason = time.perf_counter() - begun_s, f"the time limit of {time_limit_s:g} s"
    if result.choice is None:
        status = Status.INFEASIBLE if result.is_infeasible else Status.UNKNOWN
        why = "no assignment keeps to all capacities (HiGHS)" if result.is_infeasible else reason
        empty = np.full(problem.tasks, -1, np.int32)
        return nothing(problem, status, empty, problem.sign * result.bound, took_s, "exact", why)
    assignment = near.nodes_of(result.choice)
    return found(problem, assignment, problem.sign * result.bound, took_s, "exact", reason=reason)
