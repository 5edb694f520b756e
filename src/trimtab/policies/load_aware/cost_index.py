"""Cost index: expected completion, plus the cost of the choice for later requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from trimtab.compiled.kernel import helper, kernel
from trimtab.domain.cluster import Cluster
from trimtab.domain.needs import Need
from trimtab.domain.policy import Policy
from trimtab.domain.view import (
    Memory,
    Plan,
    View,
    estimate_s,
    memory,
    missing_load_s,
    needs_of,
    type_of_node,
)
from trimtab.policies.load_aware.least_expected_completion import note_waits
from trimtab.policies.shared.selection import NOTES, notes_room, rank_noted
from trimtab.policies.shared.transfers import round_trip_s
from trimtab.policies.shared.without import NO_LOADS, NO_ROUND_TRIPS

N_WEIGHTS = 4  # of work, excess, wait and price, in this order


@helper(inline=True)
def _cost_s(view: View, work: Any, j: int, wait_s: float, crowding: float, weights: Any) -> float:
    """Score of node j, on which the work waits `wait_s`."""
    g = type_of_node(view, j)
    service_s = estimate_s(view, work, g)
    own_s = missing_load_s(view, work, j) + service_s
    transfer_s = round_trip_s(view, work, j)
    if wait_s == np.inf:
        return np.inf
    extra_s = weights[2] * wait_s
    if crowding > 0.0:  # the same for all nodes, and mostly not so
        extra_s += crowding * (weights[0] * own_s + weights[1] * (service_s - work.estimate_s))
    if weights[3] != 0.0:
        extra_s += weights[3] * own_s * view.usd_per_s[g]
    return float(wait_s + own_s + transfer_s + extra_s)


@dataclass(frozen=True)
class CostIndex(Policy):
    """Send each request where its expected completion plus its cost for later requests is least.

    Idea
        score(node) = completion + q · (w_work · own + w_excess · (service - best service)) + w_wait · wait
        + w_price · usd, all estimated: own = load + service, the node time that the request takes;
        completion = transfer + wait + own; usd = own · price of the node. q = the least wait among able nodes
        over the best service: about as many requests wait behind each second of node time that is used now,
        so q is its price; 0 while a slot is free. Least first, ties by node.
    Source
        The index is this project's own, after the marginal delay costs of static load balancing: Asser
        Tantawi, Don Towsley, "Optimal static load balancing in distributed computer systems", Journal of the
        ACM 32(2), 1985, which send work where the delay that it adds for all is least, not its own delay.
    Reads
        What `least-expected-completion` reads; round trips between zones; prices of nodes; plan.params, which
        replace the four weights if there are as many.
    Cost
        O(nodes).
    When it wins / loses
        Wins at high load where models are loaded often or nodes are unrelated: it does not pay a load, or a
        slow node's time, to start a little sooner. Where nothing waits it is least completion that shuns
        waits a little. Medians gain more than the tail: with w_work = 2 and more p99 suffers.
    Deviations from the source
        Not the cμ rule, which ranks requests for a node; this ranks nodes for a request. The present waits
        give the added delays, not a queueing formula. The weights scale with q, because fixed weights gain at
        full load and lose at half load.
    """

    name: ClassVar[str] = "cost-index"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.RESIDENCY, Need.ZONES, Need.PRICES})
    degrades: ClassVar[Mapping[Need, str]] = {
        Need.RESIDENCY: NO_LOADS,
        Need.ZONES: NO_ROUND_TRIPS,
        Need.PRICES: "Nodes cost nothing, whatever `w_price`.",
    }
    w_work: float = 1.0
    w_excess: float = 0.0
    w_wait: float = 0.3
    w_price: float = 0.0  # seconds per dollar

    def init(self, cluster: Cluster) -> Memory:
        """The weights; notes of the nodes."""
        weights = [self.w_work, self.w_excess, self.w_wait, self.w_price]
        return memory(params=weights, floats=notes_room(cluster.n_nodes))

    @staticmethod
    @kernel
    def dispatch(view: View, plan: Plan, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        """Rank all nodes by score."""
        given = plan.params if len(plan.params) >= N_WEIGHTS else memory.params
        weights = given[0], given[1], given[2], given[3]
        needs, floats = needs_of(work), memory.floats
        least_s = note_waits(view, needs, floats)
        crowding = least_s / max(work.estimate_s, 1e-9)
        for j in range(view.context.n_nodes):
            floats[NOTES + j] = _cost_s(view, needs, j, floats[NOTES + j], crowding, weights)
        return int(rank_noted(floats, ranking, view.context.n_nodes))
