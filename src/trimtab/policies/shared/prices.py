"""Prices of node time: the dual of the assignment of expected work to nodes."""

from __future__ import annotations

from typing import Any

import numpy as np

from trimtab.compiled.kernel import kernel
from trimtab.domain.cluster import Floats
from trimtab.domain.view import (
    Memory,
    Plan,
    View,
    can_take,
    estimate_s,
    missing_load_s,
    needs_of,
    type_of_node,
)
from trimtab.policies.shared.demand_forecast import Expected
from trimtab.policies.shared.selection import NOTES, NotingPolicy, rank_noted
from trimtab.policies.shared.waits import expected_wait_s
from trimtab.policies.shared.without import LoadsPolicy

LOTS = 24  # that the expected work is divided into: the dual is linear in their number
STAGES_FRAC = (0.1, 0.03)  # of the smoothing
ITERATIONS = 15  # of a stage; it starts from the last prices


def smoothed_prices(work: Expected, last_plan: Plan, left_out: float, kept: float) -> Floats:
    """New prices [nodes, 1], of which the last plan's are the share `kept`; see `node_prices`."""
    n, before = len(work.capacity_s), last_plan.price
    last = before[:, 0] if len(before) == n else np.zeros(n)
    return (kept * last + (1.0 - kept) * node_prices(work, last, left_out))[:, None]


def node_prices(work: Expected, start: Floats, left_out: float) -> Floats:
    """The price of a second of each node's time, in seconds of node time [nodes]; 0 without scarcity.

    Lots of work go where service, loading and what their time costs there are least, and are left out where
    that is more than `left_out` times their best; prices are such that no node gets more than it has. Solved
    as the fractional programme, from the prices `start` [nodes], by `solvers.dual`.
    """
    from trimtab.solvers.candidate_pairs import CandidatePairs
    from trimtab.solvers.dual import climb  # with the first plan: it takes a second

    n = len(work.capacity_s)
    comes = np.flatnonzero(work.requests > 0.0)
    if not len(comes):
        return np.zeros(n)
    lots = np.maximum(1, np.round(LOTS * work.requests[comes] / work.requests.sum())).astype(np.int64)
    demand = np.repeat(work.own_s[comes] * (work.requests[comes] / lots)[:, None], lots, axis=0)
    skip = left_out * demand.min(axis=1, keepdims=True)
    cost = np.hstack([demand, skip])  # the last column: left out, which takes no node's time
    order = np.argsort(cost, axis=1, kind="stable")
    cost = np.take_along_axis(cost, order, axis=1)
    is_pair = np.isfinite(cost)
    used = np.where(is_pair & (order < n), cost, 0.0)[..., None]
    capacity, nowhere = np.append(work.capacity_s, 0.0)[:, None], np.full(len(cost), np.inf)
    candidates = CandidatePairs(np.where(is_pair, order, -1).astype(np.int32), cost, used, capacity, nowhere)
    dual = climb(candidates, np.append(start, 0.0)[:, None], stages=STAGES_FRAC, iterations=ITERATIONS)
    return np.asarray(dual.prices[:n, 0], np.float64)


class PricePolicy(NotingPolicy, LoadsPolicy):
    """Base of policies that plan `weights`, factors of the nodes' estimates, or `price`, of their time."""

    @staticmethod
    @kernel
    def dispatch(view: View, plan: Plan, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        """Rank all nodes by completion, corrected where there are weights, and price."""
        needs, floats = needs_of(work), memory.floats
        for j in range(view.context.n_nodes):
            weight = plan.weights[j] if len(plan.weights) > 0 else 1.0
            price = plan.price[j, 0] if len(plan.price) > 0 else 0.0
            service_s = weight * estimate_s(view, needs, type_of_node(view, j))
            own_s = missing_load_s(view, needs, j) + service_s
            score = weight * expected_wait_s(view, j) + (1.0 + price) * own_s
            floats[NOTES + j] = score if can_take(view, needs, j) else np.inf
        return int(rank_noted(floats, ranking, view.context.n_nodes))
