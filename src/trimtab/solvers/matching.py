"""Matching of tasks of one size to nodes with several places; one task per node is a special case.

Idea: with demands of 1 the programme is a transportation problem, whose linear relaxation is integral: linear
assignment finds its optimum if each node has one column for each of its places. If that makes too
many columns (`MOST_CELLS`), `solve` takes the dual instead, whose bound is then tight.
Source: Crouse, On implementing 2D rectangular assignment algorithms, IEEE Trans. Aerospace and Electronic
Systems 52(4), 2016 (scipy's); the reduction to repeated columns is in Ahuja, Magnanti and Orlin, Network
Flows, 1993, §12.
Deviations: where some tasks are optional they get a column of their own, at the price of being left out;
forbidden pairs cost more than all that is allowed, and an optimum that uses one proves that there is no
matching.
"""

from __future__ import annotations

import time

import numpy as np
from scipy.optimize import linear_sum_assignment

from trimtab.solvers.candidate_pairs import Floats, Ints
from trimtab.solvers.problem import TOLERANCE_FRAC, AssignmentProblem, IntArray, assignment_problem
from trimtab.solvers.solution import Solution, Status, found, nothing

MOST_CELLS = 30_000_000  # of the expanded matrix: 240 MB
QUICK_CELLS = 1_000_000  # up to here it is the quicker way whatever the number of places
FEW_PLACES = 3.0  # tasks a node, up to which the dual has a hard time to prove an optimum
SLOWEST_S, GROWTH = 1.2, 1.5  # of a million cells, costs as of a scheduler; the power that it grows by


def places_of(problem: AssignmentProblem) -> Ints | None:
    """Places of each node [nodes], if all tasks have the same demand in the only resource; else None."""
    if problem.demand.shape[2] != 1:
        return None
    demand = problem.demand[..., 0]
    size = demand[0]
    if not (size > 0).all() or not (demand == size).all():
        return None
    count = np.floor(problem.capacity[:, 0] * (1 + TOLERANCE_FRAC) / size)
    return np.asarray(np.minimum(count, problem.tasks), np.int32)


def expanded_cells(problem: AssignmentProblem, places: Ints) -> int:
    """Cells of the matrix for linear assignment."""
    skips = problem.tasks if problem.optional.any() and not problem.optional.all() else 0
    return problem.tasks * (int(places.sum(dtype=np.int64)) + skips)


def is_worth_it(problem: AssignmentProblem, places: Ints, time_limit_s: float) -> bool:
    """Whether linear assignment is fast enough, and faster to the optimum than the dual."""
    cells = expanded_cells(problem, places)
    is_in_time = SLOWEST_S * (cells / 1e6) ** GROWTH <= time_limit_s
    is_quicker = cells <= QUICK_CELLS or problem.tasks <= FEW_PLACES * np.count_nonzero(places)
    return cells <= MOST_CELLS and is_in_time and bool(is_quicker)


def match(problem: AssignmentProblem, places: Ints, begun_s: float | None = None) -> Solution:
    """The proven optimum of a transportation problem; time counts from `begun_s`, default: now."""
    begin_s = time.perf_counter() if begun_s is None else begun_s
    if problem.optional.all():
        return _match_optional(problem, places, begin_s)
    cost, column = _expanded(problem, places)
    dear = _dear(cost)
    empty = np.full(problem.tasks, -1, np.int32)
    if cost.shape[1] < cost.shape[0]:
        took_s = time.perf_counter() - begin_s
        return _impossible(
            problem, empty, took_s, f"{problem.tasks} tasks of one size, and room for {cost.shape[1]}"
        )
    row, chosen = linear_sum_assignment(np.where(np.isfinite(cost), cost, dear))
    took_s = time.perf_counter() - begin_s
    if not np.isfinite(cost[row, chosen]).all():
        stuck = int(row[~np.isfinite(cost[row, chosen])][0])
        return _impossible(problem, empty, took_s, f"task {stuck} is left without a place that it may use")
    assignment = column[chosen]
    return found(problem, assignment, problem.objective(assignment), took_s, "matching")


def _match_optional(problem: AssignmentProblem, places: Ints, begin_s: float) -> Solution:
    """All tasks are optional: a pair without gain stands for left out, so no columns are added."""
    column = np.repeat(np.arange(problem.nodes, dtype=np.int32), places)
    saved = problem.sign * (problem.value[:, column].astype(np.float64) - problem.skip_value[:, None])
    saved = np.minimum(saved, 0.0)
    row, chosen = linear_sum_assignment(saved)
    pays = saved[row, chosen] < 0.0
    assignment = np.full(problem.tasks, -1, np.int32)
    assignment[row[pays]] = column[chosen[pays]]
    took_s = time.perf_counter() - begin_s
    return found(problem, assignment, problem.objective(assignment), took_s, "matching")


def _impossible(problem: AssignmentProblem, empty: IntArray, took_s: float, reason: str) -> Solution:
    bound = problem.sign * np.inf
    return nothing(problem, Status.INFEASIBLE, empty, bound, took_s, "matching", reason)


def _expanded(problem: AssignmentProblem, places: Ints) -> tuple[Floats, Ints]:
    """Costs [tasks, places] with a column for each place, and the node of each column [places]."""
    column = np.repeat(np.arange(problem.nodes, dtype=np.int32), places)
    cost = problem.sign * problem.value[:, column].astype(np.float64)
    if not problem.optional.any():
        return cost, column
    skip = np.full((problem.tasks, problem.tasks), np.inf)
    optional = np.flatnonzero(problem.optional)
    skip[optional, optional] = problem.sign * problem.skip_value[optional]
    return np.hstack([cost, skip]), np.append(column, np.full(problem.tasks, -1, np.int32))


def _dear(cost: Floats) -> float:
    """Cost of a forbidden pair: more than any matching can save by using one."""
    allowed = cost[np.isfinite(cost)]
    if not allowed.size:
        return 1.0
    least, most = float(allowed.min()), float(allowed.max())
    return most + (most - least + 1.0) * int(cost.shape[0])


def matching_problem(
    value: Floats, places: IntArray | int = 1, *, maximise: bool = False, all_tasks: bool = True
) -> AssignmentProblem:
    """The problem of tasks of equal size on nodes with places.

    Args:
        value: [tasks, nodes] cost or utility; infinitely bad forbids a pair.
        places: [nodes] or one number for all nodes.
        maximise: most value; with `all_tasks` False a maximum-weight matching.
        all_tasks: whether every task must have a node; else leaving one out has the value 0.
    """
    shape = np.shape(value)
    capacity = np.broadcast_to(np.asarray(places, np.float64), shape[1:])
    return assignment_problem(value, np.ones(shape), capacity, maximise=maximise, optional=not all_tasks)
