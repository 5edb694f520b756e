"""Prices of capacity: the dual by task, smoothed and climbed.

Idea: price node i's resource r at λ[i, r] ≥ 0 and let every task pick its cheapest node by itself,
    L(λ) = Σ_j min_i (c[j, i] + Σ_r λ[i, r] d[j, i, r]) − Σ_i,r λ[i, r] b[i, r],
which bounds the cost of every assignment from below. The minimum is smoothed to −μ log Σ exp(−·/μ); then the
gradient is load(λ) − b under the softmin probabilities p[j, i].
Source: Nesterov, Smooth minimization of non-smooth functions, Mathematical Programming 103 (2005), §2 and §4;
acceleration by Beck and Teboulle (FISTA, SIAM J. Imaging Sciences 2(1), 2009) with the restarts of O'Donoghue
and Candès (Foundations of Computational Mathematics 15, 2015).
Deviations: the gradient is divided by the diagonal of the smoothed Hessian, Σ_j d² p (1 − p) / μ, and the
step is clipped; μ shrinks in stages.
Cost: O(iterations · pairs).
"""

from __future__ import annotations

import math
import time
from typing import Any, NamedTuple

import numpy as np

from trimtab.compiled.kernel import helper, kernel
from trimtab.solvers.candidate_pairs import CandidatePairs, Floats

STAGES_FRAC = (0.1, 0.03, 0.01, 0.003)  # μ as a share of the spread of costs
ITERATIONS = 40  # of a stage
KEPT_CURVATURE = 0.7  # share of the last curvature that the next one has at least
FLOOR_CURVATURE = 1e-3  # of the mean curvature
STEP_SPREADS = 0.5  # a step moves the reduced cost of a mean demand by so many spreads at most
SHORTEN = 1.5  # what steps are divided by where the value fell
SETTLED_FRAC = 5e-4  # of all capacity: loads so near to it end a stage
FORGOTTEN = 10.0  # pairs worse than the best by so many μ have no part in the softmin


class Dual(NamedTuple):
    """Prices [nodes + 1, resources], their lower bound for these pairs, and the last μ."""

    prices: Floats
    value: float
    softness: float


def spread_of(candidates: CandidatePairs) -> float:
    """Mean over the tasks of the spread of their costs."""
    pairs = candidates.node >= 0
    counts = np.maximum(pairs.sum(axis=1), 1)
    cost = np.where(pairs, candidates.cost, 0.0)
    mean = cost.sum(axis=1) / counts
    lowest = np.where(pairs, candidates.cost, np.inf).min(axis=1)
    apart = float((mean - lowest)[np.isfinite(lowest)].mean())
    return apart if apart > 0 else max(float(np.abs(cost).mean()), 1e-9)


def exact_value(candidates: CandidatePairs, prices: Floats) -> float:
    """L(λ) over these pairs."""
    least = np.empty(candidates.node.shape[0])
    _least(candidates.node, candidates.cost, candidates.demand, prices, least)
    return float(least.sum() - (prices * candidates.capacity).sum())


def climb(
    candidates: CandidatePairs,
    start: Floats,
    until_s: float = math.inf,
    stages: tuple[float, ...] = STAGES_FRAC,
    iterations: int = ITERATIONS,
) -> Dual:
    """Ascend from `start` [nodes + 1, resources] through the stages, or until a time (perf_counter)."""
    spread = spread_of(candidates)
    best = Dual(start, exact_value(candidates, start), stages[-1] * spread)
    prices = start
    for softness in (frac * spread for frac in stages):
        prices = _stage(candidates, prices, softness, STEP_SPREADS * spread, until_s, iterations)
        value = exact_value(candidates, prices)
        if value > best.value:
            best = Dual(prices, value, softness)
        if time.perf_counter() > until_s:
            break
    return best


def _stage(
    candidates: CandidatePairs, prices: Floats, softness: float, reach: float, until_s: float, iterations: int
) -> Floats:
    """Accelerated ascent at one μ; returns the best prices met."""
    longest = reach / mean_demand(candidates)
    point, prices, best = prices.copy(), prices.copy(), prices
    momentum, last, best_value = 1.0, -math.inf, -math.inf
    settled = SETTLED_FRAC * float(candidates.capacity.sum())
    kept, shorter = np.zeros_like(prices), float(prices.shape[1])  # resources move together
    curvature, excess, paid, off = (np.empty_like(prices) for _ in range(4))
    for _ in range(iterations):
        soft = _look(*candidates[:4], point, softness, curvature, excess, paid, off)
        value = soft - float(paid.sum())
        if value > best_value:
            best, best_value = point.copy(), value
        if off.sum() <= settled:
            break
        floor = FLOOR_CURVATURE * float(curvature.mean())
        grown = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
        _move(point, prices, kept, curvature, excess, floor, shorter, longest, (momentum - 1) / grown)
        is_too_far = value < last
        momentum, last = grown, value
        if is_too_far:  # back to the best point, and shorter steps from there
            point[...] = prices[...] = best
            momentum, last = 1.0, -math.inf
            shorter *= SHORTEN
        if time.perf_counter() > until_s:
            break
    return best


