"""MuxFlow-style sharing on Gavel's measured pairs: nothing is published; ways to share stand side by side."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial

import numpy as np

from bench.golden.cases import DATA, Golden
from trimtab.domain.training_jobs import ServiceLoads, Workload, gpu_nodes
from trimtab.domain.training_profiles import ScalingTable
from trimtab.traces.gavel_jobs import read_gavel_jobs, read_gavel_pairs, read_gavel_rates
from trimtab.training.job_metrics import job_metrics
from trimtab.training.training_loop import run_allocator
from trimtab.training.truths.gavel_workloads import pair_speeds
from trimtab.training.truths.table_model import TableTruth

FOLDER = DATA / "gavel_throughputs"
SPEEDS = FOLDER / "simulation_throughputs.json.gz"
SERVICES, NOISE_CV = 24, 0.1
STUDY = "MuxFlow-style, Gavel's 96 jobs and measured pairs, 24 services on 32 V100"
WAYS = {
    "space": "jobs of one GPU beside services, by load",
    "turns": "half of the GPU for each",
    "none": "services alone",
}


@cache
def inputs() -> tuple[Workload, ScalingTable]:
    """Single-GPU jobs of the list, behind services of every kind in turn, each at its own time of day."""
    rates = read_gavel_rates(SPEEDS, "v100")
    kinds = sorted({key[:2] for key in rates if key[2] == 1})
    jobs = [job for job in read_gavel_jobs(FOLDER / "max_min_fairness.trace") if job.gpus == 1]
    kind = np.array(
        [k % len(kinds) for k in range(SERVICES)] + [kinds.index((j.model, j.batch)) for j in jobs]
    )
    n = len(kind)
    is_service = np.arange(n) < SERVICES
    work = np.array([np.inf] * SERVICES + [float(job.steps) for job in jobs])
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
        submit_s=np.zeros(n),
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
    phase_s = np.arange(n) * 86_400.0 / SERVICES
    return replace(workload, services=ServiceLoads(is_service, phase_s)), table


@cache
def found(sharing: str) -> dict[str, float]:
    workload, table = inputs()
    kinds = [(model, int(batch)) for model, batch in (name.split(", ") for name in table.curve_names)]
    alone = {key: rate for key, rate in read_gavel_rates(SPEEDS, "v100").items() if key[2] == 1}
    measured = {pair: rate for pair, rate in read_gavel_pairs(SPEEDS, "v100").items() if pair[0][2] == 1}
    pairs = pair_speeds(kinds, (alone,), (measured,))
    run = run_allocator(
        f"muxflow(sharing={sharing})",
        workload,
        nodes=gpu_nodes(0, np.full(8, 4)),
        type_names=("v100",),
        truth=TableTruth(table, pairs=pairs.disturbed(NOISE_CV, 0), pair_estimate=pairs),
        restart="flat(seconds_s=30)",
    )
    return job_metrics(run)


def figure(sharing: str, metric: str) -> float:
    return found(sharing)[metric]


def goldens() -> list[Golden]:
    metrics = {
        "mean completion in s": "completion_mean_s",
        "share of the services' time above 1.2 times their latency": "service_over_limit_frac",
    }
    return [
        Golden(
            f"{STUDY}, {title}", f"sharing {way}", np.nan, partial(figure, way, metric),
            is_fast=False, note=note,
        )
        for title, metric in metrics.items()
        for way, note in WAYS.items()
    ]  # fmt: skip
