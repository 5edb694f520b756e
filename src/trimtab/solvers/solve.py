"""The entry point of the solvers: the methods by name, and the one that fits a problem's size.

Methods that build an assignment from prices of capacity, without a search, are here too. A problem is scaled
so that absolute tolerances fit its amounts and values. Factors are powers of two, so that scaling is exact:
the value of an assignment changes by the factor alone.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from trimtab.errors import ProblemError
from trimtab.solvers.candidate_pairs import CandidatePairs, Floats, nearest, numbered
from trimtab.solvers.construction import construct_assignment
from trimtab.solvers.dual import Dual, climb, exact_value
from trimtab.solvers.dual_of_both import dual_of_both
from trimtab.solvers.infeasibility import why_infeasible
from trimtab.solvers.matching import is_worth_it, match, places_of
from trimtab.solvers.problem import AssignmentProblem, FloatArray
from trimtab.solvers.smoothing import solve_by_dual
from trimtab.solvers.solution import Solution, Status, found, nothing
from trimtab.solvers.subgradient import subgradient_prices

LEAST, MOST = 2.0**-4, 2.0**26  # of a usual amount, between which nothing is changed
AIM_EXPONENT = 10  # what is beyond comes to about 2 to this


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


@dataclass(frozen=True, slots=True)
class Scaling:
    """Factors of values, and of the demands and capacities of each resource.

    Attributes:
        value: factor of values.
        amount: [resources] factors of demands and capacities.
    """

    value: float
    amount: Floats

    @property
    def is_none(self) -> bool:
        """Whether all factors are 1."""
        return self.value == 1.0 and bool((self.amount == 1.0).all())

    def scaled(self, problem: AssignmentProblem) -> AssignmentProblem:
        """The problem in the new units."""
        return replace(
            problem,
            value=problem.value * problem.value.dtype.type(self.value),
            demand=problem.demand * self.amount.astype(problem.demand.dtype),
            capacity=problem.capacity * self.amount,
            skip_value=problem.skip_value * self.value,
        )

    def start(self, given: Solution) -> Solution:
        """A start solution in the new units."""
        prices = None if given.prices is None else given.prices * (self.value / self.amount)
        return replace(given, prices=prices)

    def unscaled(self, solution: Solution) -> Solution:
        """A solution of the scaled problem in the units of the given one."""
        prices = None if solution.prices is None else solution.prices * (self.amount / self.value)
        objective, bound = solution.objective / self.value, solution.bound / self.value
        return replace(solution, objective=objective, bound=bound, prices=prices)


def scaling_of(problem: AssignmentProblem) -> Scaling:
    """Factors by the median capacity of the nodes that have any, and by the largest value."""
    amounts = [_factor(_usual(column)) for column in problem.capacity.T]
    largest = max(_largest(problem.value), float(np.abs(problem.skip_value).max()))
    return Scaling(_factor(largest), np.array(amounts))


def _largest(value: FloatArray) -> float:
    """The largest finite absolute value; 0 without one."""
    low, high = float(value.min()), float(value.max())
    if math.isinf(low) or math.isinf(high):  # only then: it takes several times as long
        finite = np.isfinite(value)
        low, high = (float(end(value, where=finite, initial=0.0)) for end in (np.min, np.max))
    return max(-low, high, 0.0)


def _usual(capacity: FloatArray) -> float:
    some = capacity[capacity > 0]
    return float(np.median(some)) if some.size else 0.0


def _factor(usual: float) -> float:
    """The power of two that scales an amount to the range of the tolerances."""
    if usual == 0.0 or LEAST <= usual <= MOST:
        return 1.0
    return 2.0 ** (AIM_EXPONENT - math.frexp(usual)[1])


EXACT_PAIRS = 200  # up to here HiGHS alone is the quickest way to a proof
TIME_LIMIT_S = 10.0


def solve(
    problem: AssignmentProblem,
    *,
    time_limit_s: float = TIME_LIMIT_S,
    start: Solution | None = None,
    seed: int = 0,
    method: Method | str = Method.AUTO,
) -> Solution:
    """Solve a problem within a time limit; the solution has the method and the proven gap.

    Args:
        problem: see `assignment_problem`.
        time_limit_s: wall time.
        start: solution of a similar problem, with the same numbers of tasks, nodes and resources.
        seed: seed of all random numbers.
        method: a `Method` or its name; by default the one that fits the problem.

    Raises ProblemError where `start` is of a problem of another shape or its prices are no prices, where
    `time_limit_s` is NaN, for an unknown method, and for one that does not suit the problem.
    """
    begun_s = time.perf_counter()
    if math.isnan(time_limit_s):
        raise ProblemError("cannot be used", field="time_limit_s", value=time_limit_s, expected="seconds")
    chosen = _checked(method)
    _check_start(problem, start)
    reason = why_infeasible(problem)
    if reason:
        empty, bound = np.full(problem.tasks, -1, np.int32), problem.sign * math.inf
        took_s = time.perf_counter() - begun_s
        return nothing(problem, Status.INFEASIBLE, empty, bound, took_s, "infeasibility", reason)
    scaling = scaling_of(problem)
    if scaling.is_none:
        return _solve(problem, chosen, time_limit_s, start, seed, begun_s)
    scaled_start = None if start is None else scaling.start(start)
    solution = _solve(scaling.scaled(problem), chosen, time_limit_s, scaled_start, seed, begun_s)
    return scaling.unscaled(solution)


def _checked(method: Method | str) -> Method:
    try:
        return Method(method)
    except ValueError:
        expected = ", ".join(Method)
        raise ProblemError("no such method", field="method", value=method, expected=expected) from None


def _solve(
    problem: AssignmentProblem,
    method: Method,
    time_limit_s: float,
    start: Solution | None,
    seed: int,
    begun_s: float,
) -> Solution:
    """Solve by the chosen method, in scaled units."""
    if method is Method.AUTO:
        method = _fitting(problem, time_limit_s)
    if method is Method.MATCHING:
        places = places_of(problem)
        if places is None:
            expected = "a problem in which every task needs as much of a node as every other"
            raise ProblemError("does not suit", field="method", value=method.value, expected=expected)
        return match(problem, places, begun_s)
    if method is Method.EXACT:
        return solve_exact(problem, time_limit_s=time_limit_s, begun_s=begun_s)
    if method is Method.SEARCH:
        return solve_by_dual(problem, time_limit_s=time_limit_s, start=start, seed=seed, begun_s=begun_s)
    return solve_by_prices(problem, method, time_limit_s=time_limit_s, begun_s=begun_s)


def _fitting(problem: AssignmentProblem, time_limit_s: float) -> Method:
    """The method that fits the problem's kind and size."""
    places = places_of(problem)
    if places is not None and is_worth_it(problem, places, time_limit_s):
        return Method.MATCHING
    return Method.EXACT if problem.tasks * problem.nodes <= EXACT_PAIRS else Method.SEARCH


