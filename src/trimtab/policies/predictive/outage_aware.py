"""Outage-aware: least expected completion, where work that an outage cuts short starts anew."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from trimtab.compiled.kernel import kernel
from trimtab.domain.parameters import Positive
from trimtab.domain.planning import History
from trimtab.domain.view import Memory, Plan, View, can_take, empty_plan, needs_of
from trimtab.policies.load_aware.least_expected_completion import expected_completion_s
from trimtab.policies.predictive.watch import availability
from trimtab.policies.shared.delivery import has_outlook, with_outages_s
from trimtab.policies.shared.selection import NOTES, NotingPolicy, rank_noted
from trimtab.policies.shared.unmet_needs import LoadsPolicy


@dataclass(frozen=True)
class OutageAware(NotingPolicy, LoadsPolicy):
    """Send each request to where it is expected to complete first, failures and planned outages included.

    Idea
        score(node) = expected completion t as in `least-expected-completion`; work that a planned outage
        would cut short counts from the end of the outage, and on a node with failures of rate λ the time is
        (exp(λ t) - 1) / λ. λ is the posterior mean of the failures that plans have seen, with the rate of the
        node's type as prior; outages come from the maintenance calendar. Least first, ties by node.
    Source
        Ours. Time with restarts: Andrzej Duda, "The effects of checkpointing on program execution time",
        Information Processing Letters 16, 1983 (without checkpoints); from memory.
    Reads
        What `least-expected-completion` reads; which nodes are up, and the maintenance calendar; plan.price.
    Cost
        O(nodes) a decision, and O(nodes + outages) a plan.
    When it wins / loses
        Wins where services are as long as the time to the next outage, or failures come within a few
        services. Elsewhere it is `least-expected-completion`. A candidate of `what-if` and `auto` while
        failures were seen or outages are planned.
    Deviations from the source
        Time of repair is left out, as is work that waits at the node. The rate is a forecast. Failures that
        are repaired between two plans are not seen.
    """

    name: ClassVar[str] = "outage-aware"
    plan_period_s: Positive = 5.0

    def plan(self, view: View, history: History, waiting: Any, rollout: Any) -> Plan:
        """Failure rates and next outages of the nodes."""
        price, params = availability(view, history.plan.params)
        return empty_plan()._replace(price=price, params=params)

    @staticmethod
    @kernel
    def dispatch(view: View, plan: Plan, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        """Rank all nodes by completion with outages."""
        needs, floats, is_told = needs_of(work), memory.floats, has_outlook(plan)
        for j in range(view.context.n_nodes):
            score = expected_completion_s(view, needs, j) if can_take(view, needs, j) else np.inf
            if is_told and score < np.inf:
                score = with_outages_s(view, plan, j, score)
            floats[NOTES + j] = score
        return int(rank_noted(floats, ranking, view.context.n_nodes))
