"""MuxFlow-style sharing on Gavel's measured pairs: nothing is published; ways to share stand side by side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

import numpy as np

from bench.golden.cases import DATA, Golden
from trimtab.domain.service_loads import PairSpeeds, proportional_sharing
from trimtab.domain.training_jobs import Floats, ServiceLoads, Workload, gpu_nodes
from trimtab.domain.training_profiles import ScalingTable
from trimtab.traces.gavel_jobs import read_gavel_jobs, read_gavel_pairs, read_gavel_rates
from trimtab.training.job_metrics import job_metrics
from trimtab.training.performance.pair_network import PairNetwork, predicted_pairs
from trimtab.training.training_loop import run_allocator
from trimtab.training.truths.gavel_workloads import gavel_profile, pair_speeds
from trimtab.training.truths.table_model import TableTruth

FOLDER = DATA / "gavel_throughputs"
SPEEDS = FOLDER / "simulation_throughputs.json.gz"
NOISE_CV = 0.1
FOLDS, PROFILED = 7, 0.3
STUDY = "MuxFlow-style, Gavel's 96 jobs and measured pairs, 24 services on 32 V100"
AT_SCALE = "MuxFlow-style at its scale, 7,300 of Gavel's jobs, 800 services on 1,000 V100"
HELD_OUT = "MuxFlow-style, mean absolute error of the share of speed kept, pairs of models held out"
WAYS = {
    "space": "jobs of one GPU beside services, by load",
    "space,share=limit": "as much of the GPU as the service's limit allows; no sure gain over a half either",
    "turns": "half of the GPU for each, whatever the load",
    "none": "services alone",
}
TOLD = {
    "all": "told all pairs, as measured",
    "network": f"{PROFILED:.0%} of the pairs profiled, the network predicts the others",
    "formula": "told no pair: proportional sharing",
}
METRICS = {
    "mean completion in s": "completion_mean_s",
    "99th percentile of completion in s": "completion_p99_s",
    "share of the services' time above 1.2 times their latency": "service_over_limit_frac",
}


@cache
def measured() -> tuple[list[tuple[str, int]], PairSpeeds, Floats]:
    """Kinds of one GPU, their pairs, and their profiles."""
    rates = {key: rate for key, rate in read_gavel_rates(SPEEDS, "v100").items() if key[2] == 1}
    kinds = sorted({key[:2] for key in rates})
    both = {pair: rate for pair, rate in read_gavel_pairs(SPEEDS, "v100").items() if pair[0][2] == 1}
    return kinds, pair_speeds(kinds, (rates,), (both,)), gavel_profile(kinds, rates)


@cache
def workload_of(services: int, n_jobs: int = 0) -> tuple[Workload, ScalingTable]:
    """Single-GPU jobs of the list, behind services of every kind in turn, each at its own time of day.

    `n_jobs` jobs drawn from the list, at random over two days; 0 = each once, at the start.
    """
    rates = read_gavel_rates(SPEEDS, "v100")
    kinds = measured()[0]
    jobs = [job for job in read_gavel_jobs(FOLDER / "max_min_fairness.trace") if job.gpus == 1]
    submit_s = np.zeros(services + (n_jobs or len(jobs)))
    if n_jobs:
        rng = np.random.default_rng(31)
        jobs = [jobs[i] for i in rng.integers(0, len(jobs), n_jobs)]
        submit_s[services:] = np.sort(rng.uniform(0.0, 2 * 86_400.0, n_jobs))
    kind = np.array(
        [k % len(kinds) for k in range(services)] + [kinds.index((j.model, j.batch)) for j in jobs]
    )
    n = len(kind)
    is_service = np.arange(n) < services
    work = np.array([np.inf] * services + [float(job.steps) for job in jobs])
    rate = np.array([rates[*k, 1] for k in kinds])
    table = ScalingTable(
        np.array([1]), tuple(f"{m}, {b}" for m, b in kinds), rate[None, :, None],
        np.arange(len(kinds))[:, None], np.array([1.0]),
    )  # fmt: skip
    one = np.ones(n, np.int64)
    workload = Workload(
        name="Gavel's jobs and services",
        job_ids=tuple(f"{'service' if s else 'job'}-{i}" for i, s in enumerate(is_service)),
        model_names=table.curve_names,
        submit_s=submit_s,
        deadline_s=np.full(n, np.inf),
        model_idx=kind,
        gpus_requested=one,
        gpus_min=one,
        gpus_max=one,
        batch=np.ones(n),
        work=work,
        declared_work=work.copy(),
        duration_s=np.where(is_service, np.nan, work / rate[kind]),
        priority=is_service.astype(np.int64),
        tenant_idx=np.zeros(n, np.int64),
        tenant_names=("",),
        preemptible=~is_service,
        scales=np.zeros(n, np.bool_),
    )
    phase_s = np.arange(n) * 86_400.0 / services
    return replace(workload, services=ServiceLoads(is_service, phase_s)), table


@cache
def found(
    sharing: str, told: str = "all", services: int = 24, nodes: int = 8, jobs: int = 0
) -> dict[str, float]:
    workload, table = workload_of(services, jobs)
    _, pairs, profile = measured()
    estimates: dict[str, Callable[[], PairSpeeds]] = {
        "all": lambda: pairs,
        "network": lambda: predicted_pairs(pairs, profile, PROFILED),
        "formula": lambda: PairSpeeds(pairs.busy_frac),
    }
    run = run_allocator(
        f"muxflow(sharing={sharing})",
        workload,
        nodes=gpu_nodes(0, np.full(nodes, 4)),
        type_names=("v100",),
        truth=TableTruth(table, pairs=pairs.disturbed(NOISE_CV, 0), pair_estimate=estimates[told]()),
        restart="flat(seconds_s=30)",
    )
    return job_metrics(run)


def figure(sharing: str, metric: str, told: str = "all") -> float:
    return found(sharing, told)[metric]


def at_scale(sharing: str, metric: str) -> float:
    return found(sharing, "network", 800, 250, 7300)[metric]


@cache
def held_out_error(way: str) -> float:
    """Over all pairs that can share: each is predicted without any pair of the same two models."""
    kinds, pairs, profile = measured()
    kept = pairs.kept_frac[0, 0]
    models = sorted({model for model, _ in kinds})
    of = np.array([models.index(model) for model, _ in kinds])
    both = np.minimum(of[:, None], of) * len(models) + np.maximum(of[:, None], of)
    shares = (kept > 0) & ~np.eye(len(kinds), dtype=bool)
    groups = np.unique(both[shares])
    guess = np.asarray(proportional_sharing(pairs.busy_frac[:, None], pairs.busy_frac), np.float64)
    for fold in range(FOLDS):
        held = np.isin(both, groups[fold::FOLDS]) & shares
        known = ~held
        if way == "network":
            guess[held] = PairNetwork().kept(kept, known, pairs.busy_frac, profile)[held]
        elif way == "mean":
            guess[held] = kept[known & (kept > 0)].mean()
    return float(np.abs(guess - kept)[shares].mean())


def goldens() -> list[Golden]:
    beside = partial(Golden, published=np.nan, is_fast=False)
    ways = [
        beside(f"{STUDY}, {title}", f"sharing {way}", run=partial(figure, way, metric), note=note)
        for title, metric in METRICS.items()
        for way, note in WAYS.items()
    ]
    told = [
        beside(
            f"{STUDY}, {title}", f"sharing space, {how}", run=partial(figure, "space", metric, how), note=note
        )
        for title, metric in METRICS.items()
        for how, note in TOLD.items()
        if how != "all"
    ]
    scale = [
        beside(f"{AT_SCALE}, {title}", f"sharing {way}", run=partial(at_scale, way, metric), note=note)
        for title, metric in METRICS.items()
        for way, note in WAYS.items()
    ]
    errors = [
        beside(HELD_OUT, way, run=partial(held_out_error, way), note=note)
        for way, note in {
            "network": f"{FOLDS} folds of pairs of models; pairs that can't share are left out",
            "proportional sharing": "from what each keeps beside its like",
            "mean": "of the pairs that were not held out",
        }.items()
    ]
    return [*ways, *told, *scale, *errors]
