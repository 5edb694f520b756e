"""Hybrid: an optimiser plans prices of node time, and observed service times correct the estimates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from trimtab.compiled.elementwise import elementwise
from trimtab.domain.cluster import Floats
from trimtab.domain.parameters import Fraction, NonNegative, Positive
from trimtab.domain.planning import History
from trimtab.domain.view import (
    Plan,
    View,
    empty_plan,
    estimates_s,
)
from trimtab.policies.shared.demand_forecast import PricePolicy, expected, smoothed_prices

MOST_CORRECTION = 8.0  # largest factor of an estimate; the smallest is its inverse
DOUBT_S = 4.0  # mean services that are added as evidence for no correction


def slowness(view: View, history: History) -> Floats:
    """Actual over estimated service time of each node, relative to the mean node [nodes].

    The estimate assumes that a service begins when its request came, or when the slots before it ended. This
    is exact for nodes that serve in order of arrival, one at a time. The time includes loading, on all nodes
    alike. Nodes with few services count as average.
    """
    done = np.flatnonzero(np.isfinite(history.finish_s) & (history.node_idx >= 0))
    node, finish_s = history.node_idx[done], history.finish_s[done]
    by_node = np.lexsort((finish_s, node))
    done, node, finish_s = done[by_node], node[by_node], finish_s[by_node]
    work = history.work[done]
    estimate = estimates_s(view, work, node)
    before = np.arange(len(done)) - view.nodes.slots[node]
    same = (before >= 0) & (node[np.maximum(before, 0)] == node)
    begin_s = np.maximum(work["arrival_s"], np.where(same, finish_s[np.maximum(before, 0)], -np.inf))
    fair = np.isfinite(estimate) & (estimate > 0.0)
    n = len(view.nodes)
    took = np.bincount(node[fair], (finish_s - begin_s)[fair], minlength=n)
    planned = np.bincount(node[fair], estimate[fair], minlength=n)
    if planned.sum() <= 0.0:
        return np.ones(n)
    usual = max(took.sum() / planned.sum(), 1e-9)
    doubt_s = DOUBT_S * estimate[fair].mean()
    ratio = (took / usual + doubt_s) / (planned + doubt_s)
    return np.asarray(np.clip(ratio, 1.0 / MOST_CORRECTION, MOST_CORRECTION), np.float64)


@dataclass(frozen=True)
class HybridOptimise(PricePolicy):
    """Prices of node time by optimisation, corrected by the actual service times of each node.

    Idea
        Every `plan_period_s` two things are planned. weights[node]: how much longer than estimated its last
        services took, relative to all nodes', to the power of `gain`; estimates there are multiplied by it.
        price[node]: as in `dual-price`, of the work to come with the estimates so corrected.
        score(node) = weights · wait + load + weights · service + price · (load + weights · service); least
        first, ties by node.
    Source
        Prices: Shipra Agrawal, Zizhuo Wang, Yinyu Ye, "A dynamic near-optimal algorithm for online linear
        programming", Operations Research 62(4), 2014. Feedback on a scheduler's estimates: Chenyang Lu, John
        Stankovic, Sang Son, Gang Tao, "Feedback control real-time scheduling: framework, modeling, and
        algorithms", Real-Time Systems 23(1-2), 2002.
    Reads
        Past arrivals, where they went and when they ended, held requests; what `least-expected-completion`
        reads; plan.weights, plan.price.
    Cost
        O(nodes) a decision; a plan sorts at most 4096 finished requests, and prices as `dual-price`.
    When it wins / loses
        Wins where estimates are wrong on some nodes: slow, shared or badly measured nodes. Where estimates
        are right, the policy is `dual-price` with some noise.
    Deviations from the source
        The prices deviate as in `dual-price`. What is learned is one ratio per node, for all classes. A
        proportional correction of multiplicative errors, not a controller of utilisation and misses; the
        power `gain` below 1 damps it.
    """

    name: ClassVar[str] = "hybrid-optimise"
    plan_period_s: Positive = 5.0
    services: Positive = 4.0
    left_out: NonNegative = 3.0
    kept: Fraction = 0.8
    gain: NonNegative = 1.0

    def plan(self, view: View, history: History, waiting: Any, rollout: Any) -> Plan:
        """Corrections of the nodes' estimates, and prices of their time under them."""
        weights = elementwise(lambda slow: math.pow(slow, self.gain), slowness(view, history))
        work = expected(view, history, waiting, self.plan_period_s, self.services)
        corrected = work._replace(own_s=work.own_s * weights)
        price = smoothed_prices(corrected, history.plan, self.left_out, self.kept)
        return empty_plan()._replace(weights=weights, price=price)
