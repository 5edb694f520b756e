"""Scales a problem so that absolute tolerances fit its amounts and values.

Factors are powers of two, so that scaling is exact: the value of an assignment changes by the factor alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from trimtab.solvers.candidate_pairs import Floats
from trimtab.solvers.problem import AssignmentProblem, FloatArray
from trimtab.solvers.solution import Solution

LEAST, MOST = 2.0**-4, 2.0**26  # of a usual amount, between which nothing is changed
AIM_EXPONENT = 10  # what is beyond comes to about 2 to this


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
