"""Least expected wait: the node with the least estimated work per slot, this request included."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from trimtab.compiled.kernel import kernel
from trimtab.domain.cluster import Cluster
from trimtab.domain.policy import Policy
from trimtab.domain.view import Memory, Plan, View, estimate_s
from trimtab.policies.shared.trees import forest, n_groups, rank_head, refresh, slots_of, type_of


@dataclass(frozen=True)
class LeastExpectedWait(Policy):
    """Join the shortest expected wait: least estimated seconds of work per slot, this request included.

    Idea
        score(node) = (estimated seconds of all work in flight there + own estimate on that node) / slots;
        least score first, ties by node. One candidate per node group.
    Source
        Mor Harchol-Balter, Mark Crovella, Cristina Murta: "On choosing a task assignment policy for a
        distributed server system", Journal of Parallel and Distributed Computing 59(2), 1999, §2 (the policy
        "Dynamic": least work remaining); on unequal nodes, shortest expected delay: Sayed Banawan, John
        Zahorjan, "Load sharing in heterogeneous queueing systems", IEEE INFOCOM, 1989.
    Reads
        Estimated outstanding seconds and slots of each node; the estimated service time of this request per
        node type; which nodes are up, have room and serve the class.
    Cost
        O(log nodes) per change of a node and per node group (tournament trees).
    When it wins / loses
        Wins where sizes vary and nodes differ, and estimates are fair. Blind to model loads and round trips;
        wrong estimates mislead it; herds under stale views with several dispatchers.
    Deviations from the source
        Work in flight counts in full until it ends (not aged); estimates stand in for true sizes; several
        slots are treated as one server as fast as all of them.
    """

    name: ClassVar[str] = "least-expected-wait"

    def init(self, cluster: Cluster) -> Memory:
        """A tree of outstanding seconds per node group."""
        return forest(cluster)

    @staticmethod
    @kernel
    def dispatch(view: View, plan: Plan, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        """Rank the heads of the groups that serve this class."""
        refresh(view, memory, view.nodes.outstanding_s)
        count = 0
        for g in range(n_groups(memory)):
            own_s = estimate_s(view, work, type_of(memory, g))
            if own_s < np.inf:
                count = rank_head(memory, ranking, count, g, own_s, float(slots_of(memory, g)))
        return count
