"""Edge first: the nearest nodes serve a request unless a farther node would finish before they begin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from trimtab.compiled.kernel import helper, kernel, plain
from trimtab.domain.cluster import Cluster
from trimtab.domain.needs import Need
from trimtab.domain.policy import Policy
from trimtab.domain.view import (
    MAX_RANKED,
    Memory,
    Plan,
    View,
    can_take,
    memory,
    needs_of,
    service_s,
)
from trimtab.policies.shared.delivery import delivered_completion_s, round_trip_s
from trimtab.policies.shared.selection import NOTES, notes_room, rank_noted
from trimtab.policies.shared.unmet_needs import NO_LINKS, NO_LOADS


@helper(inline=True)
def _note_completions(view: View, work: Any, floats: Any) -> tuple[float, float]:
    """Note each node's expected completion, inf where it can't take the work.

    Returns the least and the largest round trip to a node that can; inf and 0: none can.
    """
    nearest_s, farthest_s = np.inf, 0.0
    for j in range(view.context.n_nodes):
        completion_s = delivered_completion_s(view, work, j) if can_take(view, work, j) else np.inf
        floats[NOTES + j] = completion_s
        if completion_s < np.inf:
            away_s = round_trip_s(view, work, j)
            nearest_s, farthest_s = min(nearest_s, away_s), max(farthest_s, away_s)
    return nearest_s, farthest_s


@helper(inline=True)
def _note_at(view: View, work: Any, distance_s: float, floats: Any, first: int) -> tuple[int, float]:
    """Note the completions of the nodes at this distance; of those beyond, returns the best and the nearest.

    The best is the node where the work should end first, -1 where there is none; the nearest a round trip.
    """
    best, best_s, nearest_s = -1, np.inf, np.inf
    for j in range(view.context.n_nodes):
        completion_s, away_s = floats[plain(first + j)], round_trip_s(view, work, j)
        floats[NOTES + j] = completion_s if away_s == distance_s else np.inf
        if away_s > distance_s and completion_s < np.inf:
            nearest_s = min(nearest_s, away_s)
            if completion_s < best_s:
                best, best_s = j, completion_s
    return best, nearest_s


@dataclass(frozen=True)
class EdgeFirst(Policy):
    """Send each request to the nearest nodes, unless a farther node would finish before they begin.

    Idea
        The policy goes through the nodes by round trip from the request's zone, nearest first. Among equally
        near nodes it takes the one of least expected completion. If the best farther node, transfer included,
        would finish before service could begin here, the policy continues with the next distance. So
        overflow goes from the edge to its neighbours, then to the cloud. Last candidate: the best farther
        node.
    Source
        Mahadev Satyanarayanan, Paramvir Bahl, Ramón Cáceres, Nigel Davies: "The case for VM-based cloudlets
        in mobile computing", IEEE Pervasive Computing 8(4), 2009 (nearby nodes first, a distant cloud where
        there are none). From memory.
    Reads
        As `congestion-aware`.
    Cost
        O(nodes) for each distance that is tried.
    When it wins / loses
        Saves traffic between zones and the price of the cloud. A request is expected to end later by at most
        its own service. Loses to `congestion-aware` where only completion counts, because it prefers a free
        slow node at the edge to a fast one in the cloud.
    Deviations from the source
        The paper sends all work of a user to one nearby site. Here each request is placed by itself, and
        overflow goes to the node of least expected completion. The source is a position paper: the rule of
        overflow is trimtab's own.
    """

    name: ClassVar[str] = "edge-first"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.RESIDENCY, Need.ZONES, Need.LINKS})
    degrades: ClassVar[Mapping[Need, str]] = {
        Need.RESIDENCY: NO_LOADS,
        Need.ZONES: "All nodes are equally near: it is `congestion-aware`.",
        Need.LINKS: NO_LINKS,
    }

    def init(self, cluster: Cluster) -> Memory:
        """Notes of the nodes, then each node's completion."""
        return memory(floats=notes_room(cluster.n_nodes) + cluster.n_nodes)

    @staticmethod
    @kernel
    def dispatch(view: View, plan: Plan, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        """Go outwards until a node begins before the best farther one would end."""
        needs, floats, n = needs_of(work), memory.floats, view.context.n_nodes
        first = len(floats) - n
        distance_s, farthest_s = _note_completions(view, needs, floats)
        if distance_s == farthest_s:
            return int(rank_noted(floats, ranking, n))
        for j in range(n):
            floats[plain(first + j)] = floats[NOTES + j]
        while distance_s < np.inf:
            farther, distance_s = _note_at(view, needs, distance_s, floats, first)
            count = int(rank_noted(floats, ranking, n))
            if farther < 0:
                return count
            own_s = service_s(view, work, ranking.node_idx[0])
            if ranking.score[0] - own_s <= floats[first + farther]:
                count = min(count, MAX_RANKED - 1)
                ranking[count] = farther
                return count + 1
        return 0
