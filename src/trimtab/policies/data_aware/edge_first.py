"""Edge first: the nearest nodes serve a request unless a farther one would be done before these begin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from trimtab.domain.cluster import Cluster
from trimtab.domain.kernel import helper, kernel
from trimtab.domain.policy import Policy
from trimtab.domain.view import MAX_RANKED, Memory, Plan, View, can_take, estimate_s, memory
from trimtab.policies.data_aware.congestion_aware import delivered_completion_s
from trimtab.policies.data_aware.transfers import round_trip_s
from trimtab.policies.selection import rank


@helper(inline=True)
def _nearest_beyond_s(view: View, work: Any, beyond_s: float) -> float:
    """Least round trip, over `beyond_s`, to a node that can take the work; inf: none is farther."""
    nearest_s = np.inf
    for j in range(view.host.n_nodes):
        distance_s = round_trip_s(view, work, j)
        if beyond_s < distance_s < nearest_s and can_take(view, work, j):
            nearest_s = distance_s
    return nearest_s


@helper(inline=True)
def _best_beyond(view: View, work: Any, beyond_s: float) -> tuple[int, float]:
    """The node over `beyond_s` away where the work should end first, and in how many seconds; -1: none."""
    best, best_s = -1, np.inf
    for j in range(view.host.n_nodes):
        if round_trip_s(view, work, j) > beyond_s and can_take(view, work, j):
            completion_s = delivered_completion_s(view, work, j)
            if completion_s < best_s:
                best, best_s = j, completion_s
    return best, best_s


@helper(inline=True)
def _rank_at(view: View, work: Any, distance_s: float, ranking: Any, scores: Any) -> int:
    """Rank the nodes at this distance by completion; returns how many there are."""
    count = 0
    for j in range(view.host.n_nodes):
        if round_trip_s(view, work, j) == distance_s and can_take(view, work, j):
            count = rank(ranking, scores, count, j, delivered_completion_s(view, work, j))
    return count


@dataclass(frozen=True)
class EdgeFirst(Policy):
    """Send each request to the nearest nodes, and farther only where it would be done before these begin.

    Idea
        Nodes are taken by round trip from the request's zone, nearest first; among the equally near the one
        of least expected completion. If its service could not begin there before the best farther node, the
        way to it included, would be done, the next distance is looked at in the same manner: from the edge
        to its neighbours, and to the cloud on overflow. Last candidate: the best farther node.
    Source
        Mahadev Satyanarayanan, Paramvir Bahl, Ramón Cáceres, Nigel Davies: "The case for VM-based cloudlets
        in mobile computing", IEEE Pervasive Computing 8(4), 2009 (nearby nodes first, a distant cloud
        where there are none).
    Reads
        What `congestion-aware` reads.
    Cost
        O(nodes) for each distance looked at.
    When it wins / loses
        Keeps traffic off the links between zones and the cloud's price off the bill; a request is expected
        to end later for that by at most its service. Loses to congestion-aware where only completion counts:
        a slow node at the edge is preferred to a fast one in the cloud while it is free.
    Deviations from the source
        The paper sends all of a user's work to one nearby site; here each request is placed by itself, and
        overflow goes where it should end first.
    """

    name: ClassVar[str] = "edge-first"

    def init(self, cluster: Cluster) -> Memory:
        """Scores of the candidates."""
        return memory(floats=MAX_RANKED)

    @staticmethod
    @kernel
    def dispatch(view: View, plan: Plan, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        """Go outwards until a node begins before the best farther one would end."""
        scores, distance_s = memory.floats, _nearest_beyond_s(view, work, -1.0)
        while distance_s < np.inf:
            count = _rank_at(view, work, distance_s, ranking, scores)
            farther, farther_s = _best_beyond(view, work, distance_s)
            own_s = estimate_s(view, work, view.nodes.type_idx[ranking[0]])
            if farther < 0:
                return count
            if scores[0] - own_s <= farther_s:
                count = min(count, MAX_RANKED - 1)
                ranking[count] = farther
                return count + 1
            distance_s = _nearest_beyond_s(view, work, distance_s)
        return 0
