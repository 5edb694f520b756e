"""The room left on a node with the work on it: the sum over its resources, models' memory among them."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from trimtab.compiled.kernel import helper
from trimtab.domain.cluster import Cluster
from trimtab.domain.view import Memory, View, memory, type_of_node
from trimtab.policies.shared.fitting import has_room, is_slot_free, largest, last_if_full, room_left
from trimtab.policies.shared.kept_scores import drop_changed, none_kept
from trimtab.policies.shared.model_memory import (
    drop_changed_models,
    memory_column,
    memory_share,
    models_take_memory,
    no_models_kept,
)
from trimtab.policies.shared.selection import NOTES, notes_room

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
