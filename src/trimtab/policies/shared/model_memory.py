"""Accelerator memory as one of the resources: what the models that a node holds take of it.

Where accelerator memory is a modelled resource too, it is the same memory: in use is the larger of what is
reported and what the models take. A request adds what its class demands and the models that the node lacks;
a node that has to unload others for them counts as full.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trimtab.compiled.kernel import helper
from trimtab.domain.cluster import Cluster, Floats
from trimtab.domain.view import View, type_of_node


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
