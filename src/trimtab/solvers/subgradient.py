"""Prices of capacity by subgradient steps on the dual by task, which is not smoothed.

Idea: L(λ) of `dual` is concave and not smooth; at any λ the load of the cheapest choices minus the capacity
is a subgradient. Steps go along it, as long as the distance to a known cost allows:
    λ ← max(0, λ + θ (cost − L(λ)) / |g|² · g),   θ halved after `PATIENCE` steps without gain.
Source: Held, Wolfe and Crowder, "Validation of subgradient optimization", Mathematical Programming 6, 1974;
steps by Polyak, USSR Computational Mathematics and Mathematical Physics 9(3), 1969.
Deviations: the subgradient is scaled by the mean demand of each resource.
Cost: O(iterations · pairs).
"""

from __future__ import annotations

import math
import time

import numpy as np

from trimtab.solvers.candidate_pairs import CandidatePairs, reduced
from trimtab.solvers.dual import Dual, exact_value, mean_demand

ITERATIONS = 500
FIRST_FACTOR, LEAST_FACTOR = 2.0, 1e-4  # θ
PATIENCE = 20


def subgradient_prices(candidates: CandidatePairs, cost: float, until_s: float = math.inf) -> Dual:
    """Prices [nodes + 1, resources] and the bound that they prove.

    Args:
        candidates: every pair of the problem.
        cost: of a known assignment; of a rough estimate where none is known.
        until_s: when to end (perf_counter).
    """
    prices, unit = np.zeros_like(candidates.capacity), mean_demand(candidates)
    best = Dual(prices, exact_value(candidates, prices), 0.0)
    rows, factor, idle = np.arange(candidates.node.shape[0]), FIRST_FACTOR, 0
    for _ in range(ITERATIONS):
        choice = reduced(candidates, prices).argmin(axis=1)
        excess = -candidates.capacity.copy()
        np.add.at(excess, candidates.node[rows, choice], candidates.demand[rows, choice])
        slope = np.where((prices > 0) | (excess > 0), excess, 0.0) / unit
        steepness = float((slope**2).sum())
        if steepness == 0.0 or factor < LEAST_FACTOR or time.perf_counter() > until_s:
            break
        value = exact_value(candidates, prices)
        idle = 0 if value > best.value else idle + 1
        if value > best.value:
            best = Dual(prices, value, 0.0)
        elif idle > PATIENCE:
            factor, idle, prices = factor / 2, 0, best.prices
            continue
        length = factor * max(cost - value, 1e-9 * abs(cost)) / steepness
        prices = np.maximum(prices + length * slope / unit, 0.0)
    return best
