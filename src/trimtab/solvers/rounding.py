"""Rounding: of the shares that the smoothed dual gives each task on its nodes, one node each.

Idea: tasks are settled one by one, those with the clearest choice first. What is settled loads a node as it
is, what is not yet as its shares say. What a node is loaded with beyond its capacity moves its price, by as
much as brings the shares back: excess over the sensitivity of its expected load, Σ d² p (1 − p) / μ of the
tasks still to settle. Fewer and fewer are left, so that prices get stiffer towards the end. A task takes the
node of least cost under these prices.
Source: feedback in place of drawing nodes by their shares (assignment by independent draws leaves overload
of the order √tasks a node); the sensitivity is the diagonal of the smoothed Hessian of `dual`.
Cost: O(pairs + tasks log tasks).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trimtab.compiled.kernel import helper, kernel
from trimtab.solvers.dual import Dual, mean_demand, softmin_row, spread_of
from trimtab.solvers.near import Ints, Near

STIFFEST = 0.003  # sensitivity at least, as a share of a mean demand squared a spread of costs


def rounded(near: Near, dual: Dual) -> Ints:
    """A column [tasks] for each task, near the capacities of nodes but not within them."""
    share = np.zeros(near.node.shape)
    _share(near, dual.prices, dual.softness, share)
    order = np.argsort(-share.max(axis=1), kind="stable").astype(np.int32)
    stiffest = STIFFEST * mean_demand(near) ** 2 / spread_of(near)
    choice = np.zeros(order.size, np.int32)
    _settle(near, dual.prices, dual.softness, share, order, stiffest, choice)
    return choice


@kernel
def _share(near: Any, prices: Any, softness: Any, share: Any) -> None:
    """Softmin shares [tasks, width]."""
    for j in range(share.shape[0]):
        _, count, mass = softmin_row(near.node, near.cost, near.demand, prices, softness, j, share[j])
        for k in range(count):
            share[j, k] /= mass


@helper
def _expect(near: Any, share: Any, j: Any, sign: Any, load: Any, give: Any) -> None:
    """Add what task j is expected to load, and how it gives way to prices, or take it off."""
    for k in range(share.shape[1]):
        p = share[j, k]
        if p > 0.0:
            i = near.node[j, k]
            for r in range(load.shape[1]):
                d = near.demand[j, k, r]
                load[i, r] += sign * p * d
                give[i, r] += sign * d * d * p * (1.0 - p)


@helper
def _cheapest(near: Any, prices: Any, softness: Any, stiffest: Any, load: Any, give: Any, j: Any) -> Any:
    """Column of task j under prices moved by what the nodes are loaded with."""
    best, best_k = np.inf, 0
    for k in range(near.node.shape[1]):
        i = near.node[j, k]
        if i < 0:
            break
        value = near.cost[j, k]
        for r in range(load.shape[1]):
            d = near.demand[j, k, r]
            excess = load[i, r] - near.capacity[i, r] + 0.5 * d
            value += d * max(0.0, prices[i, r] + excess / max(give[i, r] / softness, stiffest[r]))
        if value < best:
            best, best_k = value, k
    return best_k


@kernel
def _settle(
    near: Any, prices: Any, softness: Any, share: Any, order: Any, stiffest: Any, choice: Any
) -> None:
    load, give = np.zeros(near.capacity.shape), np.zeros(near.capacity.shape)
    for j in range(order.size):
        _expect(near, share, j, 1.0, load, give)
    for n in range(order.size):
        j = order[n]
        _expect(near, share, j, -1.0, load, give)
        k = _cheapest(near, prices, softness, stiffest, load, give, j)
        choice[j] = k
        for r in range(load.shape[1]):
            load[near.node[j, k], r] += near.demand[j, k, r]
