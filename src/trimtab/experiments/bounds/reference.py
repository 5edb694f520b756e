"""The lower bound of one built scenario: a completion time that no policy can beat on these requests."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from trimtab.compiled.compiling import compile_by_use, is_compiled
from trimtab.domain.cluster import Cluster
from trimtab.domain.options import OnFailure, Options
from trimtab.domain.requests import Requests, true_service_s
from trimtab.errors import UsageError
from trimtab.experiments.bounds import lagrangian
from trimtab.experiments.bounds.bound import Bound, chain_bound, completion_bound
from trimtab.experiments.bounds.chain_runs import chain_problem
from trimtab.experiments.bounds.pooled_srpt import srpt_completions_s

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

    None where none of the requests can be served, where caches may answer them or shorten their service, and
    where batches may serve several in less than the time of each.
    """
    if _is_cached(requests, options) or options.batch_marginal_frac is not None:
        return None
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
    for zone, nic in {(int(cluster.zone_idx[j]), float(cluster.nic_gib_per_s[j])) for j in nodes}:
        there = work["zone_idx"] == zone
        over_zone = np.where(there, 0.0, work["payload_gib"] / cluster.zone_gib_per_s[zone])
        transfer_s = cluster.rtt_s[work["zone_idx"], zone] + over_zone + work["payload_gib"] / nic
        np.minimum(best_s, transfer_s, out=best_s)
    return best_s


def distance_frac(mean_s: float, finished: int, bound: Bound | None) -> float:
    """How far a policy's mean completion lies above the bound for as many requests; nan where none holds."""
    if bound is None or finished < 1:
        return float("nan")
    try:
        least_s = bound.mean_for(finished)
    except UsageError:
        return float("nan")
    return mean_s / least_s - 1.0 if least_s > 0.0 else float("nan")
