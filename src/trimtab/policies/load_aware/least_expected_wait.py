"""Least expected wait: the node with the least estimated work per slot, this request included."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from trimtab.compiled.kernel import helper, kernel
from trimtab.domain.cluster import Cluster
from trimtab.domain.policy import Policy
from trimtab.domain.view import Memory, Plan, View, estimate_s
from trimtab.policies.shared.trees import forest, n_trees, rank_head, refresh, slots_of, type_of
from trimtab.policies.shared.work_left import (
    first_tree,
    n_groups,
    rank_least_work,
    refresh_work,
    work_trees,
)


@helper(inline=True)
def _rank_aged(view: View, work: Any, memory: Memory, ranking: Any) -> int:
    """Rank by what is left of running work."""
    refresh_work(view, memory)
    count = 0
    for g in range(n_groups(memory)):
        t = first_tree(g)
        own_s = estimate_s(view, work, type_of(memory, t))
        if own_s < np.inf:
            count = rank_least_work(view, memory, ranking, count, g, own_s / slots_of(memory, t))
    return int(count)


@helper(inline=True)
def _rank_in_full(view: View, work: Any, memory: Memory, ranking: Any) -> int:
    """Rank with running work counted in full."""
    refresh(view, memory, view.nodes.outstanding_s)
    count = 0
    for g in range(n_trees(memory)):
        own_s = estimate_s(view, work, type_of(memory, g))
        if own_s < np.inf:
            count = rank_head(memory, ranking, count, g, own_s, float(slots_of(memory, g)))
    return int(count)


@dataclass(frozen=True)
class LeastExpectedWait(Policy):
    """Join the shortest expected delay: least estimated seconds of work left per slot, this request included.

    Idea
        score(node) = (estimated seconds of work left there + own estimate on that node) / slots; least score
        first, ties by node. What is queued counts in full, running work with the rest of its estimate. With
        `aged` = False running work counts in full until it ends. One candidate per node group.
    Source
        Sayed Banawan, John Zahorjan: "Load sharing in heterogeneous queueing systems", IEEE INFOCOM, 1989
        (shortest expected delay; from memory); on equal nodes the least work left: Mor Harchol-Balter, Mark
        Crovella, Cristina Murta, "On choosing a task assignment policy for a distributed server system",
        Journal of Parallel and Distributed Computing 59(2), 1999, §2 (the policy "Dynamic").
    Reads
        Backlog and its time, estimated outstanding seconds, requests in flight and slots of each node; the
        estimated service time of this request per node type; which nodes are up, have room and serve the
        class.
    Cost
        O(log nodes) per change of a node and per node group (tournament trees).
    When it wins / loses
        Wins where sizes vary and nodes differ, and estimates are fair. Blind to model loads and round trips;
        wrong estimates mislead it; herds under stale views with several dispatchers.
    Deviations from the source
        Delay is computed from estimated seconds, not as (requests there + 1) / service rate. Several slots
        are treated as one server as fast as all of them. For overdue work on a node without a free slot, a
        share `OVERDUE_FRAC` of all estimates in flight there remains.
    """

    name: ClassVar[str] = "least-expected-wait"
    aged: bool = True  # running work counts with the rest of its estimate; False: in full until it ends

    def init(self, cluster: Cluster) -> Memory:
        """Trees of work per node group."""
        trees = work_trees(cluster) if self.aged else forest(cluster)
        return trees._replace(params=np.array([float(self.aged)]))

    @staticmethod
    @kernel
    def dispatch(view: View, plan: Plan, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        """Rank the heads of the groups that serve this class."""
        if memory.params[0] == 1.0:
            return int(_rank_aged(view, work, memory, ranking))
        return int(_rank_in_full(view, work, memory, ranking))
