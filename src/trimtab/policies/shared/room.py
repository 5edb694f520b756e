"""The room on a node beside the work on it: resources, and the memory of models.

Accelerator memory as one of the resources: what the models that a node holds take of it.

Where accelerator memory is a modelled resource too, it is the same memory: in use is the larger of what is
reported and what the models take. A request adds what its class demands and the models that the node lacks;
a node that has to unload others for them counts as full.

A request's demand of nodes' resources and the remainder, for policies that weigh several resources.

Where a cluster models no resources, slots are the only one, and every request takes one.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from trimtab.compiled.kernel import helper
from trimtab.domain.cluster import Cluster, Floats
from trimtab.domain.view import Memory, View, can_take, memory, type_of_node
from trimtab.policies.shared.kept_scores import drop_changed, none_kept
from trimtab.policies.shared.selection import NOTES, notes_room


def memory_column(cluster: Cluster) -> int:
    """Position of accelerator memory among the modelled resources; -1 = it is none of them."""
    return cluster.resource_names.index("gpu_gib") if "gpu_gib" in cluster.resource_names else -1


def models_take_memory(cluster: Cluster) -> bool:
    """Whether models and adapters have sizes, and nodes a limit for them."""
    of_nodes = cluster.memory_gib[cluster.type_idx]
    return bool(cluster.item_gib.any() and np.isfinite(of_nodes).all() and of_nodes.all())


def no_models_kept(cluster: Cluster) -> Floats:
    """Room for what the models of each node take, [nodes]; nan = not kept. Empty where they take nothing."""
    return np.full(cluster.n_nodes if models_take_memory(cluster) else 0, np.nan)


@helper(inline=True)
def drop_changed_models(view: View, floats: Any, first: int) -> None:
    """Drop what is kept, from `first` on, of nodes that have changed."""
    for i in range(view.context.n_changed):
        floats[first + view.changed[i]] = np.nan


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


def room_memory(cluster: Cluster) -> Memory:
    """Memory of policies that score nodes by `note_room`.

    The most that a node has of each resource, of accelerator memory last; whether models take memory, and its
    column; notes of the nodes, what models take, and kept scores.
    """
    column, takes = memory_column(cluster), models_take_memory(cluster)
    most = [*largest(cluster), float(cluster.memory_gib[cluster.type_idx].max())]
    if takes and column >= 0:
        most[column] = 0.0  # `room_left` leaves it out: it is counted once, with the models
    floats = [*np.zeros(notes_room(cluster.n_nodes)), *no_models_kept(cluster), *none_kept(cluster)]
    return memory(most, [int(takes), column], floats)


@helper(inline=True)
def _room_of_memory(view: View, j: int, share: float, largest_gib: float) -> float:
    return float((1.0 - share) * view.memory_gib[type_of_node(view, j)] / largest_gib)


@helper
def note_room(view: View, work: Any, memory: Memory, sign: float) -> None:
    """Note `sign` × what would be left on each node; inf where the work does not fit now."""
    floats, most, n = memory.floats, memory.params, view.context.n_nodes
    first = len(floats) - len(view.fixed_s) * n
    drop_changed(view, floats, first)
    models, has_models = first - n, memory.ints[0] == 1
    if has_models:
        drop_changed_models(view, floats, models)
    first += work.class_idx * n
    for j in range(n):
        if floats[first + j] != floats[first + j]:  # not kept
            score = sign * room_left(view, work, j, most) + last_if_full(view, work, j)
            floats[first + j] = score if has_room(view, work, j) else np.inf
        floats[NOTES + j] = floats[first + j] if is_slot_free(view, work, j) else np.inf
        if has_models and floats[NOTES + j] < np.inf:
            share = memory_share(view, work, floats, models, j, memory.ints[1])
            left = _room_of_memory(view, j, share, most[len(most) - 1])
            floats[NOTES + j] += FULL if share > 1.0 else sign * left


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
