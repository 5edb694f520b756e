"""What surrounds the jobs of a training scenario: failures and drains, quotas, speeds of pairs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from trimtab.domain.job_places import NodeOffer
from trimtab.domain.service_loads import DEFAULT_BUSY_FRAC, PairSpeeds, busy_of_measured
from trimtab.domain.training_jobs import Floats, JobQueues, Workload
from trimtab.errors import ScenarioError, UsageError
from trimtab.experiments.scenario.build.generated import Stream, generator
from trimtab.experiments.scenario.build.serving_options import struck_nodes
from trimtab.experiments.scenario.spec.cluster_section import ClusterSpec
from trimtab.experiments.training.training_scenario import GenerateJobs, PairsFile, TrainingScenario
from trimtab.traces.gavel_jobs import read_gavel_pairs, read_gavel_rates
from trimtab.training.node_outages import FailingNode, NodeEvent
from trimtab.training.performance.pair_network import predicted_pairs
from trimtab.training.queue_shares import capacity_of, job_queues, refuse_wide, resources_of
from trimtab.training.truths.gavel_workloads import gavel_profile, pair_speeds
from trimtab.validation.names import nearest
from trimtab.validation.problems import field_path
from trimtab.validation.queue_section import tree_of, unknown_tenants
from trimtab.words import counted


def node_faults(
    scenario: TrainingScenario, seed: int, stretch: float = 1.0
) -> tuple[tuple[NodeEvent, ...], tuple[FailingNode, ...]]:
    """Events at given times, `stretch` times as late and as long, and nodes that fail again and again."""
    nodes, zones = tuple(scenario.cluster.each_node()), scenario.cluster.zone_names
    names = np.array([node.name for node in nodes])
    types = np.array([node.group.type for node in nodes])
    zone = np.array([node.group.zone or zones[0] for node in nodes])
    known: list[NodeEvent] = []
    failing: list[FailingNode] = []
    for k, fault in enumerate(scenario.faults):
        rng = generator(seed, Stream.FAULT, k)
        for j in struck_nodes(fault, names, types, zone, rng).tolist():
            if fault.mtbf_s is not None and fault.mttr_s is not None:
                failing.append(FailingNode(j, fault.mtbf_s, fault.mttr_s, int(rng.integers(2**63))))
            if fault.at_s is not None and fault.duration_s is not None:
                at_s, duration_s = stretch * fault.at_s, stretch * fault.duration_s
                known += _once(j, at_s, duration_s, is_planned=fault.planned)
    return tuple(known), tuple(failing)


def _once(node_idx: int, at_s: float, duration_s: float, *, is_planned: bool) -> Iterator[NodeEvent]:
    yield NodeEvent(at_s, node_idx, up=False, drains=is_planned)
    yield NodeEvent(at_s + duration_s, node_idx, up=True)


def quota_gpus_of(quotas: Mapping[str, int], workload: Workload) -> Floats:
    """Most GPUs of each tenant, [tenants]; inf = none; empty = no tenant has one. Raises ScenarioError."""
    for name in quotas:
        if name not in workload.tenant_names:
            expected = f"a tenant of the jobs: {nearest(name, workload.tenant_names)}"
            raise ScenarioError("no such tenant", field="quotas", value=name, expected=expected)
    if not quotas:
        return np.zeros(0)
    return np.array([quotas.get(name, np.inf) for name in workload.tenant_names], np.float64)


def limited(workload: Workload, quota_gpus: Floats) -> Workload:
    """No job gets more GPUs than its tenant may hold. Raises ScenarioError for one that asks for more."""
    if not len(quota_gpus):
        return workload
    most = quota_gpus[workload.tenant_idx]
    for i in np.flatnonzero(workload.gpus_requested > most)[:1]:
        raise ScenarioError(
            f"job {workload.job_ids[i]} asks for {counted(int(workload.gpus_requested[i]), 'GPU')}",
            field=f"quotas.{workload.tenant_names[workload.tenant_idx[i]]}",
            value=int(most[i]),
            expected="no less than a job of the tenant asks for",
        )
    return replace(workload, gpus_max=np.minimum(workload.gpus_max, most).astype(np.int64))


def queues_of(scenario: TrainingScenario, workload: Workload, gpus: int) -> JobQueues | None:
    """The queues as declared; None = there are none. Raises ScenarioError."""
    if scenario.queues is None:
        return None
    are_all = scenario.jobs.generate is not None  # a trace, or the first jobs of one, may lack some
    for path, value, expected in unknown_tenants(scenario.queues, workload.tenant_names, are_all=are_all):
        field = field_path(("queues", *path))
        raise ScenarioError("cannot be used", field=field, value=value, expected=expected)
    offers = node_offers(scenario.cluster)
    try:
        queues = job_queues(tree_of(scenario.queues, resources_of(offers)), workload.tenant_names, offers)
        queues.tree.refuse_misfits(capacity_of(queues, gpus))
        refuse_wide(queues, workload, gpus)
    except UsageError as error:
        raise ScenarioError(
            error.problem, field=error.field, value=error.value, expected=error.expected
        ) from error
    return queues


def node_offers(cluster: ClusterSpec) -> list[NodeOffer]:
    """What jobs find on each node. CPUs and memory that a type does not state are any number."""
    offers = []
    for node in cluster.each_node():
        room = cluster.types[node.group.type].resources
        cpus, memory_gib = room.get("cpu_cores", math.inf), room.get("ram_gib", math.inf)
        named = frozenset(node.group.partition), frozenset(node.group.labels)
        offers.append(NodeOffer(*named, cpus, memory_gib))
    return offers


def generated_pairs(
    generate: GenerateJobs, names: Sequence[str], types: int
) -> tuple[PairSpeeds, PairSpeeds]:
    """Pairs of curves, of the models [names], alike on all `types`, and what allocators are told of them.

    Raises UsageError for a bad file.
    """
    busy = np.array([_busy_frac(generate, name) for name in names])
    stands_for = {k: job_type for k, name in enumerate(names) if (job_type := _measured_as(generate, name))}
    if generate.pairs is None or not stands_for:
        return PairSpeeds(busy), PairSpeeds(busy)
    kinds, measured, told = _read(generate.pairs)
    rows = list(stands_for)
    of_kind = [_kind_of(generate.pairs, kinds, stands_for[k]) for k in rows]
    busy[rows] = busy_of_measured(measured.kept_frac[0, 0])[of_kind]
    (own, other), (own_kind, other_kind) = np.ix_(rows, rows), np.ix_(of_kind, of_kind)

    def of_curves(kept_frac: Floats) -> PairSpeeds:
        kept = np.full((types, len(measured.levels), len(names), len(names)), np.nan)
        kept[..., own, other] = kept_frac[..., own_kind, other_kind]
        return PairSpeeds(busy, measured.levels, kept)

    return of_curves(measured.kept_frac), of_curves(told.kept_frac)


def _busy_frac(generate: GenerateJobs, name: str) -> float:
    """Of a model's, or of a service's GPU."""
    if name in generate.models:
        return generate.models[name].busy_frac
    return generate.services.busy_frac if generate.services is not None else DEFAULT_BUSY_FRAC


def _measured_as(generate: GenerateJobs, name: str) -> str:
    if name in generate.models:
        return generate.models[name].measured_as
    return generate.services.measured_as if generate.services is not None else ""


def _read(pairs: PairsFile) -> tuple[dict[str, int], PairSpeeds, PairSpeeds]:
    """Job type → its row, the pairs of the file, and what allocators are told of them."""
    alone = read_gavel_rates(pairs.file, pairs.gpu)
    kinds = sorted({key[:2] for key in alone})
    names = [f"{model} (batch size {batch})" if batch else model for model, batch in kinds]
    measured = pair_speeds(kinds, (alone,), (read_gavel_pairs(pairs.file, pairs.gpu),))
    told = measured
    if pairs.profiled_frac < 1.0:
        told = predicted_pairs(measured, gavel_profile(kinds, alone), pairs.profiled_frac)
    return {name: k for k, name in enumerate(names)}, measured, told


def _kind_of(pairs: PairsFile, kinds: dict[str, int], job_type: str) -> int:
    if job_type not in kinds:
        raise ScenarioError(
            "no such job type",
            file=str(pairs.file),
            field="measured_as",
            value=job_type,
            expected=f"one of {', '.join(kinds)}",
        )
    return kinds[job_type]
