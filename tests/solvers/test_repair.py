"""Repair: its ends keep to all capacities; where one move is enough, the cheapest one is made."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from support.gap_oracle import random_problem
from trimtab.solvers import assignment_problem
from trimtab.solvers.rounding import repaired


def best_single_move(problem, assignment, prices):
    """Least (rise of reduced cost, task, node) of all moves of one task that end within the capacities."""
    paid = problem.sign * problem.value + (problem.demand * prices[: problem.nodes]).sum(axis=2)
    ends = []
    for task, node in itertools.product(range(problem.tasks), range(problem.nodes)):
        moved = assignment.copy()
        moved[task] = node
        if node != assignment[task] and problem.is_feasible(moved):
            ends.append((paid[task, node] - paid[task, assignment[task]], task, node))
    return min(ends, default=None)


@pytest.mark.parametrize("resources", [1, 2])
def test_what_is_returned_is_feasible_and_only_tasks_of_crowded_nodes_have_moved(resources):
    draw, returned = np.random.default_rng(0), 0
    for seed in range(60):
        problem = random_problem(seed, tasks=6, resources=resources)
        assignment = draw.integers(0, 3, 6).astype(np.int32)
        prices = np.vstack([draw.exponential(2.0, (3, resources)), np.zeros((1, resources))])
        after = repaired(problem, assignment, prices)
        crowded = (problem.load(assignment) > problem.capacity).any(axis=1)
        if after is None:
            continue
        returned += 1
        assert problem.is_feasible(after)
        assert crowded[assignment[after != assignment]].all()
    assert returned >= 10


def test_where_one_move_is_enough_one_move_is_made():
    """All tasks are of a size, so that the move of least rise a unit is that of least rise."""
    draw = np.random.default_rng(1)
    for _ in range(40):
        size = draw.integers(3, 9)
        cost = draw.integers(1, 60, (5, 4)).astype(float)
        problem = assignment_problem(cost, np.full((5, 4), size), [2 * size, size, size, size])
        assignment = np.array([0, 0, 0, 1, 2], np.int32)  # node 0 has one too many, node 3 none
        prices = draw.exponential(2.0, (5, 1))
        best = best_single_move(problem, assignment, prices)
        after = repaired(problem, assignment, prices)
        assert best is not None
        assert after is not None
        _, task, node = best
        assert np.flatnonzero(after != assignment).tolist() == [task]
        assert after[task] == node


def test_nothing_is_moved_where_nothing_is_crowded():
    problem = assignment_problem(np.ones((2, 2)), np.ones((2, 2)), [1.0, 1.0])
    assert repaired(problem, np.array([1, 0], np.int32), np.zeros((3, 1))).tolist() == [1, 0]


def test_forbidden_nodes_take_nobody():
    cost = [[1.0, math.inf, 7.0], [1.0, math.inf, 9.0]]
    problem = assignment_problem(cost, np.ones((2, 3)), [1.0, 5.0, 5.0])
    after = repaired(problem, np.zeros(2, np.int32), np.zeros((4, 1)))
    assert after.tolist() == [2, 0]


def test_none_where_no_task_can_leave():
    problem = assignment_problem(np.ones((3, 2)), [[1.0, 9.0], [1.0, 9.0], [1.0, 9.0]], [2.0, 5.0])
    assert repaired(problem, np.zeros(3, np.int32), np.zeros((3, 1))) is None


def test_it_gives_up_when_the_time_is_over():
    problem = assignment_problem(np.ones((4, 2)), np.ones((4, 2)), [2.0, 2.0])
    crowded = np.zeros(4, np.int32)
    assert repaired(problem, crowded, np.zeros((3, 1)), until_s=0.0) is None
    assert problem.is_feasible(repaired(problem, crowded, np.zeros((3, 1))))
