"""Cost index: expected completion, plus the cost of the choice for later requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from trimtab.compiled.kernel import helper, kernel
from trimtab.domain.cluster import Cluster
from trimtab.domain.needs import Need
from trimtab.domain.parameters import NonNegative, Tunable
from trimtab.domain.policy import Policy
from trimtab.domain.view import (
    Memory,
    Plan,
    View,
    estimate_s,
    memory,
    missing_load_s,
    needs_of,
    service_s,
    type_of_node,
)
from trimtab.policies.load_aware.least_expected_completion import note_waits
from trimtab.policies.shared.delivery import round_trip_s
from trimtab.policies.shared.node_words import (
    any_item,
    n_free,
    n_groups,
    refresh_nodes,
    type_of_group,
)
from trimtab.policies.shared.selection import NOTES, notes_room, rank_noted
from trimtab.policies.shared.unmet_needs import NO_LOADS, NO_ROUND_TRIPS
from trimtab.policies.shared.wait_index import (
    Cost,
    completion_cost,
    is_indexable,
    is_near,
    load_of_kind_s,
    may_be_free,
    n_kinds,
    own_of_kind_s,
    rank_free,
    rank_waiting,
    score_free,
    score_of,
    wait_index,
)

N_WEIGHTS = 4  # of work, excess, wait and price, in this order


@helper(inline=True)
def _cost_of(
    view: View, work: Any, t: int, there_s: float, load_s: float, transfer_s: float, q: float, weights: Any
) -> Cost:
    """The addition to the wait of a node of type t that serves the work in `there_s`, after these loads."""
    extra_s, price_s = 0.0, 0.0
    own_s = load_s + there_s
    if q > 0.0:  # the same for all nodes, and mostly not so
        extra_s = q * (weights[0] * own_s + weights[1] * (there_s - work.estimate_s))
    if weights[3] != 0.0:
        price_s = weights[3] * own_s * view.usd_per_s[t]
    return Cost(own_s, transfer_s, weights[2], extra_s, price_s, 0.0, np.inf)


@helper(inline=True)
def _cost_s(view: View, work: Any, j: int, wait_s: float, q: float, weights: Any) -> float:
    """Score of node j, on which the work waits `wait_s`."""
    load_s, transfer_s = missing_load_s(view, work, j), round_trip_s(view, work, j)
    if wait_s == np.inf:
        return np.inf
    return score_of(
        _cost_of(view, work, type_of_node(view, j), service_s(view, work, j), load_s, transfer_s, q, weights),
        wait_s,
    )


@helper(inline=True)
def _cost_of_kind(view: View, memory: Memory, work: Any, g: int, kind: int, q: float, weights: Any) -> Cost:
    """The addition to the wait of nodes of a group and kind."""
    t = type_of_group(memory, g)
    load_s = load_of_kind_s(view, work, t, kind)
    return _cost_of(view, work, t, estimate_s(view, work, t), load_s, 0.0, q, weights)


@helper
def least_wait_s(view: View, memory: Memory, work: Any, ranking: Any) -> float:
    """The least wait of the nodes that can take the work, by the index; inf if none can."""
    count, none = 0, completion_cost(0.0)
    for g in range(n_groups(memory)):
        is_served = view.fixed_s[work.class_idx, type_of_group(memory, g)] < np.inf
        if is_served and n_free(memory, any_item(memory), g) > 0:
            return 0.0
    for g in range(n_groups(memory)):
        for kind in range(n_kinds(work)):
            if view.fixed_s[work.class_idx, type_of_group(memory, g)] < np.inf:
                count = rank_waiting(view, memory, work, ranking, count, g, kind, none)
    return float(ranking.score[0]) if count > 0 else np.inf


@helper
def _rank_indexed(view: View, memory: Memory, work: Any, ranking: Any, weights: Any) -> int:
    """As the scan, by the index. Free nodes come first, because they bound the waits that count."""
    refresh_nodes(view, memory)
    q = least_wait_s(view, memory, work, ranking) / max(work.estimate_s, 1e-9)
    for g in range(n_groups(memory)):
        for kind in range(n_kinds(work)):
            score = np.inf
            if may_be_free(memory, work, g, kind) and own_of_kind_s(view, memory, work, g, kind) < np.inf:
                score = score_of(_cost_of_kind(view, memory, work, g, kind, q, weights), 0.0)
            score_free(memory, g, kind, score)
    count = rank_free(view, memory, work, ranking)
    for g in range(n_groups(memory)):
        for kind in range(n_kinds(work)):
            if own_of_kind_s(view, memory, work, g, kind) < np.inf:
                cost = _cost_of_kind(view, memory, work, g, kind, q, weights)
                count = rank_waiting(view, memory, work, ranking, count, g, kind, cost)
    return int(count)


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
        O(nodes) in small clusters and with several zones; else as `least-expected-completion`, by an index.
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
    w_work: Annotated[NonNegative, Tunable(0.0, 4.0)] = 1.0
    w_excess: Annotated[NonNegative, Tunable(0.0, 4.0)] = 0.0
    w_wait: Annotated[NonNegative, Tunable(0.0, 2.0)] = 0.3
    w_price: NonNegative = 0.0  # seconds per dollar

    def init(self, cluster: Cluster) -> Memory:
        """The weights, whether there is an index of waits; the index, or notes of the nodes."""
        is_indexed = is_indexable(cluster) and is_near(cluster)
        params = [self.w_work, self.w_excess, self.w_wait, self.w_price, float(is_indexed)]
        if is_indexed:
            return wait_index(cluster)._replace(params=np.array(params))
        return memory(params=params, floats=notes_room(cluster.n_nodes))

    @staticmethod
    @kernel
    def dispatch(view: View, plan: Plan, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        """Rank all nodes by score."""
        given = plan.params if len(plan.params) >= N_WEIGHTS else memory.params
        weights = given[0], given[1], given[2], given[3]
        needs, floats = needs_of(work), memory.floats
        if memory.params[N_WEIGHTS] == 1.0:
            return int(_rank_indexed(view, memory, needs, ranking, weights))
        least_s = note_waits(view, needs, floats)
        crowding = least_s / max(work.estimate_s, 1e-9)
        for j in range(view.context.n_nodes):
            floats[NOTES + j] = _cost_s(view, needs, j, floats[NOTES + j], crowding, weights)
        return int(rank_noted(floats, ranking, view.context.n_nodes))
