"""The nodes of a backend as a cluster for policies, and the check that every stage can be placed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from trimtab.domain.cluster import Cluster
from trimtab.errors import UsageError
from trimtab.live.stage_backend import COUNTED, StageCode, StageNode

PEAK_MARGIN = 1.5  # of the memory that a stage has taken, for one that takes more
UNKNOWN_S = 1.0  # expected service for each unit of size, without a hint and a measurement


def cluster_of(
    nodes: Sequence[StageNode], codes: Sequence[StageCode], hints_s: Mapping[str, float]
) -> Cluster:
    """The cluster. Classes are stages, in this order. Raises UsageError for a stage that fits no node."""
    types = list(dict.fromkeys(_type_of(node) for node in nodes))
    machines = list(dict.fromkeys(node.machine for node in nodes))
    type_idx = np.array([types.index(_type_of(node)) for node in nodes], np.int64)
    slots = np.array([node.slots * node.depth for node in nodes], np.int64)
    resources = tuple(
        sorted(
            {r for code in codes for r in code.demand if r in COUNTED or any(r in n.capacity for n in nodes)}
        )
    )
    capacity = np.array([[node.amount(r) * node.depth for r in resources] for node in nodes])
    demand = np.array([[code.demand.get(r, 0.0) for r in resources] for code in codes])
    fixed_s, unit_s = np.full((len(codes), len(types)), np.inf), np.zeros((len(codes), len(types)))
    for c, code in enumerate(codes):
        fitting = [j for j, node in enumerate(nodes) if not node.misfit(code)]
        if not fitting:
            reasons = "; ".join(f"{node.name}: {node.misfit(code)}" for node in nodes)
            raise UsageError(
                "a stage fits no node", field=code.name, value=reasons, expected="one that it fits"
            )
        fixed_s[c, type_idx[fitting]] = 0.0
        unit_s[c] = hints_s.get(code.name, 0.0) or UNKNOWN_S
    zones = len(machines)
    return Cluster(
        type_names=tuple(types),
        node_names=tuple(node.name for node in nodes),
        type_idx=type_idx,
        slots=slots,
        queue_max=np.zeros(len(nodes), np.int64),
        zone_idx=np.array([machines.index(node.machine) for node in nodes], np.int64),
        weight=slots.astype(np.float64),
        nic_gib_per_s=np.full(len(nodes), np.inf),
        memory_gib=np.full(len(types), np.inf),
        accelerators=np.zeros(len(types)),
        usd_per_hour=np.zeros(len(types)),
        class_names=tuple(code.name for code in codes),
        fixed_s=fixed_s,
        unit_s=unit_s,
        item_names=(),
        item_gib=np.zeros(0),
        item_is_adapter=np.zeros(0, np.uint8),
        load_s=np.zeros((0, len(types))),
        zone_names=tuple(machines),
        rtt_s=np.zeros((zones, zones)),
        zone_gib_per_s=np.full(zones, np.inf),
        resource_names=resources,
        capacity=capacity.reshape(len(nodes), len(resources)),
        demand=demand.reshape(len(codes), len(resources)),
    )


def placed_by_peaks(
    codes: Sequence[StageCode], peaks_gib: Mapping[str, float], nodes: Sequence[StageNode]
) -> list[StageCode]:
    """Stages as they are placed: by the memory that they took in earlier runs, at most what they declare."""
    most_gib = max(node.amount("memory_gib") for node in nodes)

    def placed(code: StageCode) -> StageCode:
        if (peak_gib := peaks_gib.get(code.name)) is None:
            return code
        bound_gib = code.demand.get("memory_gib", most_gib)
        return replace(code, demand={**code.demand, "memory_gib": min(bound_gib, PEAK_MARGIN * peak_gib)})

    return [placed(code) for code in codes]


def _type_of(node: StageNode) -> str:
    return node.type or node.name
