"""Matching against trying everything, and against the integer programme."""

from __future__ import annotations

import math

import numpy as np
import pytest

from support.gap_oracle import check_by_trying
from trimtab.solvers import matching_problem, solve
from trimtab.solvers.candidate_pairs import nearest
from trimtab.solvers.matching import is_worth_it, match, places_of
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


def chosen(tasks: int, nodes: int, time_limit_s: float) -> bool:
    """Whether linear assignment is taken where each node has as many places as are needed."""
    problem = matching_problem(np.ones((tasks, nodes), np.float32), -(-tasks // nodes))
    places = places_of(problem)
    assert places is not None
    return is_worth_it(problem, places, time_limit_s)


def test_linear_assignment_is_taken_where_it_is_quicker_than_the_dual_and_in_time():
    assert chosen(1_000, 20, 10.0)
    assert not chosen(2_000, 100, 10.0)  # a column for each of twenty places a node
    assert chosen(2_000, 2_000, 10.0)  # a place a node: the dual proves nothing there
    assert not chosen(2_000, 2_000, 1.0)


@pytest.mark.parametrize("tied", [False, True])
def test_pairs_come_in_the_same_order_whether_sorted_or_inserted(tied):
    draw = np.random.default_rng(0)
    value = draw.integers(0, 5 if tied else 10**6, (40, 130)).astype(float)
    value[draw.random(value.shape) < 0.1] = math.inf
    problem = matching_problem(value, 1)
    free = np.zeros((131, 1))
    inserted, most = nearest(problem, free, 90), nearest(problem, free, 131)
    for column in ("node", "cost"):
        assert (getattr(most, column)[:, :90] == getattr(inserted, column)).all()
    assert (inserted.dropped == most.cost[:, 90]).all()
    assert most.is_complete