def _check_start(problem: AssignmentProblem, start: Solution | None) -> None:
    if start is None:
        return
    expected = f"a solution of {problem.tasks} tasks"
    if start.assignment.shape != (problem.tasks,):
        raise ProblemError("wrong shape", field="start", value=start.assignment.shape, expected=expected)
    if start.prices is None:
        return
    if start.prices.shape != problem.capacity.shape:
        expected = f"prices of {problem.capacity.shape}: nodes and resources"
        raise ProblemError("wrong shape", field="start.prices", value=start.prices.shape, expected=expected)
    if not np.isfinite(start.prices).all():
        raise ProblemError("cannot be used", field="start.prices", expected="finite numbers")


def solve_exact(
    problem: AssignmentProblem, *, time_limit_s: float = TIME_LIMIT_S, begun_s: float | None = None
) -> Solution:
    """Solve the whole programme by HiGHS, with a proof if the time allows; time counts from `begun_s`."""
    from trimtab.solvers.exact import CoreSearch  # loads HiGHS, which most problems do without

    begun_s = time.perf_counter() if begun_s is None else begun_s
    free = np.zeros((problem.nodes + 1, problem.capacity.shape[1]))
    candidates = nearest(problem, free, problem.nodes + 1)
    first = None if why_infeasible(problem) else construct_assignment(problem, free, begun_s + time_limit_s)
    start = None if first is None else candidates.give(numbered(first, problem.nodes), problem, free)[0]
    left_s = time_limit_s - (time.perf_counter() - begun_s)
    result = CoreSearch(candidates, candidates.node >= 0, left_s, start).result()
    choice = start if result.choice is None else result.choice
    took_s, reason = time.perf_counter() - begun_s, f"the time limit of {time_limit_s:g} s"
    if choice is None:
        status = Status.INFEASIBLE if result.is_infeasible else Status.UNKNOWN
        why = "no assignment keeps to all capacities (HiGHS)" if result.is_infeasible else reason
        empty = np.full(problem.tasks, -1, np.int32)
        return nothing(problem, status, empty, problem.sign * result.bound, took_s, "exact", why)
    assignment = candidates.nodes_of(choice)
    return found(problem, assignment, problem.sign * result.bound, took_s, "exact", reason=reason)
