"""Dominant resource: the node whose scarcest resource stays the least used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from trimtab.compiled.kernel import helper, kernel
from trimtab.domain.cluster import Cluster
from trimtab.domain.view import Memory, Plan, View, needs_of
from trimtab.policies.shared.room import (
    RoomPolicy,
    has_room,
    is_slot_free,
    kept_at,
    kept_memory,
    memory_share,
    n_resources,
    share_of,
)
from trimtab.policies.shared.selection import NOTES, rank_noted


@helper(inline=True)
def _dominant_share(view: View, work: Any, j: int) -> float:
    """The largest share in use of any resource of node j with this work on it."""
    largest = 0.0
    for k in range(n_resources(view)):
        largest = max(largest, share_of(view, work, j, k))
    return largest


@dataclass(frozen=True)
class DominantResource(RoomPolicy):
    """Balance: of the nodes where the request fits now, the one with the least maximal share in use after it.

    Idea
        A node is as full as its fullest resource. Of the nodes with a free slot and enough of every resource,
        the request goes where the largest share in use, over resources and after placement, is least: work
        that needs one resource goes where others are in use. Where it fits nowhere, it is held in the
        central queue.
    Source
        Chandra Chekuri, Sanjeev Khanna: "On multidimensional packing problems", SIAM Journal on Computing
        33(4), 2004 (vector scheduling: the least maximum over machines and dimensions), here greedily as in
        list scheduling. The dominant share is that of Ali Ghodsi, Matei Zaharia, Benjamin Hindman, Andy
        Konwinski, Scott Shenker, Ion Stoica: "Dominant resource fairness: fair allocation of multiple
        resource types", NSDI 2011. From memory.
    Reads
        Capacity and use of each node's resources, the class's demand, slots, running and in-flight requests;
        models that each node holds and their sizes; which nodes are up, have room and serve the class.
    Cost
        O(nodes), and O(classes + resources) for each node that changed since the last decision.
    When it wins / loses
        Wins where classes need different resources and nodes differ in what they have of them. Knows neither
        speeds nor models nor distances, so it loses to policies of expected completion on unequal nodes.
    Deviations from the source
        Requests come one by one and leave again. Requests that were sent to a node and do not run yet are
        assumed to need as much as this one. Where no resources are modelled, slots are the only one. The
        source's machines are equal and its vectors are all known; here shares are of each node's own
        capacity.
    """

    name: ClassVar[str] = "dominant-resource"

    def init(self, cluster: Cluster) -> Memory:
        """As `kept_memory`."""
        return kept_memory(cluster)

    @staticmethod
    @kernel
    def dispatch(view: View, plan: Plan, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        """Rank the nodes where it fits by their dominant share, least first."""
        needs, floats = needs_of(work), memory.floats
        first, models, has_models = kept_at(view, needs, memory)
        for j in range(view.context.n_nodes):
            if floats[first + j] != floats[first + j]:  # not kept
                floats[first + j] = _dominant_share(view, needs, j) if has_room(view, needs, j) else np.inf
            score = floats[first + j] if is_slot_free(view, needs, j) else np.inf
            if has_models and score < np.inf:
                score = max(score, memory_share(view, needs, floats, models, j, memory.ints[1]))
            floats[NOTES + j] = score
        return int(rank_noted(floats, ranking, view.context.n_nodes))
