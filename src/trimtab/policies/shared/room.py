"""The room on a node beside the work on it: resources, and the memory of models.

Accelerator memory as one of the resources: what the models that a node holds take of it.

Where accelerator memory is a modelled resource too, it is the same memory: in use is the larger of what is
reported and what the models take. A request adds what its class demands and the models that the node lacks;
a node that has to unload others for them counts as full.

A request's demand of nodes' resources and the remainder, for policies that weigh several resources.

Where a cluster models no resources, slots are the only one, and every request takes one.

Scores that depend on a node's resources and a request's class only are kept until the node changes: the
change log of the view names the nodes whose scores are void. So a decision costs O(nodes) comparisons, and
O(classes + resources) for each node that changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import numpy as np

from trimtab.compiled.kernel import helper, kernel
from trimtab.domain.cluster import Cluster, Floats
from trimtab.domain.needs import Need
from trimtab.domain.policy import Policy
from trimtab.domain.view import Memory, Plan, View, can_take, memory, needs_of, type_of_node
from trimtab.policies.shared.selection import NOTES, notes_room, rank_noted
from trimtab.policies.shared.unmet_needs import NO_MODEL_MEMORY, SLOTS_ONLY


def memory_column(cluster: Cluster) -> int:
    """Position of accelerator memory among the modelled resources; -1 = it is none of them."""
    return cluster.resource_names.index("gpu_gib") if "gpu_gib" in cluster.resource_names else -1


def models_take_memory(cluster: Cluster) -> bool:
    """Whether models and adapters have sizes, and nodes a limit for them."""
    of_nodes = cluster.memory_gib[cluster.type_idx]
    return bool(cluster.item_gib.any() and np.isfinite(of_nodes).all() and of_nodes.all())


def none_kept(cluster: Cluster) -> Floats:
    """Room for a score of each class on each node, [classes × nodes]; nan = not kept."""
    return np.full(len(cluster.class_names) * cluster.n_nodes, np.nan)


@helper(inline=True)
def drop_changed(view: View, floats: Any, first: int) -> None:
    """Drop the scores, kept from `first` on, of the nodes that have changed."""
    n = view.context.n_nodes
    for i in range(view.context.n_changed):
        for m in range(len(view.fixed_s)):
            floats[first + m * n + view.changed[i]] = np.nan


def kept_memory(cluster: Cluster, params: Sequence[float] = ()) -> Memory:
    """Memory of policies that keep scores: `params`; whether models take memory, and its column.

    `floats`: notes of the nodes, what the models of each take (only if they do), and kept scores.
    """
    takes, n = models_take_memory(cluster), cluster.n_nodes
    floats = [*np.zeros(notes_room(n)), *np.full(n if takes else 0, np.nan), *none_kept(cluster)]
    return memory(params, [int(takes), memory_column(cluster)], floats)


@helper(inline=True)
def kept_at(view: View, work: Any, memory: Memory) -> tuple[int, int, bool]:
    """Where scores of the work's class are kept, and where what models take, if they do; whether they do.

    Drops what is kept of nodes that have changed.
    """
    floats, n = memory.floats, view.context.n_nodes
    first = len(floats) - len(view.fixed_s) * n
    drop_changed(view, floats, first)
    models, has_models = first - n, memory.ints[0] == 1
    if has_models:
        for i in range(view.context.n_changed):
            floats[models + view.changed[i]] = np.nan
    return first + work.class_idx * n, models, has_models


@helper
def memory_share(view: View, work: Any, floats: Any, first: int, j: int, column: int) -> float:
    """Share of node j's accelerator memory in use with this work on it; above 1 where it has to unload."""
    if floats[first + j] != floats[first + j]:  # not kept
        held_gib = 0.0
        for m in range(view.resident.shape[1]):
            held_gib += view.item_gib[m] * view.resident[j, m]
        floats[first + j] = held_gib
    used_gib = floats[first + j]
    if column >= 0:
        coming = 1 + max(0, view.nodes.in_flight[j] - view.nodes.running[j])
        demand_gib = coming * view.demand[work.class_idx, column]
        used_gib = max(used_gib, view.used[j, column]) + demand_gib
    if work.model_idx >= 0:
        used_gib += view.item_gib[work.model_idx] * (1 - view.resident[j, work.model_idx])
    if work.adapter_idx >= 0:
        used_gib += view.item_gib[work.adapter_idx] * (1 - view.resident[j, work.adapter_idx])
    return float(used_gib / view.memory_gib[type_of_node(view, j)])


FULL: Final = 1e3  # added to the scores of nodes that have to unload models: all others come first


@helper(inline=True)
def _room_of_memory(view: View, j: int, share: float, largest_gib: float) -> float:
    return float((1.0 - share) * view.memory_gib[type_of_node(view, j)] / largest_gib)


