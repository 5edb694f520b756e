"""The last overload of a rounding: tasks leave for any node that has room, far ones included.

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
    """An assignment [tasks] within the capacities made of one beside them; None where it can't be done so.

    Tasks leave an overloaded node one by one, the one with the least rise of reduced cost for each unit of
    overload that it takes away, to the node where its reduced cost is least among those that it fits on. It
    gives up at a time (`until_s`, perf_counter).
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
    """Move the task that costs least; changes `assignment` and `load`; returns whether one could leave."""
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
