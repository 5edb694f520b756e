"""When a node has served work whose data move to it first, and on nodes that may fail.

Completion on nodes that may fail, or that have an outage ahead, by the last three columns of `plan.price`.

These are failures per second, and begin and end of the next planned outage, as `availability` makes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import numpy as np

from trimtab.compiled.kernel import helper, kernel, plain
from trimtab.domain.needs import Need
from trimtab.domain.view import (
    Memory,
    Plan,
    View,
    can_take,
    needs_of,
    own_s,
    zone_of_node,
)
from trimtab.forecast.availability import with_restarts_s
from trimtab.policies.shared.selection import NOTES, NotingPolicy, rank_noted
from trimtab.policies.shared.unmet_needs import NO_LINKS, NO_LOADS, NO_ROUND_TRIPS, PLAIN_REQUESTS
from trimtab.policies.shared.waits import expected_wait_s


@helper(inline=True)
def _link_s(view: View, payload_gib: float, link: int) -> float:
    """Seconds on one link if its present transfers stay, and all share the link equally."""
    gib_per_s = view.link_gib_per_s[link]
    return float(payload_gib * (view.link_active[link] + 1) / gib_per_s) if gib_per_s < np.inf else 0.0


@helper(inline=True)
def has_network(view: View) -> bool:
    """Whether what moves takes a network's graph, else the links of zones and nodes."""
    return len(view.link_target) > 0


@helper(inline=True)
def missing_gib(view: View, work: Any, j: int) -> float:
    """What node j lacks of the work's payload, or of the inputs of a stage."""
    if len(view.input_gib) > 0:
        return max(0.0, float(work.payload_gib) - float(view.input_gib[j]))
    return float(work.payload_gib)


@helper
def network_transfer_s(view: View, zone_idx: int, j: int, gib: float) -> float:
    """Seconds until so much is at node j from a zone, if the flows now on the fullest link of the route stay.

    Of equal routes the first one counts.
    """
    a, slowest_s = view.context.n_nodes + zone_idx, 0.0
    if view.way_s[a, j] == np.inf or view.way_s[j, a] == np.inf:
        return np.inf
    away_s = view.way_s[a, j] + view.way_s[j, a]
    while gib > 0.0 and a != j:
        link = view.next_link[a, j]
        slowest_s = max(slowest_s, (view.link_active[link] + 1) / view.link_gib_per_s[link])
        a = view.link_target[link]
    return float(away_s + gib * slowest_s)


@helper(inline=True)
def round_trip_s(view: View, work: Any, j: int) -> float:
    """Round trip between the work's zone and node j's."""
    return float(view.rtt_s[work.zone_idx, zone_of_node(view, j)])


@helper(inline=True)
def transfer_s(view: View, work: Any, j: int) -> float:
    """Seconds until the work's payload is at node j: a round trip, the link into its zone, the node's own.

    In a network: the round trip and the fullest link of the route there; inf where no route leads there.
    """
    if has_network(view):
        return network_transfer_s(view, work.zone_idx, j, missing_gib(view, work, j))
    zone_idx, seconds = zone_of_node(view, j), round_trip_s(view, work, j)
    if work.payload_gib > 0.0:
        gib = missing_gib(view, work, j)
        if zone_idx != work.zone_idx:
            seconds += _link_s(view, gib, zone_idx)
        seconds += _link_s(view, gib, plain(view.rtt_s.shape[0] + j))
    return seconds


@helper(inline=True)
def delivered_completion_s(view: View, work: Any, j: int) -> float:
    """Expected seconds until node j has served this work, including the transfer; j can serve the work."""
    start_s = max(transfer_s(view, work, j), expected_wait_s(view, j))
    return start_s + own_s(view, work, j)


@helper(inline=True)
def rank_by_delivery(view: View, needs: Any, memory: Memory, ranking: Any) -> int:
    """Rank the nodes that can take the work by expected completion; returns how many. Uses the notes."""
    floats = memory.floats
    for j in range(view.context.n_nodes):
        is_able = can_take(view, needs, j)
        floats[NOTES + j] = delivered_completion_s(view, needs, j) if is_able else np.inf
    return int(rank_noted(floats, ranking, view.context.n_nodes))


class DeliveryPolicy(NotingPolicy):
    """Base of policies that rank by `delivered_completion_s`, unless they have a `dispatch` of their own."""

    needs: ClassVar[frozenset[Need]] = frozenset({Need.RESIDENCY, Need.ZONES, Need.LINKS})
    degrades: ClassVar[Mapping[Need, str]] = {
        Need.RESIDENCY: NO_LOADS,
        Need.ZONES: NO_ROUND_TRIPS,
        Need.LINKS: NO_LINKS,
    }

    @staticmethod
    @kernel
    def dispatch(view: View, plan: Plan, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        """Rank all nodes by expected completion."""
        return rank_by_delivery(view, needs_of(work), memory, ranking)


class StagePolicy(DeliveryPolicy):
    """Base of such policies that read where in its run a stage is."""

    needs: ClassVar[frozenset[Need]] = DeliveryPolicy.needs | {Need.CHAINS}
    degrades: ClassVar[Mapping[Need, str]] = {**DeliveryPolicy.degrades, Need.CHAINS: PLAIN_REQUESTS}


COLUMNS: Final = 3


@helper(inline=True)
def has_outlook(plan: Plan) -> bool:
    """Whether the plan says anything of failures and outages."""
    return len(plan.price) > 0 and plan.price.shape[1] >= COLUMNS


@helper(inline=True)
def with_outages_s(view: View, plan: Plan, j: int, completion_s: float) -> float:
    """Expected completion on a node that may fail, or that has an outage before the work is done."""
    now_s, found_s, first = view.context.now_s, completion_s, plan.price.shape[1] - COLUMNS
    if now_s + completion_s > plan.price[j, first + 1]:  # then it starts anew after the outage
        found_s += max(0.0, plan.price[j, first + 2] - now_s)
    return with_restarts_s(found_s, plan.price[j, first])
