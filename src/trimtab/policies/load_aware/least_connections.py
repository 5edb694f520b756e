"""Least connections: the node with the fewest requests in flight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from trimtab.compiled.kernel import kernel
from trimtab.domain.cluster import Cluster
from trimtab.domain.policy import Policy
from trimtab.domain.view import Memory, Plan, View
from trimtab.policies.shared.trees import forest, n_trees, rank_head, refresh, type_of


@dataclass(frozen=True)
class LeastConnections(Policy):
    """Send each request to the node with the fewest requests in flight.

    Idea
        Join the shortest queue, the request in service included. One candidate per node group, fewest first.
    Source
        Wensong Zhang: "Linux Virtual Server for scalable network services", Ottawa Linux Symposium, 2000,
        section on scheduling algorithms (least-connection); optimal for equal nodes and exponential sizes:
        Wayne Winston, "Optimality of the shortest line discipline", Journal of Applied Probability 14(1),
        1977.
    Reads
        Requests in flight; which nodes are up, have room and serve the class.
    Cost
        O(log nodes) per change of a node and per node group (tournament trees).
    When it wins / loses
        Best for equal nodes when nothing is known about sizes. Herds under stale views with several
        dispatchers; blind to speed and slots, so it overloads slow nodes.
    Deviations from the source
        Requests in flight instead of connections, which Linux Virtual Server counts as active (256 times) and
        inactive; no weights. Ties by node, where the theory leaves them open. Winston's nodes serve one
        request at a time.
    """

    name: ClassVar[str] = "least-connections"

    def init(self, cluster: Cluster) -> Memory:
        """A tree of requests in flight per node group."""
        return forest(cluster)

    @staticmethod
    @kernel
    def dispatch(view: View, plan: Plan, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        """Rank the heads of the groups that serve this class."""
        refresh(view, memory, view.nodes.in_flight)
        count = 0
        for g in range(n_trees(memory)):
            if view.fixed_s[work.class_idx, type_of(memory, g)] < np.inf:
                count = rank_head(memory, ranking, count, g, 0.0, 1.0)
        return count
