"""Utilisation of the nodes, and its imbalance."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from trimtab.metrics.definitions import MODEL_MEMORY, RESOURCE_METRIC_NAMES, SHORT_NAMES
from trimtab.metrics.distribution import coefficient_of_variation, mean, ratio, variance
from trimtab.metrics.run_records import BoolArray, FloatArray, NodeRecords, Records


def imbalance_metrics(records: Records) -> dict[str, float]:
    """Utilisation of slots and of each resource: in all, its spread over the nodes, and the idle rate."""
    nodes = records.nodes
    allocated_frac = used_frac(nodes.allocated_slot_s, nodes.slots, nodes.up_s)
    return {
        **_spread("utilisation", busy_frac(nodes)),
        **_spread("utilisation_allocated", allocated_frac),
        "idle_frac": 1.0 - total_frac(nodes.allocated_slot_s, nodes.slots, nodes.up_s),
        "idle_node_frac": 1.0 - mean(allocated_frac),
        **_resource_metrics(records),
    }


def _resource_metrics(records: Records) -> dict[str, float]:
    """Utilisation, its variance over nodes, and idle rate of each resource; nan where it is not modelled."""
    nodes, resources = records.nodes, records.resources
    uses = {
        SHORT_NAMES[name]: (resources.used_s[:, k], resources.capacity[:, k])
        for k, name in enumerate(resources.names)
    }
    uses.setdefault(MODEL_MEMORY, (nodes.memory_used_gib_s, nodes.memory_gib))
    metrics: dict[str, float] = {}
    for name in RESOURCE_METRIC_NAMES:
        used_s, capacity = uses.get(name, (np.zeros(0), np.zeros(0)))
        metrics |= resource_figures(name, used_s, capacity, nodes.up_s[: len(capacity)])
    return metrics


def resource_figures(
    name: str, used_s: FloatArray, capacity: npt.NDArray[np.generic], up_s: FloatArray
) -> dict[str, float]:
    """Utilisation, its variance over nodes and idle rate of one resource. Arrays are [nodes]."""
    in_all = total_frac(used_s, capacity, up_s)
    return {
        f"utilisation_{name}_frac": in_all,
        f"utilisation_{name}_var": variance(used_frac(used_s, capacity, up_s)),
        f"idle_{name}_frac": 1.0 - in_all,
    }


def busy_frac(nodes: NodeRecords) -> FloatArray:
    """Share of each node's slot-seconds spent computing, of the nodes that were ever up."""
    return used_frac(nodes.busy_slot_s, nodes.slots, nodes.up_s)


def used_frac(used: FloatArray, capacity: npt.NDArray[np.generic], up_s: FloatArray) -> FloatArray:
    """Used ÷ (capacity × seconds up), for the nodes that have a finite capacity and were ever up."""
    size = np.asarray(capacity, dtype=np.float64)
    counted = _counted(size, up_s)
    return used[counted] / (size[counted] * up_s[counted])


def total_frac(used: FloatArray, capacity: npt.NDArray[np.generic], up_s: FloatArray) -> float:
    """Used ÷ (capacity × seconds up), each summed over the nodes that `used_frac` counts."""
    size = np.asarray(capacity, dtype=np.float64)
    counted = _counted(size, up_s)
    return ratio(float(used[counted].sum()), float((size[counted] * up_s[counted]).sum()))


def _counted(size: FloatArray, up_s: FloatArray) -> BoolArray:
    return (size > 0) & (size < math.inf) & (up_s > 0)


def _spread(name: str, frac: FloatArray) -> dict[str, float]:
    return {
        f"{name}_mean_frac": mean(frac),
        f"{name}_var": variance(frac),
        f"{name}_cv": coefficient_of_variation(frac),
    }
