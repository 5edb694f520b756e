"""Matching against trying everything, and against the integer programme."""

from __future__ import annotations

import math

import numpy as np
import pytest
from oracle import check_by_trying

from trimtab.solvers import matching_problem, solve
from trimtab.solvers.matching import match, places_of
from trimtab.solvers.solve import solve_exact


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("places", [1, 2, [3, 1, 0, 2]])
@pytest.mark.parametrize("maximise", [False, True])
@pytest.mark.parametrize("all_tasks", [False, True])
def test_small_matchings(seed, places, maximise, all_tasks):
    draw = np.random.default_rng(seed)
    value = draw.integers(-20, 60, (5, 4)).astype(float)
    value[draw.random((5, 4)) < 0.2] = -math.inf if maximise else math.inf
    problem = matching_problem(value, places, maximise=maximise, all_tasks=all_tasks)
    check_by_trying(problem, solve(problem))


def test_transportation_equals_the_integer_programme():
    value = np.random.default_rng(4).random((60, 7))
    problem = matching_problem(value, 9)
    places = places_of(problem)
    assert places is not None
    assert match(problem, places).objective == pytest.approx(solve_exact(problem).objective, rel=1e-9)
    assert solve(problem).method == "matching"


def test_demands_that_differ_are_no_matching():
    assert places_of(matching_problem(np.ones((3, 2)))) is not None
    problem = matching_problem(np.ones((3, 2)))
    problem.demand[0, 0, 0] = 2.0
    assert places_of(problem) is None