@helper
def _note_room(view: View, work: Any, memory: Memory) -> None:
    """Note what would be left on each node, with its sign; inf where the work does not fit now."""
    floats, most = memory.floats, memory.params
    largest_gib, sign = most[len(most) - 2], most[len(most) - 1]
    first, models, has_models = kept_at(view, work, memory)
    for j in range(view.context.n_nodes):
        if floats[first + j] != floats[first + j]:  # not kept
            score = sign * room_left(view, work, j, most) + last_if_full(view, work, j)
            floats[first + j] = score if has_room(view, work, j) else np.inf
        floats[NOTES + j] = floats[first + j] if is_slot_free(view, work, j) else np.inf
        if has_models and floats[NOTES + j] < np.inf:
            share = memory_share(view, work, floats, models, j, memory.ints[1])
            left = _room_of_memory(view, j, share, largest_gib)
            floats[NOTES + j] += FULL if share > 1.0 else sign * left


class RoomPolicy(Policy):
    """Base of policies that send work only where it fits now.

    Without functions of their own they rank by what is left over: the sum over resources, each relative to
    the most that any node has of it.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({Need.RESOURCES, Need.RESIDENCY, Need.HOLDING})
    degrades: ClassVar[Mapping[Need, str]] = {
        Need.RESOURCES: SLOTS_ONLY,
        Need.RESIDENCY: NO_MODEL_MEMORY,
    }
    sign: ClassVar[float] = 1.0  # 1 = least left over first, -1 = most

    def init(self, cluster: Cluster) -> Memory:
        """As `kept_memory`; params: the most that a node has of each resource and of its memory; the sign."""
        most, column = largest(cluster), memory_column(cluster)
        if models_take_memory(cluster) and column >= 0:
            most[column] = 0.0  # `room_left` leaves it out: it is counted once, with the models
        return kept_memory(cluster, [*most, cluster.memory_gib[cluster.type_idx].max(), self.sign])

    @staticmethod
    @kernel
    def dispatch(view: View, plan: Plan, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        """Rank the nodes where it fits by what would be left."""
        _note_room(view, needs_of(work), memory)
        return int(rank_noted(memory.floats, ranking, view.context.n_nodes))


NEARLY_ALL_FRAC: Final = 0.98  # of a resource in use: such a node comes last to work of unknown demand
LAST: Final = 1e6  # added to the score of such a node


def largest(cluster: Cluster) -> Floats:
    """The most that any node has of each resource, [resources]; slots where none is modelled."""
    if not cluster.resource_names:
        return np.array([cluster.slots.max()], np.float64)
    most: Floats = cluster.capacity.max(axis=0)
    return most


@helper(inline=True)
def n_resources(view: View) -> int:
    """How many resources there are, at least one."""
    many = view.demand.shape[1]
    return many if many > 0 else 1


@helper(inline=True)
def has_of(view: View, j: int, k: int) -> float:
    """Capacity of node j in resource k."""
    return view.capacity[j, k] if view.demand.shape[1] > 0 else float(view.nodes.slots[j])


@helper(inline=True)
def left_of(view: View, work: Any, j: int, k: int) -> float:
    """The rest of resource k of node j with this work on it; below 0 the work does not fit.

    Requests that were sent there and do not run yet (waiting or in transfer) are assumed to need as much as
    this work.
    """
    nodes = view.nodes
    if view.demand.shape[1] == 0:
        return float(nodes.slots[j] - nodes.in_flight[j] - 1)
    coming = 1 + max(0, nodes.in_flight[j] - nodes.running[j])
    return float(view.capacity[j, k] - view.used[j, k] - coming * view.demand[work.class_idx, k])


@helper(inline=True)
def share_of(view: View, work: Any, j: int, k: int) -> float:
    """Share of resource k of node j that would be in use with this work on it; 0 where the node has none."""
    has = has_of(view, j, k)
    return (has - left_of(view, work, j, k)) / has if has > 0.0 else 0.0


@helper(inline=True)
def has_room(view: View, work: Any, j: int) -> bool:
    """Whether node j has room for this work's demand beside all that is there."""
    for k in range(n_resources(view)):  # noqa: SIM110 - numba compiles no generator expressions
        if left_of(view, work, j, k) < 0.0:
            return False
    return True


@helper(inline=True)
def starts_now(view: View, work: Any, j: int) -> bool:
    """Whether node j has a slot free for this work, and room for its demand beside all that is there."""
    return is_slot_free(view, work, j) and (view.demand.shape[1] == 0 or has_room(view, work, j))


@helper
def last_if_full(view: View, work: Any, j: int) -> float:
    """`LAST` where node j has nearly all of a resource in use, and nothing is known of what this work takes.

    Without a demand all work fits beside all that is there. So the node is no candidate to hold back for: it
    comes after all others.
    """
    many, c = view.demand.shape[1], work.class_idx
    for k in range(many):
        if view.demand[c, k] > 0.0:
            return 0.0
    for k in range(many):
        if view.capacity[j, k] > 0.0 and view.used[j, k] >= NEARLY_ALL_FRAC * view.capacity[j, k]:
            return LAST
    return 0.0


@helper(inline=True)
def is_slot_free(view: View, work: Any, j: int) -> bool:
    """Whether node j can take this work and has a slot free."""
    return bool((view.nodes.in_flight[j] < view.nodes.slots[j]) & can_take(view, work, j))


@helper(inline=True)
def room_left(view: View, work: Any, j: int, largest: Any) -> float:
    """The rest on node j with this work on it: the sum of its resources, each relative to the largest."""
    left = 0.0
    for k in range(n_resources(view)):
        if largest[k] > 0.0:
            left += left_of(view, work, j, k) / largest[k]
    return left
