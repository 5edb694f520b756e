"""Branch and bound: every question against the optimum, by trying everything or by HiGHS; rising bounds."""

from __future__ import annotations

import math

import numpy as np
import pytest

from support.gap_oracle import best_by_trying, random_problem
from trimtab.compiled.kernel import interpreted
from trimtab.solvers import AssignmentProblem, Status, assignment_problem, bounded_search, solve
from trimtab.solvers.bounded_search import BoundSearch, Dives, ask
from trimtab.solvers.branching import NO, OPEN, YES, explore
from trimtab.solvers.candidate_pairs import nearest
from trimtab.solvers.knapsack import Knapsacks, knapsacks_of
from trimtab.solvers.solve import solve_exact


def climbed(problem: AssignmentProblem, target: float, times: int = 1) -> Knapsacks:
    """The dual by resource, so many slices of time above nothing."""
    free = np.zeros((problem.nodes + 1, 1))
    knapsacks = knapsacks_of(nearest(problem, free, problem.nodes + 1), free)
    assert knapsacks is not None
    for _ in range(times):
        knapsacks.climb(target)
    return knapsacks


def type_b(seed: int, tasks: int, nodes: int) -> AssignmentProblem:
    """Type B of the literature (Martello and Toth 1981): capacities are scarce, demand and cost unrelated."""
    draw = np.random.default_rng(seed)
    demand, cost = draw.integers(5, 26, (tasks, nodes)), draw.integers(10, 51, (tasks, nodes))
    cheapest = cost.argmin(axis=1)
    load = np.bincount(cheapest, demand[np.arange(tasks), cheapest], nodes)
    return assignment_problem(cost, demand, np.full(nodes, 0.7 * (9 * tasks / nodes + 0.4 * load.max())))


def answer(problem: AssignmentProblem, knapsacks: Knapsacks, most: float) -> int:
    """The answer to one question, with its solution checked."""
    question = ask(knapsacks, knapsacks.floors(), most)
    while question.answer == OPEN:
        question.search()
    if question.answer == YES:
        assignment = np.where(question.nodes == problem.nodes, -1, question.nodes)
        assert problem.is_feasible(assignment)
        assert problem.sign * problem.objective(assignment) <= most
    return question.answer


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("options", [{}, {"maximise": True}, {"optional": True, "skip_value": 40.0}])
def test_small_questions_are_answered_as_by_trying_everything(seed, options):
    problem = random_problem(seed, tasks=6, **options)
    best = problem.sign * best_by_trying(problem)
    knapsacks = climbed(problem, 200.0 if math.isnan(best) else best)
    for most in range(math.floor(knapsacks.value), math.floor(knapsacks.value) + 40):
        expected = YES if best <= most else NO  # with NaN, no solution at all: NO
        assert answer(problem, knapsacks, float(most)) == expected


@pytest.mark.parametrize("seed", range(3))
def test_questions_about_the_optimum_and_one_less(seed):
    problem = type_b(seed, 40, 5)
    best = solve_exact(problem, time_limit_s=30.0)
    assert best.status is Status.OPTIMAL
    knapsacks = climbed(problem, best.objective)
    assert answer(problem, knapsacks, best.objective) == YES
    assert answer(problem, knapsacks, best.objective - 1) == NO


def test_a_ladder_climbs_to_the_optimum():
    problem = type_b(7, 60, 5)
    knapsacks = climbed(problem, 2_000.0)
    bound_search = BoundSearch(knapsacks, knapsacks.floors())
    bound, nodes = math.ceil(knapsacks.value - 1e-6), None
    while nodes is None:
        bound, nodes = bound_search.search(bound)
    assert problem.objective(nodes) == bound == solve_exact(problem, time_limit_s=30.0).objective


def test_a_ladder_ends_where_points_take_too_long(monkeypatch):
    monkeypatch.setattr(bounded_search, "MOST_CELLS", 100)
    problem = type_b(1, 40, 5)
    knapsacks = climbed(problem, 2_000.0)
    bound_search = BoundSearch(knapsacks, knapsacks.floors())
    bound = math.ceil(knapsacks.value) + 50.0
    assert bound_search.search(bound) == (bound, None)
    assert bound_search.is_over


