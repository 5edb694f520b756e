"""The section `serving`, and faults, as `Options`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab.domain.cluster import Cluster
from trimtab.domain.options import FAULT, Cancel, Eviction, OnFailure, OnRefusal, Options, Queues
from trimtab.domain.view import OUTAGE, UNLIMITED
from trimtab.engine.new_state import pooled
from trimtab.errors import ScenarioError, UsageError
from trimtab.experiments.scenario.build.generated import Stream, generator
from trimtab.experiments.scenario.build.network_graph import cable_between
from trimtab.experiments.scenario.spec.service_classes import Served
from trimtab.experiments.scenario.spec.serving import BackgroundSpec, FaultSpec, ServingSpec, StruckNodes
from trimtab.experiments.scenario.spec.shared_types import FloatArray, IntArray
from trimtab.validation.queue_section import SLOTS, QueueSpec, tree_of, unknown_tenants


def build_options(
    serving: ServingSpec,
    faults: tuple[FaultSpec, ...],
    background: tuple[BackgroundSpec, ...],
    cluster: Cluster,
    hosts: IntArray,
    seed: int,
) -> Options:
    """Options of one run; what happens to a fraction of nodes draws the nodes from the seed.

    `hosts` [nodes]: a node that spans several is struck once for each of them.
    """
    host_idx = np.repeat(np.arange(cluster.n_nodes), hosts)
    struck = [
        _struck(fault, cluster, host_idx, generator(seed, Stream.FAULT, k)) for k, fault in enumerate(faults)
    ]
    processes = [_processes(fault, nodes, cluster) for fault, nodes in zip(faults, struck, strict=True)]
    planned = [rows for fault, rows in zip(faults, processes, strict=True) if fault.planned]
    for k, entry in enumerate(background):
        nodes = _struck(entry, cluster, host_idx, generator(seed, Stream.BACKGROUND, k))
        processes.append(_background(entry, nodes, cluster, hosts))
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
        are_resources_bounds=serving.resources == "bound",
        results_max=serving.result_cache.entries,
        stage_results_gib=serving.stage_results.gib,
        eviction=Eviction[serving.eviction.upper().replace("-", "_")],
        faults=np.concatenate(processes) if processes else None,
        outages=_outages(np.concatenate(planned)) if planned else None,
        report_noise_frac=_noise_frac(serving, cluster),
    )


def build_queues(
    queues: Mapping[str, QueueSpec],
    served: Served,
    cluster: Cluster,
    tenants: Sequence[str],
    *,
    is_sample: bool,
) -> Queues:
    """The queues of these tenants. Raises ScenarioError for amounts or tenants that there are not.

    `is_sample`: tenants are those of some rows of a trace, so that others may be named.
    """
    for path, value, expected in unknown_tenants(queues, tenants):
        if not path or not is_sample:
            field = ".".join(str(part) for part in ("queues", *path))
            raise ScenarioError("cannot be used", field=field, value=value, expected=expected)
    try:
        tree = tree_of(queues, (*cluster.resource_names, SLOTS))
        tree.refuse_misfits(pooled(cluster), "")
    except UsageError as error:
        told: dict[str, Any] = {"field": error.field, "value": error.value, "expected": error.expected}
        raise ScenarioError(error.problem, **told) from error
    is_firm = np.array([not service.preemptible for service in served.classes.values()], np.bool_)
    return Queues(tree, tree.shape.leaf_row[tree.leaf_of(tenants)], is_firm)


def _outages(rows: np.ndarray[tuple[int], np.dtype[np.void]]) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    """OUTAGE [planned outages]."""
    outages = np.zeros(len(rows), OUTAGE)
    for name in OUTAGE.names or ():
        outages[name] = rows[name]
    return outages


def _noise_frac(serving: ServingSpec, cluster: Cluster) -> FloatArray | None:
    noise = {str(name): frac for name, frac in serving.telemetry.noise_frac.items()}
    return np.array([noise.get(name, 0.0) for name in cluster.resource_names]) if noise else None


def _struck(
    fault: FaultSpec | BackgroundSpec, cluster: Cluster, host_idx: IntArray, rng: np.random.Generator
) -> IntArray:
    """The node of each host that is struck, one row for a link; `host_idx` [hosts] is the node of each."""
    if fault.link is not None:
        return np.zeros(1, np.int64)
    names, type_idx = np.array(cluster.node_names)[host_idx], cluster.type_idx[host_idx]
    zones = np.array(cluster.zone_names)[cluster.zone_idx[host_idx]]
    return host_idx[struck_nodes(fault, names, np.array(cluster.type_names)[type_idx], zones, rng)]


def struck_nodes(
    fault: StruckNodes,
    names: NDArray[np.str_],
    types: NDArray[np.str_],
    zones: NDArray[np.str_],
    rng: np.random.Generator,
) -> IntArray:
    """Nodes (or hosts) of a fault or of background work, by the name, type and zone of each."""
    chosen = np.ones(len(names), dtype=np.bool_)
    for wanted, of_nodes in ((fault.node, names), (fault.type, types), (fault.zone, zones)):
        if wanted is not None:
            chosen &= of_nodes == wanted
    nodes = np.flatnonzero(chosen)
    count = round(fault.share_frac * len(nodes))
    return np.sort(rng.choice(nodes, count, replace=False))


def _cable(entry: FaultSpec | BackgroundSpec, cluster: Cluster) -> int:
    """1 + the link that is struck; 0 = none."""
    if entry.link is None or cluster.network is None:
        return 0
    return 1 + cable_between(cluster.network, entry.link)


def _processes(
    fault: FaultSpec, nodes: IntArray, cluster: Cluster
) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    """FAULT [nodes], of a link [1]."""
    rows = np.zeros(len(nodes), FAULT)
    rows["cable"] = _cable(fault, cluster)
    rows["node_idx"], rows["factor"] = nodes, fault.factor
    rows["mtbf_s"] = np.inf if fault.mtbf_s is None else fault.mtbf_s
    rows["mttr_s"] = fault.mttr_s or 0.0
    rows["start_s"] = fault.at_s or 0.0
    rows["end_s"] = rows["start_s"] + (fault.duration_s or 0.0)
    return rows


def _background(
    entry: BackgroundSpec, nodes: IntArray, cluster: Cluster, hosts: IntArray
) -> NDArray[np.void]:
    """FAULT [nodes] of background work, each on one host; [1] of the load of a link."""
    rows = np.zeros(len(nodes), FAULT)
    rows["node_idx"], rows["cable"] = nodes, _cable(entry, cluster)
    if entry.resource is None:
        rows["factor"] = 1.0 - entry.level_frac
    else:
        k = cluster.resource_names.index(entry.resource)
        rows["resource"] = 1 + k
        rows["amount"] = entry.level_frac * cluster.capacity[nodes, k] / hosts[nodes]
        rows["factor"] = 1.0 - entry.slowdown_frac * entry.level_frac
    rows["mtbf_s"] = np.inf if entry.off_s is None else entry.off_s
    rows["mttr_s"] = entry.on_s or 0.0
    rows["start_s"] = entry.at_s
    rows["end_s"] = np.inf if entry.duration_s is None else entry.at_s + entry.duration_s
    return rows


def parts_max(served: Served, class_idx: IntArray, units: FloatArray) -> IntArray:
    """Highest number of parts of each request by its estimated units, [requests]; 1 = it cannot be split."""
    most = np.ones(len(units), np.int64)
    for c, service in enumerate(served.classes.values()):
        if service.split is not None:
            rows = class_idx == c
            parts = (units[rows] / service.split.part_units).astype(np.int64)
            most[rows] = np.clip(parts, 1, service.split.parts_max)
    return most


def join_s(served: Served) -> FloatArray | None:
    """Seconds to join the parts of a request, [classes]; None if no class can be split."""
    specs = [service.split for service in served.classes.values()]
    if not any(specs):
        return None
    return np.array([0.0 if spec is None else spec.join_s for spec in specs])


def batch_marginal_frac(served: Served) -> FloatArray | None:
    """Marginal cost of one more request in a batch, [classes], negative = not batched; None if none is."""
    specs = [service.batch for service in served.classes.values()]
    if not any(specs):
        return None
    return np.array([-1.0 if spec is None else spec.marginal_frac for spec in specs])


def batch_fixed_once(served: Served) -> NDArray[np.bool_] | None:
    """Whether a batch takes the fixed seconds once, [classes]; None if no class does."""
    once = np.array([s.batch is not None and s.batch.fixed_once for s in served.classes.values()], np.bool_)
    return once if once.any() else None
