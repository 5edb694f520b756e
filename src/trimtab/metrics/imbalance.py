"""Utilisation of the nodes, and its imbalance."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from trimtab.metrics.definitions import LINK_METRIC_NAMES, MODEL_MEMORY, RESOURCE_METRIC_NAMES, SHORT_NAMES
from trimtab.metrics.run_records import BoolArray, FloatArray, NodeRecords, Records, RequestRecords
from trimtab.metrics.statistics import coefficient_of_variation, mean, ratio, variance


def imbalance_metrics(records: Records) -> dict[str, float]:
    """Utilisation of slots and of each resource: in all, its spread over the nodes, and the idle rate."""
    nodes = records.nodes
    allocated_frac = used_frac(nodes.allocated_slot_s, nodes.slots, nodes.up_s)
    return {
        **spread_figures("utilisation", busy_frac(nodes)),
        **spread_figures("utilisation_allocated", allocated_frac),
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


def spread_figures(name: str, frac: FloatArray) -> dict[str, float]:
    """Mean, variance and coefficient of variation of the utilisation of nodes [nodes]."""
    return {
        f"{name}_mean_frac": mean(frac),
        f"{name}_var": variance(frac),
        f"{name}_cv": coefficient_of_variation(frac),
    }


def link_metrics(records: Records) -> dict[str, float]:
    """Utilisation of the network's links, and what moved there beside payloads; nan without a network."""
    links = records.links
    if links is None:
        return dict.fromkeys(LINK_METRIC_NAMES, math.nan)
    frac = link_frac(records)
    return dict(
        zip(
            LINK_METRIC_NAMES,
            (
                ratio(float(links.carried_gib.sum()), float(links.gib_per_s.sum()) * records.window_s),
                variance(frac),
                float(frac.max(initial=0.0)),
                links.models_gib,
                links.results_gib,
            ),
            strict=True,
        )
    )


def link_frac(records: Records) -> FloatArray:
    """Share of what each link of the network could carry in the window that it carried, [links]."""
    links = records.links
    if links is None or records.window_s == 0.0:
        return np.zeros(0)
    return links.carried_gib / (links.gib_per_s * records.window_s)


def fairness_metrics(records: Records) -> dict[str, float]:
    """Jain's index over the tenants' mean relative speed and the nodes' utilisation; longest starvation."""
    return {
        "jain_tenants": jain_index(relative_speed_by_tenant(records.requests)),
        "jain_nodes": jain_index(busy_frac(records.nodes)),
        "starvation_max_s": longest_starvation_s(records.requests, records.end_s),
    }


def jain_index(shares: FloatArray) -> float:
    """Jain's fairness index (Σx)² ÷ (n Σx²) of shares x ≥ 0 [n]: 1 when all are equal, 1/n when one has all.

    nan when there are no shares or all are 0. Source: R. Jain, D. Chiu, W. Hawe, "A Quantitative Measure of
    Fairness and Discrimination for Resource Allocation in Shared Computer Systems", DEC-TR-301, 1984.
    """
    return ratio(float(shares.sum()) ** 2, shares.size * float(np.square(shares).sum()))


def relative_speed_by_tenant(requests: RequestRecords) -> FloatArray:
    """Each tenant's mean of best work ÷ completion, 0 for a request that did not finish; [tenants seen]."""
    arrived = requests.arrived
    tenant_idx = requests.tenant_idx[arrived]
    count = np.bincount(tenant_idx)
    total = np.bincount(tenant_idx, weights=relative_speed(requests)[arrived])
    return total[count > 0] / count[count > 0]


def relative_speed(requests: RequestRecords) -> FloatArray:
    """Best work ÷ completion, [n]: the inverse of the unbounded slowdown; 1 for work done in no time."""
    speed = requests.finished.astype(np.float64)
    took_time = requests.finished & (requests.completion_s > 0)
    return np.divide(requests.best_work_s, requests.completion_s, out=speed, where=took_time)


def longest_starvation_s(requests: RequestRecords, end_s: float) -> float:
    """Longest time that one request waited while none of its tenant's took a slot; nan where nothing arrived.

    A request waits from its arrival until its last attempt takes a slot, or it ends without one, or `end_s`.
    """
    arrived = requests.arrived
    start_s, ended_s = requests.start_s[arrived], requests.ended_s[arrived]
    left_s = np.where(np.isnan(start_s), np.where(np.isnan(ended_s), end_s, ended_s), start_s)
    order = np.lexsort((left_s, requests.tenant_idx[arrived]))
    if not order.size:
        return math.nan
    borders = np.flatnonzero(np.diff(requests.tenant_idx[arrived][order])) + 1
    sorted_columns = (column[order] for column in (requests.arrival_s[arrived], start_s, left_s))
    by_tenant = zip(*(np.split(column, borders) for column in sorted_columns), strict=True)
    return max(_starvation_s(*columns) for columns in by_tenant)


def _starvation_s(arrival_s: FloatArray, start_s: FloatArray, left_s: FloatArray) -> float:
    """The same for one tenant, its requests sorted by `left_s` [requests]."""
    served_s = np.where(np.isnan(start_s), -np.inf, left_s)
    last_served_s = np.maximum.accumulate(np.concatenate([[-np.inf], served_s[:-1]]))
    earliest_s = np.minimum.accumulate(arrival_s[::-1])[::-1]  # of those that left no earlier
    return float((left_s - np.maximum(last_served_s, earliest_s)).max())
