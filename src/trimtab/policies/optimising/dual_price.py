"""Dual price: node time has prices, found by the dual of the assignment of the work to come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from trimtab.domain.parameters import Fraction, NonNegative, Positive
from trimtab.domain.planning import History
from trimtab.domain.view import Plan, View, empty_plan
from trimtab.policies.shared.demand_forecast import PricePolicy, expected, smoothed_prices


@dataclass(frozen=True)
class DualPrice(PricePolicy):
    """Send each request where its completion plus the price of its node time is least.

    Idea
        Every `plan_period_s`: forecast the arrivals per class over the next `services` mean services, add
        what waits, and let λ[node] be the dual prices of assigning that work to nodes within the time that
        their slots have left, at least node time; work may be left out at `left_out` times its best time.
        score(node) = wait + (1 + λ[node]) · (load + service), least first, ties by node. New prices count
        1 - `kept`, the last ones `kept`.
    Source
        Shipra Agrawal, Zizhuo Wang, Yinyu Ye: "A dynamic near-optimal algorithm for online linear
        programming", Operations Research 62(4), 2014 (prices learned from the columns of the past, solved
        again as time goes on, decide about what comes next), as its abstract states it (arXiv 0911.2974).
    Reads
        Past arrivals and their models, held requests; what `least-expected-completion` reads; plan.price.
    Cost
        O(nodes) a decision; a plan is 30 iterations of O(lots · nodes), from the last prices on.
    When it wins / loses
        Wins where nodes are unrelated and the load is moderate: the requests that gain most from a fast node
        get it. In long overload all prices are high, and requests wait too long for the best nodes.
    Deviations from the source
        Prices come from a forecast, not from the past itself. The wait, which a linear programme does not
        know, is added to the price. Requests are not refused. Prices are smoothed over the plans. The source
        solves again whenever the number of past requests has doubled, and accepts or refuses by the price
        alone; here prices are renewed at a fixed period, from lots of equal size by a smoothed dual, and rank
        nodes.
    """

    name: ClassVar[str] = "dual-price"
    plan_period_s: Positive = 5.0
    services: Positive = 4.0
    left_out: NonNegative = 3.0
    kept: Fraction = 0.8

    def plan(self, view: View, history: History, waiting: Any, rollout: Any) -> Plan:
        """Prices of the nodes' time."""
        work = expected(view, history, waiting, self.plan_period_s, self.services)
        return empty_plan()._replace(price=smoothed_prices(work, history.plan, self.left_out, self.kept))