def mean_demand(candidates: CandidatePairs) -> Floats:
    """[resources] mean demand of the tasks that use a resource."""
    used = candidates.demand > 0
    return np.asarray(candidates.demand.sum(axis=(0, 1)) / np.maximum(used.sum(axis=(0, 1)), 1) + 1e-12)


@kernel
def _least(node: Any, cost: Any, demand: Any, prices: Any, least: Any) -> None:
    """The least reduced cost of each task into `least` [tasks]."""
    for j in range(least.size):
        least[j] = np.inf
        for k in range(node.shape[1]):
            if node[j, k] < 0:
                break
            v = cost[j, k]
            for r in range(demand.shape[2]):
                v += prices[node[j, k], r] * demand[j, k, r]
            least[j] = min(least[j], v)


@helper(inline=True)
def softmin_row(node: Any, cost: Any, demand: Any, prices: Any, softness: Any, j: Any, weight: Any) -> Any:
    """Weights of the pairs of task j relative to the best's 1, into `weight`; returns (least, pairs, sum)."""
    least = np.inf
    count = 0
    while count < node.shape[1] and node[j, count] >= 0:
        v = cost[j, count]
        for r in range(demand.shape[2]):
            v += prices[node[j, count], r] * demand[j, count, r]
        weight[count] = v
        least = min(least, v)
        count += 1
    mass = 0.0
    for k in range(count):
        x = (weight[k] - least) / softness
        weight[k] = math.exp(-x) if x < FORGOTTEN else 0.0
        mass += weight[k]
    return least, count, mass


@helper
def _softmin(
    node: Any, cost: Any, demand: Any, prices: Any, softness: Any, load: Any, curvature: Any
) -> float:
    """Σ of the smoothed minima; adds expected loads and Σ d² p (1 − p)."""
    weight = np.empty(node.shape[1])
    total = 0.0
    for j in range(node.shape[0]):
        least, count, mass = softmin_row(node, cost, demand, prices, softness, j, weight)
        total += least - softness * math.log(mass)
        for k in range(count):
            if weight[k] > 0.0:
                p = weight[k] / mass
                for r in range(demand.shape[2]):
                    d = demand[j, k, r]
                    load[node[j, k], r] += p * d
                    curvature[node[j, k], r] += d * d * p * (1.0 - p)
    return total


@kernel
def _look(
    node: Any,
    cost: Any,
    demand: Any,
    capacity: Any,
    point: Any,
    softness: float,
    curvature: Any,
    excess: Any,
    paid: Any,
    off: Any,
) -> float:
    """Σ of the smoothed minima at a point [nodes + 1, resources].

    Into arrays of that shape: the curvature, the load over the capacity, the cost of the capacity, and
    the distance from an optimum.
    """
    curvature[:] = 0.0
    excess[:] = 0.0
    soft = _softmin(node, cost, demand, point, softness, excess, curvature)
    for i in range(point.shape[0]):
        for r in range(point.shape[1]):
            curvature[i, r] /= softness
            excess[i, r] -= capacity[i, r]
            paid[i, r] = point[i, r] * capacity[i, r]
            off[i, r] = abs(excess[i, r]) if point[i, r] > 0.0 else max(excess[i, r], 0.0)
    return float(soft)


@kernel
def _move(
    point: Any,
    prices: Any,
    kept: Any,
    curvature: Any,
    excess: Any,
    floor: float,
    shorter: float,
    longest: Any,
    inertia: float,
) -> None:
    """Step from the point to new prices, plus `inertia` times their change; updates `kept` too."""
    for i in range(point.shape[0]):
        for r in range(point.shape[1]):
            kept[i, r] = max(curvature[i, r] + floor + 1e-30, KEPT_CURVATURE * kept[i, r])
            step = excess[i, r] / (shorter * kept[i, r])
            ahead = max(point[i, r] + min(max(step, -longest[r]), longest[r]), 0.0)
            point[i, r] = max(ahead + inertia * (ahead - prices[i, r]), 0.0)
            prices[i, r] = ahead
