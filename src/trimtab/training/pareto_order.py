"""Non-dominated sorting of members with two costs, and their distance to neighbours on the same front.

Source: Deb et al., A Fast and Elitist Multiobjective Genetic Algorithm: NSGA-II, IEEE Transactions on
Evolutionary Computation 6(2), 2002, §III. With two costs fronts are found by one sweep in order of the first.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from trimtab.compiled.kernel import helper


@helper(inline=True)
def better(rank: Any, distance: Any, a: Any, b: Any) -> Any:
    """Whether member a stands before b: a better front, or more distance on the same."""
    return rank[a] < rank[b] or (rank[a] == rank[b] and distance[a] > distance[b])


@helper
def pareto_order(costs: Any, count: Any, rank: Any, distance: Any) -> None:
    """Front (0 = dominated by none) and crowding distance of the first `count` members."""
    first = np.argsort(costs[:count, 0].copy(), kind="mergesort")
    for i in range(1, count):  # equal first costs: by the second
        k, j = first[i], i
        while j > 0 and costs[first[j - 1], 0] == costs[k, 0] and costs[first[j - 1], 1] > costs[k, 1]:
            first[j] = first[j - 1]
            j -= 1
        first[j] = k
    last = np.empty(count, np.int64)  # of each front: the member with the least second cost so far
    fronts = 0
    for i in range(count):
        k = first[i]
        low, high = 0, fronts  # the first front whose last member does not dominate k
        while low < high:
            middle = (low + high) // 2
            m = last[middle]
            if costs[m, 1] < costs[k, 1] or (costs[m, 1] == costs[k, 1] and costs[m, 0] < costs[k, 0]):
                low = middle + 1
            else:
                high = middle
        rank[k] = low
        last[low] = k
        fronts = max(fronts, low + 1)
    _spread(costs, count, rank, distance, first, last, fronts)


@helper
def _spread(costs: Any, count: Any, rank: Any, distance: Any, first: Any, last: Any, fronts: Any) -> None:
    """Crowding distance: along a front the second cost falls as the first one rises."""
    begin = np.full(fronts, -1)
    low, high = np.full((fronts, 2), math.inf), np.full((fronts, 2), -math.inf)
    for i in range(count):
        k = first[i]
        for c in range(2):
            low[rank[k], c] = min(low[rank[k], c], costs[k, c])
            high[rank[k], c] = max(high[rank[k], c], costs[k, c])
        distance[k] = 0.0
    before = np.full(count, -1)
    last[:fronts] = -1
    for i in range(count):
        k = first[i]
        front = rank[k]
        before[k] = last[front]
        if last[front] >= 0:
            m = last[front]
            if before[m] >= 0:
                distance[m] = _apart(costs, before[m], k, low[front], high[front])
        else:
            begin[front] = k
        last[front] = k
    for front in range(fronts):
        distance[begin[front]] = math.inf
        distance[last[front]] = math.inf


@helper(inline=True)
def _apart(costs: Any, a: Any, b: Any, low: Any, high: Any) -> Any:
    found = 0.0
    for c in range(2):
        if high[c] > low[c]:
            found += abs(costs[a, c] - costs[b, c]) / (high[c] - low[c])
    return found
