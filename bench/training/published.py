"""Published workloads, each by the rules of the study that it comes from and by its headline metrics."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial

import numpy as np

from bench.golden import elasticflow, gavel, pollux, sia
from bench.golden.cases import DATA
from bench.training.cases import Case
from trimtab.domain.training_jobs import Workload, gpu_nodes
from trimtab.domain.training_profiles import ScalingTable
from trimtab.experiments.training.training_bounds import mean_completion_bound_s, most_deadlines
from trimtab.traces.read_jobs import read_jobs
from trimtab.traces.scaling_profiles import read_scaling_profiles
from trimtab.training.job_models import ReplayJobs, TableJobs
from trimtab.training.job_records import JobRecords
from trimtab.training.training_loop import run_allocator
from trimtab.training.truths.replay_truth import ReplayOptions
from trimtab.training.truths.table_model import TableTruth
from trimtab.training.workloads import WorkloadOptions, table_workload

SHIFT_S = 60.0  # seeds above 0 move each submission by up to so much
SHIFTED = (0, 1, 2, 3, 4)
SETS = ("philly", "saturn", "newtrace")
CLUSTERS = (1, 6, 5, 2, 8, 4)  # of Fig 8(b), the smaller ones first


def shifted(workload: Workload, seed: int) -> Workload:
    """Submissions later by up to SHIFT_S, in the same order; deadlines keep their distance. Seed 0: none."""
    if seed == 0:
        return workload
    moves = np.random.default_rng([seed, 2]).uniform(0.0, SHIFT_S, len(workload))
    submit_s = np.sort(workload.submit_s + moves)
    return replace(
        workload, submit_s=submit_s, deadline_s=submit_s + (workload.deadline_s - workload.submit_s)
    )


def run_pollux(spec: str, number: int) -> JobRecords:
    is_exact = spec.startswith(("tiresias", "optimus"))
    workload, truth = pollux.read_workload(number, pollux.ARTIFACT if is_exact else ReplayOptions())
    return pollux.pollux_run(workload, truth, spec)


def pollux_bound(metric: str, number: int) -> float:
    workload, truth = pollux.read_workload(number)
    return mean_completion_bound_s(workload, ReplayJobs(truth), np.array([64]))


def sia_bound(metric: str, number: int, *, folder: str) -> float:
    type_gpus = np.bincount(sia.NODES["type_idx"], sia.NODES["gpus"]).astype(np.int64)
    return mean_completion_bound_s(sia.workload(number, folder), ReplayJobs(sia.truth()), type_gpus)


@cache
def due_jobs(cluster: int) -> tuple[Workload, ScalingTable, int, int]:
    """Jobs with deadlines, their speeds, nodes, and GPUs of a node; 0 = those of Fig 8(a)."""
    gpu = "A100" if cluster else "T4"
    file = "elasticflow_traces/elasticVpollux_e.csv"
    if cluster:
        file = f"ms_itp_2021/elasticflow-traces/cluster{cluster:02}.csv.gz"
    table, models = read_scaling_profiles(DATA / "elasticflow_profiles" / f"throughputs_{gpu}")
    options = WorkloadOptions(limits="measured", gpu=gpu)
    workload = table_workload(read_jobs(DATA / file), table, models, options)
    nodes = elasticflow.CLUSTERS[f"{cluster:02}"] if cluster else 16
    return workload, table, nodes, 8 if cluster else 4


def run_due(spec: str, cluster: int, seed: int) -> JobRecords:
    workload, table, nodes, gpus = due_jobs(cluster)
    has_own = spec.startswith(("elasticflow", "chronus", "hypersched", "gandiva"))
    return run_allocator(
        spec,
        shifted(workload, seed),
        nodes=gpu_nodes(0, np.full(nodes, gpus)),
        type_names=("gpu",),
        truth=TableTruth(table, finish_rounding="up"),
        clock="" if has_own else "events(slot_s=60)",
        restart="elasticflow",
    )


def due_bound(cluster: int, seed: int) -> float:
    workload, table, nodes, gpus = due_jobs(cluster)
    return most_deadlines(shifted(workload, seed), TableJobs(table), nodes * gpus) / len(workload)


@cache
def rigid_jobs() -> tuple[Workload, gavel.SteppedTruth]:
    return gavel.read_jobs()


def run_rigid(spec: str, seed: int) -> JobRecords:
    workload, truth = rigid_jobs()
    return gavel.gavel_run(shifted(workload, seed), truth, spec, "step-rounds(period_s=120)")


def rigid_bound(metric: str, seed: int) -> float:
    """Of the makespan: all GPUs busy from the first submission on, or every job run at once."""
    if metric != "makespan_s":
        return float("nan")
    workload, _ = rigid_jobs()
    submit_s = shifted(workload, seed).submit_s - shifted(workload, seed).submit_s[0]
    full_s = float((workload.duration_s * workload.gpus_requested).sum()) / 32
    return max(full_s, float((submit_s + workload.duration_s).max()))


DUE_RIVALS = (
    "elasticflow",
    "elasticflow(admit=together,gain=increase,levels=all)",
    "edf",
    "tiresias",
)


def cases() -> list[Case]:
    due = ("deadline_satisfied_frac",)
    mean = ("completion_mean_s",)
    return [
        Case(
            "Shockwave, 120 jobs on 32 V100",
            ("rho_max", "makespan_s"),
            SHIFTED,
            (
                "gandiva-fair",
                "gavel-max-min",
                "max-sum-throughput",
                "ossp",
                "finish-time-fairness",
                "allox",
                "shockwave",
            ),
            run_rigid,
            bound=rigid_bound,
            note="seeds above 0 move each submission by up to a minute; the bound counts the time that each "
            "published schedule takes alone",
        ),
        Case(
            "ElasticFlow Fig 8(a), 195 jobs on 64 T4",
            due,
            SHIFTED,
            DUE_RIVALS,
            lambda spec, seed: run_due(spec, 0, seed),
            bound=lambda metric, seed: due_bound(0, seed),
            note="seeds above 0 move each submission by up to a minute",
        ),
        Case(
            "Pollux, 160 jobs on 64 T4",
            mean,
            (1, 3, 6),
            (pollux.TIRESIAS, "sia", "pollux"),
            run_pollux,
            oracles=("optimus-oracle",),
            bound=pollux_bound,
            note="seeds are the published lists",
        ),
        *(
            Case(
                f"Sia, {folder}, 64 GPUs of three types",
                mean,
                (1, 2, 3, 4),
                ("sia", sia.GAVEL),
                partial(sia.sia_run, folder=folder),
                bound=partial(sia_bound, folder=folder),
                note="seeds are the published lists",
            )
            for folder in SETS
        ),
        Case(
            "ElasticFlow Fig 8(b), six clusters of 512 or 1,024 A100",
            due,
            CLUSTERS,
            DUE_RIVALS,
            lambda spec, seed: run_due(spec, seed, 0),
            bound=lambda metric, seed: due_bound(seed, 0),
            note="seeds are the clusters; 04 and 08 have 1,024 GPUs",
        ),
    ]
