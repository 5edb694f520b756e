"""Tiny and huge units: the same answers as by trying everything, and as in plain units."""

from __future__ import annotations

import numpy as np
import pytest

from support.gap_oracle import check_by_trying, random_problem
from trimtab.solvers import AssignmentProblem, Status, assignment_problem, solve
from trimtab.solvers.solve import scaling_of


def in_units(problem: AssignmentProblem, value: float, amount: float) -> AssignmentProblem:
    """The same problem with values and amounts times a factor each."""
    return assignment_problem(
        problem.value * value,
        problem.demand * amount,
        problem.capacity * amount,
        maximise=problem.is_maximised,
        optional=problem.optional,
        skip_value=problem.skip_value * value,
    )


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("options", [{}, {"maximise": True, "skip_value": 5.0}, {"resources": 2}])
@pytest.mark.parametrize(("value", "amount"), [(1.0, 1e-9), (1e-9, 1.0), (1e12, 1e9), (1e-12, 1e12)])
def test_in_any_units_the_answer_is_the_best_of_all(seed, options, value, amount):
    problem = in_units(random_problem(seed, **options), value, amount)
    check_by_trying(problem, solve(problem))


@pytest.mark.parametrize("seed", range(2))
def test_a_large_problem_in_tiny_units_keeps_to_its_capacities_and_is_the_same(seed):
    """2⁻³⁰ of everything: an absolute tolerance of 1e-9 would be as much as a task needs."""
    plain = random_problem(seed, tasks=40, nodes=8)
    tiny = in_units(plain, 2.0**-30, 2.0**-30)
    solution, expected = solve(tiny), solve(plain)
    assert tiny.is_feasible(solution.assignment)
    assert solution.status is expected.status is Status.OPTIMAL
    assert solution.objective == expected.objective * 2.0**-30
    warm = solve(tiny, start=solution)
    assert warm.objective == solution.objective


def test_usual_units_stay_as_they_are():
    assert scaling_of(random_problem(0)).is_none
    assert scaling_of(assignment_problem(np.zeros((2, 2)), np.zeros((2, 2)), [0.0, 0.0])).is_none


def test_prices_come_back_in_the_units_of_the_problem():
    plain = random_problem(3, tasks=60, nodes=6)
    tiny = in_units(plain, 2.0**-30, 2.0**-40)
    assert solve(tiny).prices == pytest.approx(solve(plain).prices * 2.0**10)
