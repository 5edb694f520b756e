"""Utilisation of the nodes, and its imbalance."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from trimtab.metrics.distribution import coefficient_of_variation, mean, variance
from trimtab.metrics.run_records import FloatArray, NodeRecords


def imbalance_metrics(nodes: NodeRecords) -> dict[str, float]:
    """Mean and spread of utilisation across nodes, and the idle rate of each resource."""
    allocated_frac = used_frac(nodes.allocated_slot_s, nodes.slots, nodes.up_s)
    memory_frac = used_frac(nodes.memory_used_gib_s, nodes.memory_gib, nodes.up_s)
    return {
        **_spread("utilisation", busy_frac(nodes)),
        **_spread("utilisation_allocated", allocated_frac),
        "idle_frac": 1.0 - mean(allocated_frac),
        "idle_memory_frac": 1.0 - mean(memory_frac),
    }


def busy_frac(nodes: NodeRecords) -> FloatArray:
    """Share of each node's slot-seconds spent computing, of the nodes that were ever up."""
    return used_frac(nodes.busy_slot_s, nodes.slots, nodes.up_s)


def used_frac(used: FloatArray, capacity: npt.NDArray[np.generic], up_s: FloatArray) -> FloatArray:
    """Used ÷ (capacity × seconds up), for the nodes that have a finite capacity and were ever up."""
    size = np.asarray(capacity, dtype=np.float64)
    counted = (size > 0) & (size < math.inf) & (up_s > 0)
    return used[counted] / (size[counted] * up_s[counted])


def _spread(name: str, frac: FloatArray) -> dict[str, float]:
    return {
        f"{name}_mean_frac": mean(frac),
        f"{name}_var": variance(frac),
        f"{name}_cv": coefficient_of_variation(frac),
    }
