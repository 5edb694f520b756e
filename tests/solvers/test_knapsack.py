"""The dual by resource against trying everything: its value, its bound, and the floors of pairs."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from support.gap_oracle import best_by_trying, random_problem
from trimtab.compiled.kernel import interpreted
from trimtab.solvers import assignment_problem, knapsack
from trimtab.solvers.candidate_pairs import nearest
from trimtab.solvers.dual import climb
from trimtab.solvers.knapsack import knapsacks_of

TASKS, NODES = 6, 3


def relaxed(seed: int, **options):
    """A problem, its pairs in order of reduced cost, and both duals."""
    problem = random_problem(seed, tasks=TASKS, nodes=NODES, **options)
    free = np.zeros((NODES + 1, 1))
    dual = climb(nearest(problem, free, NODES + 1), free)
    candidates = nearest(problem, dual.prices, NODES + 1)
    return problem, candidates, dual, knapsacks_of(candidates, dual.prices)


def value_by_trying(problem, price) -> float:
    """L(u): each node's best set of tasks by trying all of them; each task's gain of being left out."""
    cost = problem.sign * problem.value
    total = float(price.sum())
    for i in range(problem.nodes):
        best = 0.0
        for chosen in itertools.product([False, True], repeat=problem.tasks):
            taken = np.array(chosen)
            if problem.demand[taken, i, 0].sum() <= problem.capacity[i, 0]:
                best = max(best, float((price - cost[:, i])[taken].sum()))
        total -= best
    left_out = np.where(problem.optional, price - problem.sign * problem.skip_value, 0.0)
    return total - float(np.maximum(left_out, 0.0).sum())


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("options", [{}, {"maximise": True}, {"optional": True, "skip_value": 40.0}])
def test_the_bound_is_the_value_of_its_prices_and_below_the_optimum(seed, options):
    problem, _, dual, knapsacks = relaxed(seed, **options)
    best = problem.sign * best_by_trying(problem)
    target = 1e3 if math.isnan(best) else best
    for _ in range(3):
        knapsacks.climb(target)
    assert knapsacks.value == pytest.approx(value_by_trying(problem, knapsacks.best), abs=1e-6)
    assert knapsacks.value >= dual.value - 1e-6
    assert math.isnan(best) or knapsacks.value <= best + 1e-6


@pytest.mark.parametrize("seed", range(3))
def test_no_solution_that_uses_a_pair_costs_less_than_its_floor(seed):
    problem, candidates, _, knapsacks = relaxed(seed)
    knapsacks.climb(1e3 if math.isnan(best_by_trying(problem)) else best_by_trying(problem))
    floors = knapsacks.floors()
    least = np.full((TASKS, NODES), np.inf)
    for chosen in itertools.product(range(NODES), repeat=TASKS):
        assignment = np.array(chosen)
        if problem.is_feasible(assignment):
            used = (np.arange(TASKS), assignment)
            least[used] = np.minimum(least[used], problem.objective(assignment))
    for j, k in np.argwhere(candidates.node >= 0):
        i = candidates.node[j, k]
        assert floors[i, j] <= least[j, i] + 1e-6


def test_a_large_tight_problem_is_bounded_better_than_by_the_dual_by_task():
    draw = np.random.default_rng(0)
    demand = draw.integers(5, 101, (60, 12))
    problem = assignment_problem(111 - demand, demand, 0.8 * demand.sum(axis=0) / 12)
    free = np.zeros((13, 1))
    dual = climb(nearest(problem, free, 13), free)
    knapsacks = knapsacks_of(nearest(problem, dual.prices, 13), dual.prices)
    while not knapsacks.is_settled:
        knapsacks.climb(1.01 * dual.value)
    assert knapsacks.value > dual.value + 1


def test_only_whole_demands_of_one_resource_have_one():
    free = np.zeros((NODES + 1, 1))
    problem = random_problem(0, tasks=TASKS, nodes=NODES)
    problem.demand[0, 0, 0] += 0.5
    assert knapsacks_of(nearest(problem, free, NODES + 1), free) is None
    several = random_problem(0, tasks=TASKS, nodes=NODES, resources=2)
    both = np.zeros((NODES + 1, 2))
    assert knapsacks_of(nearest(several, both, NODES + 1), both) is None


def test_the_climb_gives_the_same_bits_interpreted():
    _, _, _, knapsacks = relaxed(1)
    ends = []
    for run in (lambda f: f, interpreted):
        best, point = knapsacks.best.copy(), knapsacks.point.copy()
        end = run(knapsack._climb)(
            knapsacks.cost, knapsacks.size, knapsacks.room, best, point, -math.inf, 150.0, 1.0, 0, 30
        )
        loss = run(knapsack._forced)(knapsacks.cost, knapsacks.size, knapsacks.room, best)
        ends.append((end, best.tolist(), point.tolist(), [part.tolist() for part in loss]))
    assert ends[0] == ends[1]
