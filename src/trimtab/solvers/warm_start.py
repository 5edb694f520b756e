"""Warm start of the search of a large programme: the number of candidate pairs and the first prices."""

from __future__ import annotations

import math

import numpy as np

from trimtab.solvers.candidate_pairs import CandidatePairs, Ints, nearest, numbered
from trimtab.solvers.dual import Dual, climb
from trimtab.solvers.problem import AssignmentProblem, IntArray

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