def dived(problem: AssignmentProblem, dives: Dives, most: float = math.inf) -> tuple[float, list[float]]:
    """(bound, costs of the solutions that were found) once they meet; each is better than the one before.

    Where there is no solution, once the bound is `most`.
    """
    bound, costs = math.ceil(dives.knapsacks.value - 1e-6), [math.inf]
    while bound < min(costs[-1], most):
        bound, nodes = dives.search(bound, costs[-1])
        if nodes is not None:
            assignment = np.where(nodes == problem.nodes, -1, nodes)
            assert problem.is_feasible(assignment)
            assert problem.sign * problem.objective(assignment) < costs[-1]
            costs.append(problem.sign * problem.objective(assignment))
    return bound, costs


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("options", [{}, {"maximise": True}])
def test_dives_end_at_the_optimum(seed, options):
    problem = random_problem(seed, tasks=6, **options)
    best = problem.sign * best_by_trying(problem)
    knapsacks = climbed(problem, 200.0 if math.isnan(best) else best)
    bound, costs = dived(problem, Dives(knapsacks, knapsacks.floors()), 400.0)
    assert costs[-1] == (math.inf if math.isnan(best) else best)
    assert math.isnan(best) or bound == best


@pytest.mark.parametrize("patience_s", [0.2, 1e-4])
def test_dives_that_are_given_up_are_taken_up_again(monkeypatch, patience_s):
    monkeypatch.setattr(bounded_search, "FIRST_SLICES", 1.0)
    problem = type_b(7, 40, 5)
    knapsacks = climbed(problem, 2_000.0)
    bound, costs = dived(problem, Dives(knapsacks, knapsacks.floors(), _patience_s=patience_s))
    assert bound == costs[-1] == solve_exact(problem, time_limit_s=30.0).objective


def test_a_dive_on_a_part_of_the_pairs_proves_nothing(monkeypatch):
    """With each task's first pair alone there is no solution, but of these pairs only."""
    monkeypatch.setattr(bounded_search, "MOST_DIVE_CELLS", 0)
    monkeypatch.setattr(bounded_search, "DIVE_WIDTH", 1)
    problem = type_b(7, 40, 5)
    knapsacks = climbed(problem, 2_000.0)
    dives, bound = Dives(knapsacks, knapsacks.floors()), math.ceil(knapsacks.value - 1e-6)
    for _ in range(30):
        assert dives.search(bound, math.inf) == (bound, None)
    monkeypatch.setattr(bounded_search, "MOST_CUT_CELLS", -1)
    dives.search(bound, math.inf)
    assert dives.is_over


def test_a_dive_on_a_part_of_the_pairs_finds_solutions(monkeypatch):
    monkeypatch.setattr(bounded_search, "MOST_DIVE_CELLS", 0)
    problem = random_problem(5, tasks=60, nodes=6)
    knapsacks = climbed(problem, 4_000.0)
    dives, bound, nodes = Dives(knapsacks, knapsacks.floors()), math.ceil(knapsacks.value - 1e-6), None
    for _ in range(200):
        _, nodes = dives.search(bound, math.inf) if nodes is None else (bound, nodes)
    assert nodes is not None
    assert problem.is_feasible(nodes)


@pytest.mark.parametrize("seed", range(2))
def test_scarce_capacities_are_proved_within_the_time(seed):
    """HiGHS alone is far from a proof of these in that time."""
    problem = type_b(seed, 200, 5)
    solution = solve(problem, time_limit_s=20.0)
    assert solution.status is Status.OPTIMAL
    assert problem.is_feasible(solution.assignment)
    assert solution.method.startswith("dual smoothing, ejection chains, dual by resource, branch and bound")


@pytest.mark.parametrize("share", [0.0, 0.2])
def test_the_search_gives_the_same_bits_interpreted_and_in_parts(share):
    problem = type_b(7, 50, 5)
    knapsacks = climbed(problem, 2_000.0)
    best = solve_exact(problem, time_limit_s=30.0).objective
    ends = []
    for run, points in ((explore, 1), (explore, 12), (interpreted(explore), 4)):
        question = ask(knapsacks, knapsacks.floors(), best - 1)
        tree = question._tree
        found = [
            run(question.pairs, tree, question._scratch, best - 1, points, share) for _ in range(12 // points)
        ]
        ends.append((found[-1], [column.tolist() for column in tree]))
    assert ends[0][0] == OPEN
    assert ends[0] == ends[1] == ends[2]
