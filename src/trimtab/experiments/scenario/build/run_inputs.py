"""The inputs of a run, from a scenario and a seed: cluster, requests and options. Equal for all policies.

Load 1.0 is the highest rate at which the fluid programme class × node type is feasible with the mean true
service times of these very requests, model loads excluded (`capacity`). The rate of n requests is n − 1 over
the time from the first arrival to the last; a load stretches the times between them. At another load than
the scenario's own, bursts, faults and background at set times stretch too: they meet the same requests.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import starmap
from typing import Any

import numpy as np

from trimtab.domain.chains import Chains
from trimtab.domain.cluster import Cluster
from trimtab.domain.needs import Need
from trimtab.domain.options import Options
from trimtab.domain.planning import Runs
from trimtab.domain.policy import Policy
from trimtab.domain.requests import Requests
from trimtab.engine.told_runs import declared_runs
from trimtab.errors import ScenarioError, UsageError
from trimtab.experiments.scenario.build.chain_rows import build_chains, path_estimates_s
from trimtab.experiments.scenario.build.cluster_arrays import build_cluster, fluid_capacity_per_s
from trimtab.experiments.scenario.build.disaggregation import disaggregated_chains, with_roles
from trimtab.experiments.scenario.build.generated import RequestColumns, generated
from trimtab.experiments.scenario.build.request_arrays import (
    build_requests,
    content_numbers,
    output_error,
    recorded_prefixes,
    with_contents,
    with_prompts,
)
from trimtab.experiments.scenario.build.serving_options import (
    batch_fixed_once,
    batch_marginal_frac,
    build_options,
    build_queues,
    join_s,
)
from trimtab.experiments.scenario.build.traced import (
    default_served,
    served_of,
    traced,
    traced_chains,
    with_run_class,
)
from trimtab.experiments.scenario.spec.scenario import Scenario
from trimtab.experiments.scenario.spec.scenario_file import names_file
from trimtab.experiments.scenario.spec.service_classes import Served
from trimtab.experiments.scenario.spec.shared_types import FloatArray, stretched
from trimtab.experiments.scenario.spec.workload import BurstSpec
from trimtab.experiments.scenario.trace_rows import chosen_rows, recorded
from trimtab.metrics import TokenTargets
from trimtab.traces import Trace

SOONEST_S = 1e-6  # after its arrival that a client can go away


@dataclass(frozen=True, slots=True)
class TraceInfo:
    """Origin of recorded requests."""

    file: str
    format: str
    rows_in_file: int
    dropped: Mapping[str, int]  # reason → rows that the format leaves out


@dataclass(frozen=True, slots=True, eq=False)
class RunInputs:
    """One run, ready for any policy."""

    cluster: Cluster
    requests: Requests
    options: Options
    slo_s: FloatArray  # [classes]; inf = none
    token_slos: TokenTargets | None
    offered_load: float  # arrival rate over capacity; inf if all arrive at once, nan if nothing is served
    capacity_per_s: float  # arrival rate that is load 1.0; nan if nothing is served
    n_fits_no_node: int  # requests that no node type serves
    trace: TraceInfo | None


def same_inputs(a: RunInputs, b: RunInputs) -> bool:
    """Whether two seeds have the same requests, faults and reports."""
    is_noisy = a.options.report_noise_frac is not None
    return not is_noisy and all(starmap(np.array_equal, zip(_drawn(a), _drawn(b), strict=True)))


def _drawn(inputs: RunInputs) -> list[Any]:
    """All arrays that may depend on the seed."""
    r, prefixes = inputs.requests, inputs.requests.prefixes
    arrays: list[Any] = [r.work, r.truth, r.leave_s, r.content_idx, inputs.options.faults]
    if r.chains is not None:
        arrays += [r.chains.counts, r.chains.truth, r.chains.output_gib, r.chains.is_skipped]
    if prefixes is not None:
        arrays += [prefixes.block_idx, prefixes.first, prefixes.prompt_tokens]
    return arrays


@names_file
def build(scenario: Scenario, seed: int, load: float | None = None, trace: Trace | None = None) -> RunInputs:
    """The inputs of one seed of a scenario. Pure, except for reading a trace that is not given.

    `load` replaces the scenario's. `trace` is the whole trace before sampling and slicing.

    Raises:
        ScenarioError: the trace does not fit the scenario, or a load cannot be set.
        TraceError: the file is no trace, or nothing of it is left.
        UsageError: the seed is invalid.
    """
    if not isinstance(seed, int | np.integer) or not 0 <= seed < 2**63:
        raise UsageError(
            "cannot be used", field="seed", value=seed, expected="a whole number from 0 to 2^63 - 1"
        )
    columns, served, info = _columns(scenario, seed, trace)
    served = with_roles(scenario, served)
    cluster = build_cluster(scenario.cluster, served, columns)
    workload = scenario.workload
    if columns.stages is not None and columns.run_idx is not None:
        chains: Chains | None = traced_chains(
            columns.stages, columns.run_idx, workload, served, cluster, seed
        )
    elif served.roles:
        error = output_error(workload, columns, seed, served.classes)
        chains = disaggregated_chains(served, columns, cluster, error)
    else:
        chains = build_chains(scenario.chains, workload, served, columns, cluster, seed)
    path_s = None if chains is None else _path_estimates_s(chains)
    drawn = build_requests(workload, served, columns, cluster, seed, path_s)
    requests = _reusable(scenario, columns, drawn)
    if columns.factor is not None:
        requests.truth["factor"] *= columns.factor
    mean_s, share = _mean_service(cluster, requests, chains)
    cluster = replace(cluster, weight=_weights(scenario, cluster, mean_s, share))
    are_bounds = scenario.serving.resources == "bound" and bool(cluster.resource_names)
    capacity_per_s = _capacity_per_s(cluster, mean_s, share, are_bounds)
    target = scenario.workload.load if load is None else load
    stretch = 1.0  # of the times of the scenario, which are those of its own load
    if target is not None:
        own, by = scenario.workload.load, _scale_to(requests, target * capacity_per_s)
        stretch = by if own is None else own / target
    for burst in scenario.workload.bursts:
        _condense(requests, stretched(burst, stretch))
    requests.work["run_arrival_s"] = requests.work["arrival_s"]
    requests = replace(requests, chains=chains)
    if columns.leave_after_s is not None and scenario.serving.cancel == "always":
        requests = replace(requests, leave_s=_leave_s(requests, columns.leave_after_s))
    return RunInputs(
        cluster=cluster,
        requests=requests,
        options=replace(
            build_options(
                scenario.serving,
                tuple(stretched(fault, stretch) for fault in scenario.faults),
                tuple(stretched(entry, stretch) for entry in scenario.background),
                cluster,
                np.array([scenario.cluster.types[g.type].hosts for _, g in scenario.cluster.each_node()]),
                seed,
            ),
            join_s=join_s(served),
            batch_marginal_frac=batch_marginal_frac(served),
            batch_fixed_once=batch_fixed_once(served),
            queues=None
            if scenario.queues is None
            else build_queues(
                scenario.queues, served, cluster, requests.tenant_names, is_sample=info is not None
            ),
        ),
        slo_s=np.array([s.slo_s or np.inf for s in served.classes.values()]),
        token_slos=_token_slos(scenario, served),
        offered_load=_rate_per_s(requests) / capacity_per_s,
        capacity_per_s=capacity_per_s,
        n_fits_no_node=int(np.isinf(requests.work["estimate_s"]).sum()),
        trace=info,
    )


def _token_slos(scenario: Scenario, served: Served) -> TokenTargets | None:
    """Targets of the classes for tokens. Raises ScenarioError for one that no node can tell."""
    classes = served.classes
    given = {name: s for name, s in classes.items() if s.slo_ttft_s is not None or s.slo_tpot_s is not None}
    if not given:
        return None
    if not scenario.cluster.has_models:
        name, service = next(iter(given.items()))
        field = "slo_ttft_s" if service.slo_ttft_s is not None else "slo_tpot_s"
        raise ScenarioError(
            "is of tokens, but all nodes serve a request a slot",
            field=f"classes.{name}.{field}",
            value=service.slo_ttft_s or service.slo_tpot_s,
            expected="a node type with service: {kind: llm, …}, or slo_s",
        )
    return TokenTargets(
        np.array([s.slo_ttft_s or np.inf for s in classes.values()]),
        np.array([s.slo_tpot_s or np.inf for s in classes.values()]),
    )


def _reusable(scenario: Scenario, columns: RequestColumns, requests: Requests) -> Requests:
    """The requests with their prompts and contents for caches."""
    tenant_idx = requests.work["tenant_idx"]
    cache, names = scenario.serving.result_cache, requests.tenant_names
    content_idx = content_numbers(cache, columns.content, tenant_idx, names)
    return replace(requests, prefixes=columns.prefixes, content_idx=content_idx, shape_idx=columns.shape)


def _columns(
    scenario: Scenario, seed: int, trace: Trace | None
) -> tuple[RequestColumns, Served, TraceInfo | None]:
    columns, served, info = _as_they_come(scenario, seed, trace)
    spec = scenario.workload
    if spec.contents is not None and columns.content is None:
        columns = with_contents(spec.contents, columns, seed)
    if spec.prompts is not None and columns.prefixes is None:
        columns = with_prompts(spec, spec.prompts, columns, served, seed)
    return columns, served, info


def _as_they_come(
    scenario: Scenario, seed: int, trace: Trace | None
) -> tuple[RequestColumns, Served, TraceInfo | None]:
    spec = scenario.workload
    if spec.generate is not None:
        return generated(spec.generate, scenario.served, seed), scenario.served, None
    assert spec.trace is not None  # checked with the scenario
    whole = recorded(spec.trace) if trace is None else trace
    served = scenario.served if scenario.classes else _default_served(whole)
    if whole.stages is not None:
        served = with_run_class(served)
    rows = chosen_rows(whole, spec.trace.options, seed)
    info = TraceInfo(whole.file, whole.format, whole.rows_in_file, whole.dropped)
    columns = traced(spec.trace, whole, rows, served, seed)
    if whole.stages is not None:
        columns = replace(columns, stages=whole.stages, run_idx=rows["run_idx"].to_numpy())
    if scenario.serving.prefix_cache.blocks or scenario.cluster.has_models:
        columns = replace(columns, prefixes=recorded_prefixes(spec.trace, whole.format, rows))
    return columns, served, info


def _default_served(trace: Trace) -> Served:
    return default_served(trace.format) if trace.stages is None else served_of(trace.stages)


def _leave_s(requests: Requests, after_s: FloatArray) -> FloatArray:
    """Times at which clients leave, after the arrival: at equal times the cancellation would come first."""
    leave_s: FloatArray = requests.work["arrival_s"] + np.maximum(after_s, SOONEST_S)
    return leave_s


def _path_estimates_s(chains: Chains) -> FloatArray:
    """Estimate of each run, on its critical path, [requests]; nan for requests without stages."""
    path_s = np.full(len(chains.template_idx), np.nan)
    path_s[chains.template_idx >= 0] = path_estimates_s(chains)
    return path_s


def _mean_service(
    cluster: Cluster, requests: Requests, chains: Chains | None
) -> tuple[FloatArray, FloatArray]:
    """Mean true service on each node type, [classes, types], and jobs of each class a request, [classes].

    A job is a request, or a stage of one. A class that no type serves has share 0.
    """
    c, classes = requests.work["class_idx"], len(cluster.class_names)
    factor, units = requests.truth["factor"], requests.truth["units"]
    if chains is not None:
        served = ~chains.is_skipped
        c = np.concatenate([c, chains.work["class_idx"][served]])
        factor = np.concatenate([factor, chains.truth["factor"][served]])
        units = np.concatenate([units, chains.truth["units"][served]])
    count = np.bincount(c, minlength=classes)
    mean_factor = np.where(count > 0, np.bincount(c, factor, classes) / np.maximum(count, 1), 1.0)
    mean_units = np.bincount(c, units * factor, classes) / np.maximum(count, 1)
    mean_s = cluster.fixed_s * mean_factor[:, None] + cluster.unit_s * mean_units[:, None]
    is_served = np.isfinite(mean_s).any(axis=1)
    return mean_s, np.where(is_served, count / len(requests), 0.0)


def _weights(scenario: Scenario, cluster: Cluster, mean_s: FloatArray, share: FloatArray) -> FloatArray:
    """Slots × weight of a slot, [nodes].

    Not given, it is the mean over the classes a node serves of (mean service on the best type / its own).
    """
    given = [group.weight or np.nan for _, group in scenario.cluster.each_node()]
    rows = mean_s[share > 0]
    relative = rows.min(axis=1, keepdims=True) / rows  # 0 where a type can't serve
    serves = relative > 0
    speed = relative.sum(axis=0) / np.maximum(serves.sum(axis=0), 1)
    of_slot: FloatArray = np.where(np.isnan(given), speed[cluster.type_idx], given)
    weight: FloatArray = cluster.slots * of_slot
    return weight


def _capacity_per_s(
    cluster: Cluster, mean_s: FloatArray, share: FloatArray, are_resources_bounds: bool
) -> float:
    if not share.any():
        return np.nan
    slots = np.bincount(cluster.type_idx, cluster.slots, cluster.n_types)
    if not are_resources_bounds:
        return fluid_capacity_per_s(mean_s, share, slots).rate_per_s
    held = np.zeros((cluster.n_types, len(cluster.resource_names)))
    np.add.at(held, cluster.type_idx, cluster.capacity)
    return fluid_capacity_per_s(mean_s, share, slots, cluster.demand, held).rate_per_s


def _span_s(requests: Requests) -> float:
    arrival_s = requests.work["arrival_s"]
    return float(arrival_s[-1] - arrival_s[0])


def _rate_per_s(requests: Requests) -> float:
    span_s = _span_s(requests)
    return (len(requests) - 1) / span_s if span_s > 0 else np.inf


def _condense(requests: Requests, burst: BurstSpec) -> None:
    """Let the arrivals of a burst come faster, and later ones earlier; deadlines keep their distance."""
    arrival_s = requests.work["arrival_s"].copy()
    after_s = arrival_s - burst.at_s
    long_s, gained_s = burst.factor * burst.duration_s, (burst.factor - 1.0) * burst.duration_s
    moved_s = np.where(after_s < long_s, after_s / burst.factor, after_s - gained_s)
    new_s = np.where(after_s <= 0.0, arrival_s, burst.at_s + moved_s)
    requests.work["deadline_s"] += new_s - arrival_s
    requests.work["arrival_s"] = new_s


def _scale_to(requests: Requests, rate_per_s: float) -> float:
    """Stretch time about the first arrival; deadlines keep their distance from it. Returns the factor."""
    if not (_span_s(requests) > 0 and rate_per_s > 0):
        expected = "null, as the requests arrive all at once or no node serves any of them"
        raise ScenarioError("cannot be set", field="workload.load", expected=expected)
    arrival_s = requests.work["arrival_s"]
    stretch = _rate_per_s(requests) / rate_per_s
    scaled_s = arrival_s[0] + (arrival_s - arrival_s[0]) * stretch
    requests.work["deadline_s"] += scaled_s - arrival_s
    requests.work["arrival_s"] = scaled_s
    return stretch


MOST = 1024  # requests
OTHER_SEEDS = 1 << 62  # from here on, so that no run of small seeds is told its own requests


def scenario_workload(
    policy: Policy, scenario: Scenario, seed: int, load: float | None = None
) -> np.ndarray | Runs | None:
    """WORK of another seed, or its runs, for rollouts at the start; None for a recorded trace."""
    if Need.ROLLOUT not in policy.all_needs or scenario.workload.generate is None:
        return None
    return _declared(scenario, (seed + OTHER_SEEDS) % (2 * OTHER_SEEDS), load)


@functools.lru_cache(maxsize=1)
def _declared(scenario: Scenario, seed: int, load: float | None) -> np.ndarray | Runs:
    inputs = build(scenario, seed, load)
    if inputs.requests.chains is not None:
        return declared_runs(inputs.requests, inputs.cluster.n_nodes)
    work: np.ndarray = inputs.requests.work[:MOST].copy()
    work.flags.writeable = False
    return work
