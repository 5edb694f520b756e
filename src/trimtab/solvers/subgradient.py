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

from trimtab.solvers.candidate_pairs import CandidatePairs, Ints, nearest, numbered, reduced
from trimtab.solvers.dual import Dual, climb, exact_value, mean_demand
from trimtab.solvers.problem import AssignmentProblem, IntArray

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


ALL_PAIRS = 200_000  # up to here every pair is looked at, else the nearest nodes of each task
WIDTH = 24  # nodes of a task that are looked at beyond
MANY_NODES = 400  # beyond which it takes twice as many
WIDTH_FRAC = 0.048  # of the nodes, beyond a thousand: the prices of a sample are not exact enough for fewer
SAMPLE_PER_NODE, SAMPLE_LEAST = 4, 2_000  # tasks that first prices are found on
SAMPLE_ITERATIONS = 25
SAMPLE_FRAC, PRICES_FRAC = 0.5, 0.8  # of the time, when first prices and prices are done at the latest
CORE_TASKS, CORE_PAIRS = 2_500, 1_000_000  # up to here HiGHS works beside the search
MOST_WHOLE = 1e8  # sum of whole costs up to which rounding in bounds is far below a millionth
FRESH_STAGES = (0.01, 0.003)  # of prices that begin near their end


def cold_prices(
    problem: AssignmentProblem, begun_s: float, time_limit_s: float, generator: np.random.Generator
) -> Dual:
    """Prices without a start: from all pairs, or from a sample of the tasks, then from the nearest pairs."""
    sample_until_s, until_s = (begun_s + frac * time_limit_s for frac in (SAMPLE_FRAC, PRICES_FRAC))
    free = np.zeros((problem.nodes + 1, problem.capacity.shape[1]))
    if problem.tasks * problem.nodes <= ALL_PAIRS:
        return climb(nearest(problem, free, problem.nodes + 1), free, until_s)
    size = min(max(SAMPLE_PER_NODE * problem.nodes, SAMPLE_LEAST), problem.tasks)
    sample = generator.choice(problem.tasks, size, replace=False).astype(np.int32)
    part = nearest(problem, free, problem.nodes + 1, sample)
    part = part._replace(capacity=part.capacity * (size / problem.tasks))
    rough = climb(part, free, sample_until_s, (0.1, 0.03), SAMPLE_ITERATIONS)
    candidates = nearest(problem, rough.prices, width_of(problem))
    return climb(candidates, rough.prices, until_s, FRESH_STAGES)


def is_deep(problem: AssignmentProblem) -> bool:
    """Whether the search uses all pairs."""
    return problem.tasks <= CORE_TASKS and problem.tasks * problem.nodes <= CORE_PAIRS


def width_of(problem: AssignmentProblem) -> int:
    """Candidate nodes of a task in a broad search: too few would be the same nodes for all tasks."""
    return WIDTH if problem.nodes <= MANY_NODES else max(2 * WIDTH, math.ceil(WIDTH_FRAC * problem.nodes))


def columns_of(candidates: CandidatePairs, assignment: IntArray, nodes: int) -> Ints:
    """Columns [tasks] of an assignment; the cheapest by price if its node is no candidate."""
    return np.asarray((candidates.node == numbered(assignment, nodes)[:, None]).argmax(axis=1), np.int32)


def is_integral(candidates: CandidatePairs) -> bool:
    """Whether costs are whole numbers whose sums are exact to a millionth."""
    cost = candidates.cost[candidates.node >= 0]
    return bool((cost == np.rint(cost)).all() and np.abs(cost).max() * candidates.node.shape[0] < MOST_WHOLE)
