"""The methods by name: bounds against the linear programme, assignments against the constraints."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linprog

from support.gap_oracle import check, random_problem
from trimtab.errors import ProblemError
from trimtab.solvers import AssignmentProblem, Method, assignment_problem, matching_problem, solve

DUALS = (Method.DUAL, Method.DUAL_SMOOTHED, Method.DUAL_OF_BOTH)
GPUS_TFLOPS, TASKS_TFLOPS = [10.0, 8.0, 6.0], [5.0, 6.0, 4.0, 3.0]


def textbook() -> AssignmentProblem:
    demand = np.tile(np.array(TASKS_TFLOPS)[:, None], (1, 3))
    return assignment_problem(demand, demand, GPUS_TFLOPS, maximise=True)


def linear_optimum(problem: AssignmentProblem) -> float:
    """The optimum of the linear programme, by another solver; all tasks are compulsory."""
    tasks, nodes, resources = problem.demand.shape
    once = np.kron(np.eye(tasks), np.ones(nodes))
    loads = np.zeros((nodes * resources, tasks * nodes))
    for i in range(nodes):
        for r in range(resources):
            loads[i * resources + r, i::nodes] = problem.demand[:, i, r]
    result = linprog(
        problem.value.reshape(-1), loads, problem.capacity.reshape(-1), once, np.ones(tasks), bounds=(0, 1)
    )
    return float(result.fun)


def roomy_problem(seed: int, tasks: int = 40, nodes: int = 5, resources: int = 1) -> AssignmentProblem:
    draw = np.random.default_rng(seed)
    demand = draw.uniform(5.0, 25.0, (tasks, nodes, resources))
    value = 111.0 - demand[..., 0] + draw.uniform(-10.0, 10.0, (tasks, nodes))
    return assignment_problem(value, demand, np.full((nodes, resources), 0.9 * 15.0 * tasks / nodes))


@pytest.mark.parametrize("method", [m for m in Method if m is not Method.MATCHING])
def test_every_method_solves_the_textbook_example(method: Method) -> None:
    solution = solve(textbook(), method=method)
    assert solution.objective == 18
    assert solution.bound >= 18


@pytest.mark.parametrize("method", DUALS)
@pytest.mark.parametrize("resources", [1, 2])
@pytest.mark.parametrize("seed", range(3))
def test_the_duals_reach_the_bound_of_the_linear_programme(seed: int, resources: int, method: Method) -> None:
    problem = roomy_problem(seed, resources=resources)
    solution, optimum = solve(problem, method=method), linear_optimum(problem)
    assert solution.bound <= optimum + 1e-6 * abs(optimum)
    assert solution.bound >= optimum - 2e-3 * abs(optimum)
    check(problem, solution)


@pytest.mark.parametrize("method", [*DUALS, Method.GREEDY])
@pytest.mark.parametrize("maximise", [False, True])
def test_bounds_and_assignments_hold_beside_the_optimum(method: Method, maximise: bool) -> None:
    problem = random_problem(3, maximise=maximise)
    solution, best = solve(problem, method=method), solve(problem, method="exact")
    check(problem, solution)
    assert problem.sign * solution.bound <= problem.sign * best.objective + 1e-9


def test_matching_is_for_problems_with_equal_tasks() -> None:
    cost = np.array([[4.0, 1.0], [2.0, 3.0], [5.0, 9.0]])
    assert solve(matching_problem(cost, [2, 1]), method="matching").objective == 1 + 2 + 5
    with pytest.raises(ProblemError, match="every task needs as much"):
        solve(textbook(), method="matching")


def test_an_unknown_method_is_refused() -> None:
    with pytest.raises(ProblemError, match=r"no such method.*dual-smoothed"):
        solve(textbook(), method="simplex")
