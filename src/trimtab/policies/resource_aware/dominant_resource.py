"""Dominant resource: the node whose scarcest resource stays the least used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from trimtab.compiled.kernel import helper, kernel
from trimtab.domain.cluster import Cluster
from trimtab.domain.needs import Need
from trimtab.domain.policy import Policy
from trimtab.domain.view import Memory, Plan, View, memory, needs_of
from trimtab.policies.shared.kept_scores import drop_changed, none_kept
from trimtab.policies.shared.room import (
    drop_changed_models,
    has_room,
    is_slot_free,
    memory_column,
    memory_share,
    models_take_memory,
    n_resources,
    no_models_kept,
    share_of,
)
from trimtab.policies.shared.selection import NOTES, notes_room, rank_noted
from trimtab.policies.shared.without import NO_MODEL_MEMORY, SLOTS_ONLY


@helper(inline=True)
def _dominant_share(view: View, work: Any, j: int) -> float:
    """The largest share in use of any resource of node j with this work on it."""
    largest = 0.0
    for k in range(n_resources(view)):
        largest = max(largest, share_of(view, work, j, k))
    return largest


@dataclass(frozen=True)
class DominantResource(Policy):
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
    needs: ClassVar[frozenset[Need]] = frozenset({Need.RESOURCES, Need.RESIDENCY, Need.HOLDING})
    degrades: ClassVar[Mapping[Need, str]] = {
        Need.RESOURCES: SLOTS_ONLY,
        Need.RESIDENCY: NO_MODEL_MEMORY,
    }

    def init(self, cluster: Cluster) -> Memory:
        """Whether models take memory, and its column; notes of nodes, models' memory, and kept scores."""
        floats = [*np.zeros(notes_room(cluster.n_nodes)), *no_models_kept(cluster), *none_kept(cluster)]
        return memory(ints=[int(models_take_memory(cluster)), memory_column(cluster)], floats=floats)

    @staticmethod
    @kernel
    def dispatch(view: View, plan: Plan, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        """Rank the nodes where it fits by their dominant share, least first."""
        needs, floats = needs_of(work), memory.floats
        first = len(floats) - len(view.fixed_s) * view.context.n_nodes
        drop_changed(view, floats, first)
        models, has_models = first - view.context.n_nodes, memory.ints[0] == 1
        if has_models:
            drop_changed_models(view, floats, models)
        first += needs.class_idx * view.context.n_nodes
        for j in range(view.context.n_nodes):
            if floats[first + j] != floats[first + j]:  # not kept
                floats[first + j] = _dominant_share(view, needs, j) if has_room(view, needs, j) else np.inf
            score = floats[first + j] if is_slot_free(view, needs, j) else np.inf
            if has_models and score < np.inf:
                score = max(score, memory_share(view, needs, floats, models, j, memory.ints[1]))
            floats[NOTES + j] = score
        return int(rank_noted(floats, ranking, view.context.n_nodes))
