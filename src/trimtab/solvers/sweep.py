"""Sweeps: every task in turn moves to a better node, or changes places with a task of one.

The plain shift and swap neighbourhoods of the assignment problem (Martello and Toth, Knapsack Problems, 1990,
§7.4), under weighted overload. A move counts at once for the next task, so that a sweep makes many: this is
what brings a rounding of a large problem into its capacities.
Cost: O(pairs + tasks · nodes tried · tasks tried · width) a sweep.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trimtab.domain.kernel import helper, kernel
from trimtab.solvers.exchange import LEAST_GAIN, move, overload, relink, reweigh, worth

HARDEN, EASE = 1.5, 0.8  # factors on the weights of what is overloaded, and of all while nothing is


@helper
def _shift(
    node: Any, cost: Any, demand: Any, capacity: Any, choice: Any, load: Any, weight: Any, j: Any
) -> Any:
    """Column of the best node for task j alone; its own where none is better."""
    own = choice[j]
    a = node[j, own]
    left = overload(load, capacity, weight, a, demand, -1, 0, j, own)
    left -= overload(load, capacity, weight, a, demand, -1, 0, -1, 0)
    best, best_k = -LEAST_GAIN, own
    for k in range(node.shape[1]):
        i = node[j, k]
        if i < 0:
            break
        change = left + cost[j, k] - cost[j, own]
        if k == own or change >= best:
            continue  # overload of the other node only adds to it, unless it has too much already
        change += overload(load, capacity, weight, i, demand, j, k, -1, 0)
        change -= overload(load, capacity, weight, i, demand, -1, 0, -1, 0)
        if change < best:
            best, best_k = change, k
    return best_k


@helper
def _column(node: Any, j: Any, i: Any) -> Any:
    """Column of node i among those of task j; −1 where it is not near."""
    for k in range(node.shape[1]):
        if node[j, k] == i:
            return k
    return -1


@helper
def _swap(
    node: Any,
    cost: Any,
    demand: Any,
    capacity: Any,
    choice: Any,
    load: Any,
    weight: Any,
    head: Any,
    after: Any,
    cursor: Any,
    j: Any,
    width: Any,
    tries: Any,
) -> Any:
    """(column of j, partner, column of the partner) of the best exchange tried; partner −1 for none."""
    own = choice[j]
    a = node[j, own]
    over_a = overload(load, capacity, weight, a, demand, -1, 0, -1, 0)
    best, best_k, best_j2, best_k2 = -LEAST_GAIN, -1, -1, -1
    for k in range(min(width, node.shape[1])):
        i = node[j, k]
        if i < 0:
            break
        if i == a or head[i] < 0:
            continue
        over_i = overload(load, capacity, weight, i, demand, -1, 0, -1, 0)
        j2 = cursor[i]
        if j2 < 0 or node[j2, choice[j2]] != i:
            j2 = head[i]
        first = j2
        for _ in range(tries):
            own2 = choice[j2]
            k2 = _column(node, j2, a)
            if k2 >= 0:
                change = cost[j, k] - cost[j, own] + cost[j2, k2] - cost[j2, own2] - over_a - over_i
                if change < best:
                    for r in range(capacity.shape[1]):
                        at_i = load[i, r] + demand[j, k, r] - demand[j2, own2, r] - capacity[i, r]
                        at_a = load[a, r] + demand[j2, k2, r] - demand[j, own, r] - capacity[a, r]
                        change += weight[i, r] * max(at_i, 0.0) + weight[a, r] * max(at_a, 0.0)
                    if change < best:
                        best, best_k, best_j2, best_k2 = change, k, j2, k2
            j2 = after[j2] if after[j2] >= 0 else head[i]
            if j2 == first:
                break
        cursor[i] = j2
    return best_k, best_j2, best_k2


@kernel(nogil=True)
def sweep(
    node: Any,
    cost: Any,
    demand: Any,
    capacity: Any,
    width: Any,
    tries: Any,
    choice: Any,
    weight: Any,
    order: Any,
) -> Any:
    """Shift, or else swap, each task in this order; changes `choice`; returns (moves, cost, overload)."""
    load = np.zeros(capacity.shape)
    tasks, nodes = node.shape[0], capacity.shape[0]
    head, after, before = np.empty(nodes, np.int32), np.empty(tasks, np.int32), np.empty(tasks, np.int32)
    cursor = np.full(nodes, -1, np.int32)
    relink(node, demand, choice, load, head, after, before)
    moves = 0
    for at in range(tasks):
        j = order[at]
        k = _shift(node, cost, demand, capacity, choice, load, weight, j)
        if k != choice[j]:
            move(node, demand, choice, load, head, after, before, j, k)
            moves += 1
            continue
        k, j2, k2 = _swap(
            node, cost, demand, capacity, choice, load, weight, head, after, cursor, j, width, tries
        )
        if j2 >= 0:
            move(node, demand, choice, load, head, after, before, j, k)
            move(node, demand, choice, load, head, after, before, j2, k2)
            moves += 1
    relink(node, demand, choice, load, head, after, before)
    total, over = worth(node, cost, capacity, choice, load, weight)
    reweigh(load, capacity, weight, HARDEN, EASE if over == 0.0 else 1.0)
    return moves, total, over
