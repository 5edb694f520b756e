"""The section `serving`, and faults, as `Options`."""

from __future__ import annotations

import numpy as np

from trimtab.domain.cluster import Cluster
from trimtab.domain.options import FAULT, Cancel, Eviction, OnFailure, OnRefusal, Options
from trimtab.domain.view import OUTAGE, UNLIMITED
from trimtab.experiments.scenario.build.streams import Stream, generator
from trimtab.experiments.scenario.spec.serving import FaultSpec, ServingSpec
from trimtab.experiments.scenario.spec.shared_types import IntArray


def build_options(
    serving: ServingSpec, faults: tuple[FaultSpec, ...], cluster: Cluster, seed: int
) -> Options:
    """Options of one run; faults of a fraction of nodes draw the nodes from the seed."""
    processes = [_processes(fault, _struck(fault, cluster, seed, k)) for k, fault in enumerate(faults)]
    planned = [rows for fault, rows in zip(faults, processes, strict=True) if fault.planned]
    return Options(
        held_max=UNLIMITED if serving.held_max is None else serving.held_max,
        on_refusal=OnRefusal[serving.on_refusal.upper()],
        lookahead=serving.lookahead,
        lane_per_class=serving.lane_per_class,
        cancel=Cancel[serving.cancel.upper()],
        on_failure=OnFailure[serving.on_failure.upper()],
        max_retries=serving.max_retries,
        dispatchers=serving.dispatchers,
        telemetry_period_s=serving.telemetry.period_s,
        telemetry_delay_s=serving.telemetry.delay_s,
        plan_latency_s=serving.plan_latency_s,
        horizon_s=np.inf if serving.horizon_s is None else serving.horizon_s,
        prefix_blocks=serving.prefix_cache.blocks,
        results_max=serving.result_cache.entries,
        eviction=Eviction[serving.eviction.upper().replace("-", "_")],
        faults=np.concatenate(processes) if processes else None,
        outages=_outages(np.concatenate(planned)) if planned else None,
    )


def _outages(rows: np.ndarray[tuple[int], np.dtype[np.void]]) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    """OUTAGE [planned outages]."""
    outages = np.zeros(len(rows), OUTAGE)
    for name in OUTAGE.names or ():
        outages[name] = rows[name]
    return outages


def _struck(fault: FaultSpec, cluster: Cluster, seed: int, k: int) -> IntArray:
    """Nodes of the k-th fault."""
    chosen = np.ones(cluster.n_nodes, dtype=np.bool_)
    if fault.node is not None:
        chosen &= np.array(cluster.node_names) == fault.node
    if fault.type is not None:
        chosen &= cluster.type_idx == cluster.type_names.index(fault.type)
    if fault.zone is not None:
        chosen &= cluster.zone_idx == cluster.zone_names.index(fault.zone)
    nodes = np.flatnonzero(chosen)
    count = round(fault.share_frac * len(nodes))
    return np.sort(generator(seed, Stream.FAULT, k).choice(nodes, count, replace=False))


def _processes(fault: FaultSpec, nodes: IntArray) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    """FAULT [nodes]."""
    rows = np.zeros(len(nodes), FAULT)
    rows["node_idx"], rows["factor"] = nodes, fault.factor
    rows["mtbf_s"] = np.inf if fault.mtbf_s is None else fault.mtbf_s
    rows["mttr_s"] = fault.mttr_s or 0.0
    rows["start_s"] = fault.at_s or 0.0
    rows["end_s"] = rows["start_s"] + (fault.duration_s or 0.0)
    return rows
