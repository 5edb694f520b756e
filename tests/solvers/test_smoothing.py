"""The dual method: true bounds, chains that add up, feasible ends, proofs; compiled as interpreted."""

from __future__ import annotations

import math

import numpy as np
import pytest
from oracle import best_by_trying, check, random_problem
from scipy.optimize import linprog

from trimtab.domain.kernel import interpreted
from trimtab.solvers import AssignmentProblem, Status, assignment_problem, solve
from trimtab.solvers.dual import climb, exact_value, sample_choice
from trimtab.solvers.exchange import search
from trimtab.solvers.near import dual_value, nearest
from trimtab.solvers.smoothing import solve_by_dual
from trimtab.solvers.solve import compile_solvers


def tight_problem(
    seed: int, tasks: int, nodes: int, resources: int = 1, share: float = 0.8
) -> AssignmentProblem:
    """As type D of Chu and Beasley: what is cheap needs much; capacities are `share` of the mean demand."""
    draw = np.random.default_rng(seed)
    demand = draw.integers(5, 101, (tasks, nodes, resources))
    cost = 111 - demand.max(axis=2) + draw.integers(-10, 11, (tasks, nodes))
    return assignment_problem(cost, demand, share * demand.sum(axis=(0, 1)) / nodes**2 * np.ones((nodes, 1)))


def linear_bound(problem: AssignmentProblem) -> float:
    """Optimum of the linear relaxation."""
    tasks, nodes, resources = problem.demand.shape
    once = np.kron(np.eye(tasks), np.ones((1, nodes)))
    used = [np.kron(problem.demand[j, :, r], 1) for j in range(tasks) for r in range(resources)]
    rows = np.zeros((nodes * resources, tasks * nodes))
    for n, amounts in enumerate(used):
        j, r = divmod(n, resources)
        rows[np.arange(nodes) * resources + r, j * nodes + np.arange(nodes)] = amounts
    found = linprog(problem.value.ravel(), rows, problem.capacity.ravel(), once, np.ones(tasks))
    return float(found.fun)


@pytest.fixture(autouse=True, scope="module")
def _compiled() -> None:
    compile_solvers()


@pytest.mark.parametrize("resources", [1, 3])
def test_the_dual_comes_close_to_the_linear_relaxation_from_below(resources):
    problem = tight_problem(0, 40, 6, resources, share=0.8 if resources == 1 else 1.0)
    free = np.zeros((7, resources))
    dual = climb(nearest(problem, free, 7), free)
    assert dual.value == pytest.approx(dual_value(problem, dual.prices), rel=1e-12)
    assert linear_bound(problem) * 0.997 < dual.value <= linear_bound(problem) + 1e-6


def test_any_prices_bound_the_optimum():
    problem = random_problem(3)
    best = best_by_trying(problem)
    draw = np.random.default_rng(0)
    for _ in range(20):
        assert dual_value(problem, np.vstack([draw.exponential(2.0, (3, 1)), [[0.0]]])) <= best + 1e-9


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("options", [{}, {"maximise": True}, {"resources": 2}, {"optional": True}])
def test_small_problems_end_at_the_optimum(seed, options):
    problem = random_problem(seed, tasks=6, **options)
    best = best_by_trying(problem)
    solution = solve_by_dual(problem, time_limit_s=2.0)
    if math.isnan(best):
        assert solution.status is Status.INFEASIBLE
    else:
        assert solution.status is Status.OPTIMAL
        assert solution.objective == best
        check(problem, solution)


def test_a_tight_problem_within_its_time():
    problem = tight_problem(1, 60, 8)
    solution = solve(problem, time_limit_s=1.0)
    check(problem, solution)
    assert solution.gap_frac < 0.05
    assert solution.bound >= linear_bound(problem) * 0.999
    assert solution.status is Status.OPTIMAL or "time limit of 1 s" in solution.reason


def test_a_large_problem_and_its_warm_start():
    problem = tight_problem(2, 3_000, 20)
    cold = solve(problem, time_limit_s=10.0)
    check(problem, cold)
    assert cold.gap_frac < 0.02
    value = problem.value.copy()
    value[:30] = value[30:60]
    changed = assignment_problem(value, problem.demand, problem.capacity)
    warm = solve(changed, time_limit_s=10.0, start=cold)
    check(changed, warm)
    assert warm.gap_frac < 0.02


def test_kernels_give_the_same_bits_interpreted():
    problem = tight_problem(5, 20, 4)
    free = np.zeros((5, 1))
    near = nearest(problem, free, 5)
    dual = climb(near, free)
    uniform = np.random.default_rng(1).random(20)
    ends = []
    for run in (lambda f: f, interpreted):
        choice = run(sample_choice)(near.node, near.cost, near.demand, dual.prices, dual.softness, uniform)
        best, weight = choice.copy(), dual.prices + 0.5
        draws = np.random.default_rng(2).random((3, 4))
        cost = run(search)(
            near.node, near.cost, near.demand, near.capacity, 5, 3, 2, 4, 0.99, 1.1, 1.0,
            choice, best, math.inf, weight, draws, 50,
        )  # fmt: skip
        ends.append((cost, choice.tolist(), best.tolist(), weight.tolist()))
    assert ends[0] == ends[1]


def test_the_cost_that_a_search_returns_is_that_of_its_choice():
    problem = tight_problem(7, 30, 5)
    free = np.zeros((6, 1))
    near = nearest(problem, free, 6)
    dual = climb(near, free)
    choice = np.zeros(30, np.int32)
    best, weight = choice.copy(), dual.prices + 1.0
    draws = np.random.default_rng(0).random((40, 6))
    cost = search(
        near.node, near.cost, near.demand, near.capacity, 6, 4, 3, 6, 0.99, 1.2, 1.0,
        choice, best, math.inf, weight, draws, 1000,
    )  # fmt: skip
    assignment = near.nodes_of(best)
    assert problem.is_feasible(assignment)
    assert cost == problem.objective(assignment)
    assert exact_value(near, dual.prices) <= cost
