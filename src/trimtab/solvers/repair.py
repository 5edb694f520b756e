"""Repairs the remaining overload of a rounding: tasks move to any node with room, also to distant nodes.

Source: Martello and Toth, Knapsack Problems, 1990, §7.4; the order is by rise of reduced cost a unit freed.
"""

from __future__ import annotations

import math
import time

import numpy as np

from trimtab.solvers.candidate_pairs import Floats, Ints
from trimtab.solvers.problem import TOLERANCE_FRAC, AssignmentProblem, FloatArray


def repaired(
    problem: AssignmentProblem, assignment: Ints, prices: Floats, until_s: float = math.inf
) -> Ints | None:
    """A feasible assignment [tasks] made from one that exceeds capacities; None if the repair fails.

    Tasks leave an overloaded node one by one. The task with the least rise of reduced cost per unit of
    removed overload leaves first. It goes to the node of least reduced cost among the nodes on which it fits.
    The repair stops at the time `until_s` (perf_counter).
    """
    assignment, load = assignment.copy(), problem.load(assignment)
    room = problem.capacity * (1 + TOLERANCE_FRAC)
    for node in np.flatnonzero((load > room).any(axis=1)):
        while (load[node] > room[node]).any():
            moved = _one_leaves(problem, assignment, prices, load, room, int(node))
            if not moved or time.perf_counter() > until_s:
                return None
    return assignment


def _one_leaves(
    problem: AssignmentProblem, assignment: Ints, prices: Floats, load: Floats, room: FloatArray, node: int
) -> bool:
    """Move the task of least cost; changes `assignment` and `load`; returns whether a task could move."""
    tasks = np.flatnonzero(assignment == node)
    demand = problem.demand[tasks]  # [tasks here, nodes, resources]
    price = problem.sign * problem.value[tasks] + (demand * prices[: problem.nodes]).sum(axis=2)
    fits = np.asarray((load + demand <= room).all(axis=2))
    fits[:, node] = False
    target = np.where(fits, price, np.inf)
    to = target.argmin(axis=1)
    rise = target[np.arange(tasks.size), to] - price[:, node]
    over = np.maximum(load[node] - room[node], 0.0)
    freed = (np.minimum(demand[:, node], over) / np.maximum(room[node], 1e-12)).sum(axis=1)
    rate = np.where(freed > 0, rise / np.maximum(freed, 1e-12), np.inf)
    chosen = int(rate.argmin())
    if not np.isfinite(rate[chosen]):
        return False
    load[node] -= demand[chosen, node]
    load[to[chosen]] += demand[chosen, to[chosen]]
    assignment[tasks[chosen]] = to[chosen]
    return True
