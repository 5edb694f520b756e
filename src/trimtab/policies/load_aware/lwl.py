"""Least work left: the node with the least estimated work that is not done yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from trimtab.compiled.kernel import kernel
from trimtab.domain.cluster import Cluster
from trimtab.domain.policy import Policy
from trimtab.domain.view import Memory, Plan, View, estimate_s
from trimtab.policies.shared.trees import type_of
from trimtab.policies.shared.work_left import (
    first_tree,
    n_groups,
    rank_least_work,
    refresh_work,
    work_trees,
)


@dataclass(frozen=True)
class Lwl(Policy):
    """Send each request to the node with the least work left.

    Idea
        Work left = estimated seconds of queued work and the rest of running work, per slot. Least first, ties
        by node. On equal nodes with one slot each, first come first served and exact estimates, every request
        starts when it would in one central queue (M/G/k). One candidate per node group.
    Source
        Mor Harchol-Balter, Mark Crovella, Cristina Murta: "On choosing a task assignment policy for a
        distributed server system", Journal of Parallel and Distributed Computing 59(2), 1999, §2 (the policy
        "Dynamic": least work remaining) and §3 (its equivalence with a central queue).
    Reads
        Backlog and its time, estimated outstanding seconds, requests in flight and slots of each node; which
        nodes are up, have room and serve the class.
    Cost
        O(log nodes) per change of a node and per node group (tournament trees).
    When it wins / loses
        Wins where sizes vary moderately and nodes are equal. Where sizes are heavy-tailed, `sita-e` keeps
        small requests from waiting behind large ones. Does not count how long the request itself takes:
        `least-expected-wait` does, and is better on unequal nodes. Wrong estimates mislead it; herds under
        stale views with several dispatchers.
    Deviations from the source
        Sizes are estimates. Work is in seconds of the node that has it, divided by its slots. For overdue
        work on a node without a free slot, a share `OVERDUE_FRAC` of all estimates in flight there remains.
    """

    name: ClassVar[str] = "lwl"

    def init(self, cluster: Cluster) -> Memory:
        """Trees of the work left per node group."""
        return work_trees(cluster)

    @staticmethod
    @kernel
    def dispatch(view: View, plan: Plan, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        """Rank the heads of the groups that serve this class."""
        refresh_work(view, memory)
        count = 0
        for g in range(n_groups(memory)):
            if estimate_s(view, work, type_of(memory, first_tree(g))) < np.inf:
                count = rank_least_work(view, memory, ranking, count, g, 0.0)
        return int(count)
