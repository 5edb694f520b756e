"""Route-aware: expected completion over the best of equal routes, and what transfers cost the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from trimtab.compiled.kernel import helper, kernel
from trimtab.domain.cluster import Cluster
from trimtab.domain.parameters import NonNegative
from trimtab.domain.view import Memory, Plan, View, can_take, memory, needs_of, own_s
from trimtab.policies.shared.delivery import (
    DeliveryPolicy,
    delivered_completion_s,
    has_network,
    missing_gib,
)
from trimtab.policies.shared.selection import NOTES, notes_room, rank_noted
from trimtab.policies.shared.waits import expected_wait_s

_EQUAL_S = 1e-12


class _Route(NamedTuple):
    """A route, by its fullest link."""

    s_per_gib: Any  # if the flows now on it stay
    idle_s_per_gib: Any  # of its narrowest link alone
    others_s_per_gib: Any  # by which those flows end later, summed


@helper
def _best_link(view: View, a: int, b: int) -> int:
    """The link with most room for one more flow, of those that begin a route of least delay."""
    best, best_share = -1, -1.0
    for link in range(view.out_first[a], view.out_first[a + 1]):
        v = view.link_target[link]
        if view.way_links[a, v] != 1 or view.way_links[a, b] != view.way_links[v, b] + 1:
            continue
        if (v < view.context.n_nodes and v != b) or view.link_gib_per_s[link] == 0.0:
            continue
        if view.way_s[a, v] + view.way_s[v, b] <= view.way_s[a, b] + _EQUAL_S:
            share = view.link_gib_per_s[link] / (view.link_active[link] + 1)
            if share > best_share:
                best, best_share = link, share
    return best


@helper
def _route(view: View, a: int, b: int) -> _Route:
    """The route from vertex a to b that takes at each vertex the link with most room. There is one."""
    slowest_s, idle_s, others_s = 0.0, 0.0, 0.0
    while a != b:
        link = _best_link(view, a, b)
        flows, gib_per_s = view.link_active[link], view.link_gib_per_s[link]
        if (flows + 1) / gib_per_s > slowest_s:
            slowest_s, others_s = (flows + 1) / gib_per_s, flows / gib_per_s
        idle_s = max(idle_s, 1.0 / gib_per_s)
        a = view.link_target[link]
    return _Route(slowest_s, idle_s, others_s)


@helper
def _missing_model_gib(view: View, work: Any, j: int) -> float:
    gib = 0.0
    if work.model_idx >= 0:
        gib += view.item_gib[work.model_idx] * (1 - view.resident[j, work.model_idx])
    if work.adapter_idx >= 0:
        gib += view.item_gib[work.adapter_idx] * (1 - view.resident[j, work.adapter_idx])
    return gib


@helper
def _cost_s(view: View, work: Any, j: int, others: float) -> float:
    """Expected completion on node j, and the weighted delay of other flows; inf where no route leads."""
    a, gib = view.context.n_nodes + work.zone_idx, missing_gib(view, work, j)
    there_s, load_s, others_s = view.way_s[a, j] + view.way_s[j, a], 0.0, 0.0
    if there_s == np.inf:
        return np.inf
    if gib > 0.0:
        route = _route(view, a, j)
        there_s += gib * route.s_per_gib
        others_s += gib * route.others_s_per_gib
    model_gib = _missing_model_gib(view, work, j) if len(view.store_vertex) > 0 else 0.0
    if model_gib > 0.0 and view.way_s[view.store_vertex[0], j] < np.inf:
        route = _route(view, view.store_vertex[0], j)
        load_s = model_gib * (route.s_per_gib - route.idle_s_per_gib)  # beyond what an idle network takes
        others_s += model_gib * route.others_s_per_gib
    return max(there_s, expected_wait_s(view, j)) + load_s + own_s(view, work, j) + others * others_s


@dataclass(frozen=True)
class RouteAware(DeliveryPolicy):
    """Send each request where it completes first by the best route, and delays others' transfers least.

    Idea
        cost(node) = max(transfer, wait) + model load + service + others × delay. The transfer takes, of the
        routes of equal least delay, the one with most room at each vertex; its fullest link has capacity C
        and n flows, so 1 GiB takes (n + 1) / C. Models that the node lacks come over the network too, from
        where they are stored. Each of the n flows ends later by at most the time that the new bytes take of
        the link, 1 / C for a GiB: the delay is n / C, for payload and models alike.
    Source
        trimtab's own. The delay is what the request does not pay itself, as in A. C. Pigou: "The Economics
        of Welfare", 1920, part II chapter IX; the completion is that of `congestion-aware`.
    Reads
        As `congestion-aware`; the routes of the network, where models are stored, what nodes lack of them.
    Cost
        O(nodes × links at the vertices of a route).
    When it wins / loses
        Wins where payloads or models are large against the links that they share, above all where models
        come from a store: what `congestion-aware` saves for one request, the others wait for. Loses where
        the flows that it spares would have ended before. Without a network it is `congestion-aware`.
    Deviations from the source
        No source. The way of a result back to its client is not counted: its size is not known beforehand.
    """

    name: ClassVar[str] = "route-aware"
    others: NonNegative = 0.5

    def init(self, cluster: Cluster) -> Memory:
        """Notes of the nodes; the weight of others' delays."""
        return memory(params=[self.others], floats=notes_room(cluster.n_nodes))

    @staticmethod
    @kernel
    def dispatch(view: View, plan: Plan, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        """Rank all nodes by cost."""
        needs, floats, n = needs_of(work), memory.floats, view.context.n_nodes
        for j in range(n):
            if not can_take(view, needs, j):
                floats[NOTES + j] = np.inf
            elif has_network(view):
                floats[NOTES + j] = _cost_s(view, needs, j, memory.params[0])
            else:
                floats[NOTES + j] = delivered_completion_s(view, needs, j)
        return int(rank_noted(floats, ranking, n))
