"""The methods by name, and those that build an assignment from prices of capacity without a search."""

from __future__ import annotations

import time
from enum import StrEnum

import numpy as np

from trimtab.solvers.candidate_pairs import CandidatePairs, Floats, nearest
from trimtab.solvers.construction import construct_assignment
from trimtab.solvers.dual import Dual, climb, exact_value
from trimtab.solvers.dual_of_both import dual_of_both
from trimtab.solvers.problem import AssignmentProblem
from trimtab.solvers.solution import Solution, Status, found, nothing
from trimtab.solvers.subgradient import subgradient_prices


class Method(StrEnum):
    """How to solve an assignment problem."""

    AUTO = "auto"  # the one that fits the problem
    EXACT = "exact"  # HiGHS on the whole programme
    MATCHING = "matching"  # linear assignment, where all tasks need the same of a node
    SEARCH = "search"  # smoothed dual, ejection chains, branch and bound, HiGHS on a reduced programme
    GREEDY = "greedy"  # largest task first, each on its cheapest node with room
    DUAL = "dual"  # prices of capacity by subgradient steps, then greedy under these prices
    DUAL_SMOOTHED = "dual-smoothed"  # the same, with prices by accelerated steps on the smoothed dual
    DUAL_OF_BOTH = "dual-of-both"  # the same, with prices on capacities and on assignments


def solve_by_prices(
    problem: AssignmentProblem, method: Method, *, time_limit_s: float, begun_s: float
) -> Solution:
    """Prices by one of the duals (none for GREEDY), and the assignment that is built greedily under them."""
    until_s = begun_s + time_limit_s
    free = np.zeros((problem.nodes + 1, problem.capacity.shape[1]))
    candidates = nearest(problem, free, problem.nodes + 1)
    dual = _dual(problem, method, candidates, free, until_s)
    prices = dual.prices[: problem.nodes]
    assignment = construct_assignment(problem, dual.prices, until_s)
    bound, took_s = problem.sign * dual.value, time.perf_counter() - begun_s
    if assignment is None:
        empty, reason = np.full(problem.tasks, -1, np.int32), "no assignment was found under these prices"
        return nothing(problem, Status.UNKNOWN, empty, bound, took_s, method.value, reason)
    reason = "the method builds one assignment and does not search"
    return found(problem, assignment, bound, took_s, method.value, prices=prices, reason=reason)


def _dual(
    problem: AssignmentProblem, method: Method, candidates: CandidatePairs, free: Floats, until_s: float
) -> Dual:
    if method is Method.GREEDY:
        return Dual(free, exact_value(candidates, free), 0.0)
    if method is Method.DUAL_SMOOTHED:
        return climb(candidates, free, until_s)
    if method is Method.DUAL_OF_BOTH:
        return dual_of_both(candidates, until_s)
    assignment = construct_assignment(problem, free, until_s)
    worst = np.where(np.isfinite(candidates.cost), candidates.cost, -np.inf).max(axis=1).sum()
    cost = float(worst) if assignment is None else problem.sign * problem.objective(assignment)
    return subgradient_prices(candidates, cost, until_s)
