"""Small problems, and all their assignments tried one by one."""

from __future__ import annotations

import itertools
import math

import numpy as np

from trimtab.solvers import AssignmentProblem, Status, assignment_problem


def random_problem(
    seed: int, tasks: int = 5, nodes: int = 3, resources: int = 1, **options
) -> AssignmentProblem:
    """Demands that leave about a quarter of the capacity free; integers, so that sums are exact."""
    draw = np.random.default_rng(seed)
    demand = draw.integers(1, 20, (tasks, nodes, resources))
    capacity = np.maximum(demand.mean(axis=1).sum(axis=0) * 1.3 / nodes, 1).astype(int)
    capacity = np.tile(capacity, (nodes, 1)) + draw.integers(0, 5, (nodes, resources))
    return assignment_problem(draw.integers(1, 60, (tasks, nodes)), demand, capacity, **options)


def best_by_trying(problem: AssignmentProblem) -> float:
    """Value of the best assignment, NaN where none is feasible."""
    best = math.nan
    choices = [range(-1 if optional else 0, problem.nodes) for optional in problem.optional]
    for chosen in itertools.product(*choices):
        assignment = np.array(chosen)
        if problem.is_feasible(assignment):
            value = problem.objective(assignment)
            if math.isnan(best) or problem.sign * value < problem.sign * best:
                best = value
    return best


def check_by_trying(problem: AssignmentProblem, solution) -> None:
    """It is the best of all, proved; or there is none, with a reason."""
    best = best_by_trying(problem)
    if math.isnan(best):
        assert solution.status is Status.INFEASIBLE
        assert solution.reason
    else:
        assert solution.status is Status.OPTIMAL
        assert solution.objective == best
        check(problem, solution)


def check(problem: AssignmentProblem, solution) -> None:
    """What holds of every solution: the figures are those of its assignment, and the bound is on its side."""
    assert problem.is_feasible(solution.assignment)
    assert solution.objective == problem.objective(solution.assignment)
    assert problem.sign * solution.bound <= problem.sign * solution.objective
    assert solution.gap_frac >= 0
