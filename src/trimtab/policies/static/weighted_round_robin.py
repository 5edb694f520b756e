"""Smooth weighted round robin: turns in proportion to capacity, evenly spread in time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from trimtab.compiled.kernel import kernel
from trimtab.domain.cluster import Cluster
from trimtab.domain.policy import Policy
from trimtab.domain.view import Memory, Plan, View, can_take, memory, needs_of
from trimtab.policies.shared.selection import NOTES, notes_room, rank_noted


@dataclass(frozen=True)
class WeightedRoundRobin(Policy):
    """Send requests to the nodes in turn, in proportion to their capacity.

    Idea
        At each request every able node's credit grows by its weight; the node with the most credit serves it
        and pays the sum of these weights. Among nodes of weights 5, 1, 1: a a b a c a a, not a a a a a b c.
    Source
        Maxim Dounin: "Upstream: smooth weighted round-robin balancing", change to nginx, 2012,
        ngx_http_upstream_get_peer in src/http/ngx_http_upstream_round_robin.c.
    Reads
        The weight of each node (slots × mean speed); which nodes are up, have room and serve the class.
    Cost
        O(nodes).
    When it wins / loses
        The best choice without sight of load when nodes differ in speed. Loses to load-aware policies
        as soon as sizes vary; weights are mean speeds, so a class that runs best elsewhere is misplaced.
    Deviations from the source
        Weights are real numbers and not lowered after failures: a failed node is not able and waits out its
        turns. Ranked by credit, so further candidates follow; only the first one pays.
    """

    name: ClassVar[str] = "weighted-round-robin"

    def init(self, cluster: Cluster) -> Memory:
        """Notes of the nodes, then each node's credit."""
        return memory(floats=notes_room(cluster.n_nodes) + cluster.n_nodes)

    @staticmethod
    @kernel
    def dispatch(view: View, plan: Plan, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        """Add credit to all able nodes and take the node with the most credit."""
        needs, floats, total, n = needs_of(work), memory.floats, 0.0, view.context.n_nodes
        first = len(floats) - n
        for j in range(n):
            floats[NOTES + j] = np.inf
            if can_take(view, needs, j):
                total += view.nodes.weight[j]
                floats[first + j] += view.nodes.weight[j]
                floats[NOTES + j] = -floats[first + j]
        count = int(rank_noted(floats, ranking, n))
        if count > 0:
            floats[first + ranking.node_idx[0]] -= total
        return count
