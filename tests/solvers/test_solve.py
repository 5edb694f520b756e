"""The one way in: small problems against trying everything, the textbook, published optima, reasons."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pytest

from support.gap_oracle import best_by_trying, check, check_by_trying, random_problem
from trimtab.solvers import Status, assignment_problem, parse_gap, solve

DATA = Path(__file__).parents[2].parent / "shared" / "data" / "gap"
GPUS_TFLOPS, TASKS_TFLOPS = [10.0, 8.0, 6.0], [5.0, 6.0, 4.0, 3.0]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("maximise", [False, True])
@pytest.mark.parametrize("resources", [1, 3])
def test_small_problems_are_solved_as_by_trying_everything(seed, maximise, resources):
    problem = random_problem(seed, resources=resources, maximise=maximise)
    check_by_trying(problem, solve(problem))


@pytest.mark.parametrize("seed", range(3))
def test_some_optional_some_compulsory_with_a_price_for_leaving_out(seed):
    optional, skip = [True, False, True, False, True], [7.0, 0.0, 30.0, 0.0, 2.0]
    problem = random_problem(seed, optional=optional, skip_value=skip)
    solution = solve(problem)
    assert solution.objective == best_by_trying(problem)
    assert (solution.assignment[[1, 3]] >= 0).all()


def test_the_textbook_example():
    """Four tasks on three GPUs; what is in use is to be most. All fit: {5, 4}, {6}, {3}."""
    demand = np.tile(np.array(TASKS_TFLOPS)[:, None], (1, 3))
    solution = solve(assignment_problem(demand, demand, GPUS_TFLOPS, maximise=True))
    assert solution.status is Status.OPTIMAL
    assert solution.objective == 18
    assert (solution.assignment >= 0).all()


def test_the_textbook_example_as_it_is_in_print():
    """Without the task of 6, and with utility 6 for the task of 5 on two GPUs: 13 for 12 TFLOPS in use."""
    demand = np.tile(np.array([5.0, 4.0, 3.0])[:, None], (1, 3))
    utility = demand.copy()
    utility[0, 1:] = 6.0
    problem = assignment_problem(utility, demand, GPUS_TFLOPS, maximise=True)
    solution = solve(problem)
    assert solution.objective == 13
    assert problem.load(solution.assignment).sum() == 12


def test_forbidden_pairs_are_not_used():
    cost = [[1.0, math.inf], [math.inf, 2.0], [1.0, 9.0]]
    solution = solve(assignment_problem(cost, np.ones((3, 2)), [1.0, 2.0]))
    assert solution.assignment.tolist() == [0, 1, 1]


@pytest.mark.data
@pytest.mark.skipif(not DATA.exists(), reason=f"no instances in {DATA}")
@pytest.mark.parametrize("name", ["gap1-0", "gap3-4", "gap5-0"])
def test_published_optima(name):
    file = DATA / "cattrysse1994" / name
    with (DATA / "best_known.csv").open() as lines:
        row = next(r for r in csv.DictReader(lines) if r["instance"] == f"cattrysse1994/{name}")
    for maximise, column in ((False, "verified_best"), (True, "optimum_if_maximised")):
        problem = parse_gap(file.read_text(), name, maximise=maximise)
        solution = solve(problem)
        assert solution.status is Status.OPTIMAL
        assert solution.objective == float(row[column])
        check(problem, solution)


@pytest.mark.parametrize(
    ("demand", "capacity", "reason"),
    [
        ([[5.0, 9.0], [1.0, 1.0]], [4.0, 8.0], "task 0 fits on no node"),
        ([[5.0, 5.0], [5.0, 5.0], [5.0, 5.0]], [7.0, 7.0], "need at least 15 together"),
        ([[3.0, 3.0], [3.0, 3.0], [3.0, 3.0]], [5.0, 5.0], "3 tasks of one size, and room for 2"),
        ([[1.0, 1.0]], [0.0, 0.0], "task 0 fits on no node that it may use: on node 0 it needs 1"),
        ([[3.0, 3.0], [3.0, 3.0], [3.0, 3.5]], [5.0, 5.0], "no assignment keeps to all capacities"),
    ],
)
def test_an_infeasible_programme_says_which_constraint(demand, capacity, reason):
    solution = solve(assignment_problem(np.ones(np.shape(demand)), demand, capacity))
    assert solution.status is Status.INFEASIBLE
    assert reason in solution.reason
    assert math.isnan(solution.objective)


def test_what_is_too_large_is_left_out_where_it_may_be():
    solution = solve(assignment_problem([[5.0], [3.0]], [[9.0], [2.0]], [4.0], maximise=True))
    assert solution.assignment.tolist() == [-1, 0]
    assert solution.status is Status.OPTIMAL
