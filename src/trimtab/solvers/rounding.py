"""Rounding: picks one node for each task from the fractional shares of the smoothed dual.

Idea: tasks are settled one by one, those with the clearest choice first. What is settled loads a node as it
is, what is not yet as its shares say. What a node is loaded with beyond its capacity moves its price, by as
much as brings the shares back: excess over the sensitivity of its expected load, Σ d² p (1 − p) / μ of the
tasks still to settle. Fewer and fewer are left, so that prices get stiffer towards the end. A task takes the
node of least cost under these prices.
Source: feedback in place of drawing nodes by their shares (assignment by independent draws leaves overload
of the order √tasks a node); the sensitivity is the diagonal of the smoothed Hessian of `dual`.
Cost: O(pairs + tasks log tasks).

Repairs the remaining overload of a rounding: tasks move to any node with room, also to distant nodes.

Source: Martello and Toth, Knapsack Problems, 1990, §7.4; the order is by rise of reduced cost a unit freed.
"""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np

from trimtab.compiled.kernel import helper, kernel
from trimtab.solvers.candidate_pairs import CandidatePairs, Floats, Ints
from trimtab.solvers.dual import Dual, mean_demand, softmin_row, spread_of
from trimtab.solvers.problem import TOLERANCE_FRAC, AssignmentProblem, FloatArray

STIFFEST = 0.003  # sensitivity at least, as a share of a mean demand squared a spread of costs


def rounded(candidates: CandidatePairs, dual: Dual) -> Ints:
    """A column [tasks] for each task, near the capacities of nodes but not within them."""
    share = np.zeros(candidates.node.shape)
    _share(candidates, dual.prices, dual.softness, share)
    order = np.argsort(-share.max(axis=1), kind="stable").astype(np.int32)
    stiffest = STIFFEST * mean_demand(candidates) ** 2 / spread_of(candidates)
    choice = np.zeros(order.size, np.int32)
    _settle(candidates, dual.prices, dual.softness, share, order, stiffest, choice)
    return choice


@kernel
def _share(candidates: Any, prices: Any, softness: Any, share: Any) -> None:
    """Softmin shares [tasks, width]."""
    for j in range(share.shape[0]):
        _, count, mass = softmin_row(
            candidates.node, candidates.cost, candidates.demand, prices, softness, j, share[j]
        )
        for k in range(count):
            share[j, k] /= mass


@helper
def _expect(candidates: Any, share: Any, j: Any, sign: Any, load: Any, give: Any) -> None:
    """Add (or subtract) the expected load of task j and its sensitivity to prices."""
    for k in range(share.shape[1]):
        p = share[j, k]
        if p > 0.0:
            i = candidates.node[j, k]
            for r in range(load.shape[1]):
                d = candidates.demand[j, k, r]
                load[i, r] += sign * p * d
                give[i, r] += sign * d * d * p * (1.0 - p)


@helper
def _cheapest(
    candidates: Any, prices: Any, softness: Any, stiffest: Any, load: Any, give: Any, j: Any
) -> Any:
    """Cheapest column of task j under prices adjusted by the load of the nodes."""
    best, best_k = np.inf, 0
    for k in range(candidates.node.shape[1]):
        i = candidates.node[j, k]
        if i < 0:
            break
        value = candidates.cost[j, k]
        for r in range(load.shape[1]):
            d = candidates.demand[j, k, r]
            excess = load[i, r] - candidates.capacity[i, r] + 0.5 * d
            value += d * max(0.0, prices[i, r] + excess / max(give[i, r] / softness, stiffest[r]))
        if value < best:
            best, best_k = value, k
    return best_k


@kernel
def _settle(
    candidates: Any, prices: Any, softness: Any, share: Any, order: Any, stiffest: Any, choice: Any
) -> None:
    load, give = np.zeros(candidates.capacity.shape), np.zeros(candidates.capacity.shape)
    for j in range(order.size):
        _expect(candidates, share, j, 1.0, load, give)
    for n in range(order.size):
        j = order[n]
        _expect(candidates, share, j, -1.0, load, give)
        k = _cheapest(candidates, prices, softness, stiffest, load, give, j)
        choice[j] = k
        for r in range(load.shape[1]):
            load[candidates.node[j, k], r] += candidates.demand[j, k, r]


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
