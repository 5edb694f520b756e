"""Lower bounds on mean completion time that no policy can beat, of an instance and of a built scenario.

Completion = finish − arrival. Three bounds on the total of any k finished requests are computed, and the
largest counts: B1 (`lagrangian`), B2 (`pooled_srpt`), both with their proofs, and the least service, that is
every request at its best group without waiting. A policy that rejects some requests is compared with what any
k cost at least; no smaller number of requests has a larger mean, so rejecting never makes the bound stricter.

All are void where batching or result caches share work between requests: ask for none there. Model loads,
failures with restart and slow-downs only lengthen or delay service, so the bounds hold with them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from trimtab.compiled.compiling import compile_by_use, is_compiled
from trimtab.domain.cluster import Cluster
from trimtab.domain.network import Network
from trimtab.domain.options import OnFailure, Options
from trimtab.domain.requests import Requests, true_service_s
from trimtab.errors import UsageError
from trimtab.experiments.bounds import lagrangian
from trimtab.experiments.bounds.chain_runs import ChainProblem, chain_problem, chain_totals_s
from trimtab.experiments.bounds.engine_work import engine_seconds
from trimtab.experiments.bounds.instance import FloatArray, Instance, build_instance
from trimtab.experiments.bounds.lagrangian import lagrangian_bound
from trimtab.experiments.bounds.pooled_srpt import pooled_totals_s, srpt_completions_s

Method = Literal["B1 Lagrangian", "B2 pooled SRPT", "least service", "critical paths", "alone"]

ITERATIONS = 140
INTERVALS = 1600

# What rounding can take from a sum: a share of the sum itself, and per request a few units in the last place
# of the times that it was computed from.
RELATIVE_SAFETY = 1e-9
TIME_SAFETY = 1e-13

COMMON = ("batching and result caches share no work", "true service times, model loads left out")
ONE_SLOT = "a request runs in one slot at a time"
STAGES = (
    "stages follow their inputs, and take true seconds without transfers, at best on the fastest type",
    "pooled work of a run is that of the stages that it cannot do without",
)
ENGINES = (
    "iterations take the seconds of their node type, at best those of the fullest batch",
    "of prompts that may be kept, one token is read",
)
NO_PREEMPTION = "no preemption, and what a failure interrupts starts anew"


@dataclass(frozen=True, slots=True, eq=False)
class Bound:
    """Least total and mean completion time of any schedule; None where no bound holds."""

    total_s: float
    mean_s: float
    method: Method
    b1_total_s: float | None
    b2_total_s: float
    assumptions: tuple[str, ...]
    totals_s: FloatArray  # [requests + 1], least total completion of any k requests at position k

    def mean_for(self, finished: int) -> float:
        """Least mean completion time of any `finished` requests, which rises with their number.

        Raises UsageError unless 1 ≤ finished ≤ requests that some group can serve.
        """
        most = self.totals_s.size - 1
        if not 1 <= finished <= most:
            raise UsageError("no such bound", field="finished", value=finished, expected=f"1 to {most}")
        return float(self.totals_s[finished]) / finished


def completion_bound(
    arrival_s: npt.ArrayLike,
    service_s: npt.ArrayLike,
    release_s: npt.ArrayLike,
    slots: npt.ArrayLike,
    *,
    preemptive: bool = False,
    splitting: bool = False,
    iterations: int = ITERATIONS,
    intervals: int = INTERVALS,
) -> Bound:
    """Bound the completion times of any schedule of these requests from below.

    `arrival_s` [requests]; `service_s` [requests, groups], true seconds on a node of the group, loads left
    out; `release_s` [requests, groups], earliest start = arrival + least transfer time; infinity where a
    group cannot serve the request. `slots` [groups]. Requests that no group can serve never finish and are
    left out.
    `preemptive`: running work may be interrupted and resumed, also on another node, which voids B1.
    `splitting`: parts of one request may run at once, which voids the least service too.
    `iterations` and `intervals` buy tightness of B1; any values give a valid bound.
    Raises UsageError for tables that do not fit together.
    """
    _check_effort(iterations, intervals)
    instance = build_instance(arrival_s, service_s, release_s, slots)
    totals: dict[Method, FloatArray] = {"B2 pooled SRPT": pooled_totals_s(instance)}
    if not splitting:
        totals["least service"] = _prefix_sums(_undelayed_s(instance, resumable=preemptive))
    if not (preemptive or splitting):
        totals["B1 Lagrangian"] = _lagrangian_totals_s(instance, iterations, intervals)
    return _largest(
        {method: _rounded_down(total_s, instance.horizon_s) for method, total_s in totals.items()},
        _assumptions(preemptive=preemptive, splitting=splitting),
    )


def chain_bound(problem: ChainProblem) -> Bound:
    """Bound the completion times of runs of chains from below; `chain_runs` has the proof."""
    alone_s, pooled_s = chain_totals_s(problem)
    totals: dict[Method, FloatArray] = {"critical paths": alone_s, "B2 pooled SRPT": pooled_s}
    horizon_s = float(np.max(problem.arrival_s + problem.critical_s))
    rounded = {method: _rounded_down(total_s, horizon_s) for method, total_s in totals.items()}
    return _largest(rounded, (*COMMON, *STAGES))


def engine_bound(cluster: Cluster, requests: Requests) -> Bound | None:
    """Bound completion where nodes serve in batches, None if none is served; `engine_work` has the proof."""
    found = engine_seconds(cluster, requests)
    used, arrival_s = found.places > 0, requests.work["arrival_s"]
    if not np.isfinite(found.alone_s[:, used]).any():
        return None
    release_s = _release_s(cluster, requests)[:, used]

    def instance(service_s: FloatArray) -> Instance:
        return build_instance(arrival_s, service_s[:, used], release_s, found.places[used])

    alone = instance(found.alone_s)
    totals: dict[Method, FloatArray] = {
        "alone": _prefix_sums(_undelayed_s(alone, resumable=False)),
        "B2 pooled SRPT": np.max([pooled_totals_s(instance(work_s)) for work_s in found.work_s], axis=0),
    }
    rounded = {method: _rounded_down(total_s, alone.horizon_s) for method, total_s in totals.items()}
    return _largest(rounded, (*COMMON, *ENGINES))


def _check_effort(iterations: int, intervals: int) -> None:
    if iterations < 0:
        raise UsageError("cannot be used", field="iterations", value=iterations, expected="0 or more")
    if intervals < 1:
        raise UsageError("cannot be used", field="intervals", value=intervals, expected="1 or more")


def _assumptions(*, preemptive: bool, splitting: bool) -> tuple[str, ...]:
    if splitting:
        return COMMON
    return (*COMMON, ONE_SLOT) if preemptive else (*COMMON, ONE_SLOT, NO_PREEMPTION)


def _undelayed_s(instance: Instance, *, resumable: bool) -> FloatArray:
    """Least service of each request; one that migrates may start on one group and end on a faster one."""
    if not resumable:
        return instance.least_service_s
    finish_s: FloatArray = instance.release_s.min(axis=1) + instance.service_s.min(axis=1)
    return finish_s - instance.arrival_s


def _lagrangian_totals_s(instance: Instance, iterations: int, intervals: int) -> FloatArray:
    bound = lagrangian_bound(instance, iterations, intervals)
    return _prefix_sums(bound.minima_s) - bound.capacity_s * (1 + RELATIVE_SAFETY)


def _prefix_sums(terms_s: FloatArray) -> FloatArray:
    """Sum of the k smallest terms, k = 0 … requests."""
    return np.append(0.0, np.cumsum(np.sort(terms_s)))


def _rounded_down(totals_s: FloatArray, horizon_s: float) -> FloatArray:
    counts = np.arange(totals_s.size)
    return totals_s - RELATIVE_SAFETY * np.abs(totals_s) - TIME_SAFETY * horizon_s * counts


def _largest(totals_s: dict[Method, FloatArray], assumptions: tuple[str, ...]) -> Bound:
    whole_s = {method: float(total[-1]) for method, total in totals_s.items()}
    best_s = np.maximum(np.max(list(totals_s.values()), axis=0), 0.0)
    return Bound(
        total_s=float(best_s[-1]),
        mean_s=float(best_s[-1]) / (best_s.size - 1),
        method=max(whole_s, key=whole_s.__getitem__),
        b1_total_s=whole_s.get("B1 Lagrangian"),
        b2_total_s=whole_s["B2 pooled SRPT"],
        assumptions=assumptions,
        totals_s=best_s,
    )


Floats = NDArray[np.float64]


def compile_bounds(notice: Callable[[str], None] | None = None) -> None:
    """Compile the kernels of the bounds here and now, unless they are in the cache; a line to `notice`."""
    kernels = (srpt_completions_s, lagrangian.cheapest_runs_kernel, lagrangian.list_schedule)
    if notice is not None and not all(map(is_compiled, kernels)):
        notice("compiling the bounds, once on this machine")
    compile_by_use(kernels, _use_bounds)


def _use_bounds() -> None:
    two = np.ones((2, 2))
    completion_bound(np.zeros(2), two, np.zeros((2, 2)), np.ones(2, np.int64))


def bound_of(cluster: Cluster, requests: Requests, options: Options) -> Bound | None:
    """Lower bound on completion, groups being node types.

    None where none of the requests can be served, where caches may answer them or shorten their service,
    where batches may serve several in less than the time of each, and for chains and split requests on
    engines.
    """
    if _is_cached(requests, options) or options.batch_marginal_frac is not None:
        return None
    if cluster.engines is not None:
        in_parts = requests.chains is not None or options.join_s is not None
        return None if in_parts else engine_bound(cluster, requests)
    if requests.chains is not None:
        problem = chain_problem(cluster, requests, requests.chains)
        return None if problem is None else chain_bound(problem)
    service_s = true_service_s(cluster, requests)
    if not np.isfinite(service_s).any():
        return None
    resumes = options.faults is not None and options.on_failure is OnFailure.RESUME
    slots = np.bincount(cluster.type_idx, weights=cluster.slots, minlength=cluster.n_types)
    used = slots > 0
    return completion_bound(
        requests.work["arrival_s"],
        service_s[:, used],
        _release_s(cluster, requests)[:, used],
        slots[used],
        preemptive=resumes,
        splitting=options.join_s is not None,
    )


def _is_cached(requests: Requests, options: Options) -> bool:
    prefixes = options.prefix_blocks > 0 and requests.prefixes is not None
    of_stages = None if requests.chains is None else requests.chains.content_idx
    has_contents = requests.content_idx is not None or of_stages is not None
    return prefixes or (options.results_max > 0 and has_contents)


def _release_s(cluster: Cluster, requests: Requests) -> Floats:
    """Earliest start of each request on each type, [requests, types]: arrival + least transfer time."""
    work = requests.work
    release_s = np.empty((len(work), cluster.n_types))
    for g in range(cluster.n_types):
        nodes = np.flatnonzero(cluster.type_idx == g)
        release_s[:, g] = work["arrival_s"] + _least_transfer_s(cluster, nodes, work)
    return release_s


def _least_transfer_s(cluster: Cluster, nodes: NDArray[np.intp], work: NDArray[np.void]) -> Floats:
    """Least transfer time from each request's zone to any of `nodes`, every link to itself, [requests]."""
    best_s = np.full(len(work), np.inf)
    if cluster.network is not None:
        for j in nodes.tolist():
            np.minimum(best_s, _least_flow_s(cluster.network, j, work), out=best_s)
        return best_s
    for zone, nic in {(int(cluster.zone_idx[j]), float(cluster.nic_gib_per_s[j])) for j in nodes}:
        there = work["zone_idx"] == zone
        over_zone = np.where(there, 0.0, work["payload_gib"] / cluster.zone_gib_per_s[zone])
        transfer_s = cluster.rtt_s[work["zone_idx"], zone] + over_zone + work["payload_gib"] / nic
        np.minimum(best_s, transfer_s, out=best_s)
    return best_s


def _least_flow_s(network: Network, j: int, work: NDArray[np.void]) -> Floats:
    """Least transfer time to node j over an idle network, [requests]: no route is wider than its ends."""
    a, into = network.n_nodes + work["zone_idx"], network.target == j
    widest_in = network.gib_per_s[into].max()
    widest_out = np.zeros(network.n_vertices)
    np.maximum.at(widest_out, network.source, network.gib_per_s)
    away_s = network.ways.delay_s[a, j] + network.ways.delay_s[j, a]
    seconds: Floats = away_s + work["payload_gib"] / np.minimum(widest_in, widest_out[a])
    return seconds


def distance_frac(mean_s: float, finished: int, bound: Bound | None) -> float:
    """How far a policy's mean completion lies above the bound for as many requests; nan where none holds."""
    if bound is None or finished < 1:
        return float("nan")
    try:
        least_s = bound.mean_for(finished)
    except UsageError:
        return float("nan")
    return mean_s / least_s - 1.0 if least_s > 0.0 else float("nan")
