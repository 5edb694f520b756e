"""Hybrid: an optimiser plans prices of node time; a learner corrects them, and the estimates behind them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from trimtab.compiled.elementwise import elementwise
from trimtab.domain.cluster import Floats
from trimtab.domain.needs import Need
from trimtab.domain.parameters import Count, Fraction, NonNegative, OneOrMore, Positive, Tunable
from trimtab.domain.planning import History, Rollout, Variant
from trimtab.domain.view import (
    Plan,
    View,
    empty_plan,
    estimates_s,
)
from trimtab.policies.optimising.dual_price import DualPrice
from trimtab.policies.shared.demand_forecast import PricePolicy, expected, smoothed_prices
from trimtab.policies.shared.online_descent import DescendingPolicy, Learned
from trimtab.policies.shared.unmet_needs import NO_LOADS

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


_PRICED = DualPrice()


@dataclass(frozen=True)
class HybridOptimise(DescendingPolicy, PricePolicy):
    """Prices of node time by optimisation, corrected by a learner, as are the estimates of each node.

    Idea
        Every `plan_period_s` three things are planned. weights[node]: how much longer than estimated its last
        services took, relative to all nodes', to the power of `gain`; estimates there are multiplied by it.
        price[node]: as in `dual-price`, of the work to come with the estimates so corrected. Then each price
        is multiplied by a factor for its type of nodes, from 1 / `bound` to `bound`, which is learned: once
        `window` / 4 requests have come, the recent past is simulated under factors on both sides of the
        present ones, and under none, and the factors move towards lower log mean + `w_tail` · log of the
        longest 2 % of completions (`policies/shared/online_descent.py`). They are used while that is lower by
        `margin_frac` than without.
        score(node) = weights · wait + load + weights · service + price · (load + weights · service); least
        first, ties by node.
    Source
        Prices: Shipra Agrawal, Zizhuo Wang, Yinyu Ye, "A dynamic near-optimal algorithm for online linear
        programming", Operations Research 62(4), 2014. Their correction: James Spall, "Multivariate stochastic
        approximation using a simultaneous perturbation gradient approximation", IEEE Transactions on
        Automatic Control 37(3), 1992. Feedback on a scheduler's estimates: Chenyang Lu, John Stankovic, Sang
        Son, Gang Tao, "Feedback control real-time scheduling: framework, modeling, and algorithms", Real-Time
        Systems 23(1-2), 2002.
    Reads
        Past arrivals, where they went and when they ended, held requests; what `least-expected-completion`
        reads; plan.weights, plan.price, plan.params.
    Cost
        O(nodes) a decision; a plan sorts at most 4096 finished requests, prices as `dual-price`, and
        simulates 3 × `window` requests, twice as many where queues are long.
    When it wins / loses
        Corrected estimates win where some nodes are slow, shared or badly measured, and are noise where
        estimates are right (`gain=0`). Corrected prices change little against `dual-price`
        (docs/benchmarks/learned.md): what scarcity costs, the optimiser knows already. It binds requests when
        they come, so `late-binding` is ahead of it wherever requests may be held.
    Deviations from the source
        The prices deviate as in `dual-price`. What is learned of services is one ratio per node, for all
        classes. A proportional correction of multiplicative errors, not a controller of utilisation and
        misses; the power `gain` below 1 damps it. Directions of the approximation come from a Hadamard
        matrix, gains are constant, steps bounded.
    """

    name: ClassVar[str] = "hybrid-optimise"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.RESIDENCY, Need.ROLLOUT})
    degrades: ClassVar[Mapping[Need, str]] = {
        Need.RESIDENCY: NO_LOADS,
        Need.ROLLOUT: "Prices are those of the optimiser.",
    }
    plan_period_s: Positive = 5.0
    services: Positive = 4.0
    left_out: NonNegative = 3.0
    kept: Fraction = 0.8
    gain: NonNegative = 1.0
    bound: OneOrMore = 4.0
    window: Annotated[Count, Tunable(100, 2400, "log")] = 600  # requests
    w_tail: NonNegative = 0.5
    margin_frac: Annotated[NonNegative, Tunable(0.0, 0.2)] = 0.02

    def plan(self, view: View, history: History, waiting: Any, rollout: Rollout | None) -> Plan:
        """Corrections of the nodes' estimates, prices of their time under them, and what corrects these."""
        weights = elementwise(lambda slow: math.pow(slow, self.gain), slowness(view, history))
        work = expected(view, history, waiting, self.plan_period_s, self.services)
        corrected = work._replace(own_s=work.own_s * weights)
        last = history.plan._replace(price=history.plan.price[:, 1:])
        planned = smoothed_prices(corrected, last, self.left_out, self.kept)

        def price_at(places: Floats | None) -> Floats:
            """Learned prices and planned ones, [nodes, 2]."""
            factors = np.ones(view.fixed_s.shape[1])
            if places is not None:
                factors = elementwise(lambda place: math.pow(self.bound, 2.0 * place - 1.0), places)
            return np.hstack([planned * factors[view.nodes.type_idx, None], planned])

        def variant_at(places: Floats | None) -> Variant:
            return Variant(_PRICED, empty_plan()._replace(price=price_at(places)))

        start = np.full(view.fixed_s.shape[1], 0.5)
        learned = self.learned((view, history), rollout, start, variant_at)
        learned = learned or Learned.read(history.plan.params, start)
        price, params = price_at(self.in_force(learned)), learned.written()
        return empty_plan()._replace(weights=weights, price=price, params=params)
