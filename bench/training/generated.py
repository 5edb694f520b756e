"""Generated workloads, on which the parameters of weighted-goodput were fixed; nothing is from a trace."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np

from bench.training import generated_adaptive, generated_epochs
from bench.training.cases import Case
from trimtab.domain.training_jobs import Workload, gpu_nodes
from trimtab.domain.training_profiles import ScalingTable
from trimtab.experiments.training.training_bounds import mean_completion_bound_s
from trimtab.experiments.training.training_inputs import build_training
from trimtab.experiments.training.training_scenario import TRAINING_JOBS, TrainingScenario
from trimtab.training.job_models import TableJobs
from trimtab.training.job_records import JobRecords
from trimtab.training.training_loop import run_allocator
from trimtab.training.truths.table_model import TableTruth

TYPES = np.array([[1.0, 1.0, 1.0, 1.0, 1.0], [1.5, 1.7, 1.6, 1.2, 1.3], [2.0, 4.0, 3.5, 2.2, 1.5]])
NODES = {
    "one type": gpu_nodes(0, np.full(16, 4)),
    "three types": gpu_nodes([0] * 6 + [1] * 3 + [2] * 2, [4] * 6 + [8] * 5),
    "32": gpu_nodes(0, np.full(8, 4)),
}
SEEDS = (0, 1, 2)


def inputs(seed: int, load: float, deadlines: bool, nodes: str, rigid: bool) -> tuple[Workload, ScalingTable]:
    """150 jobs of the built-in scenario `elastic-training`, at this load."""
    base = TRAINING_JOBS.load("elastic-training")
    assert base is not None
    data = base.model_dump()
    data["jobs"]["generate"]["deadline"] = {"least": 0.5, "most": 1.5} if deadlines else None
    data["jobs"]["load"] = load
    if nodes == "32":
        data["cluster"]["nodes"] = [{"type": "gpu-node", "count": 8}]
        data["jobs"]["generate"]["gpus"] = {1: 0.6, 2: 0.2, 4: 0.15, 8: 0.05}
        data["jobs"]["generate"]["duration"] = {"median_s": 4000.0, "cv": 1.5}
    made = build_training(TrainingScenario.model_validate(data), seed)
    assert isinstance(made.model, TableJobs)
    workload, table = made.workload, made.model.table
    if nodes == "three types":
        table = replace(table, rate_per_s=table.rate_per_s[0] * TYPES[:, :, None])
    if rigid:
        fixed = np.zeros(len(workload), np.bool_)
        asked = workload.gpus_requested
        workload = replace(workload, scales=fixed, gpus_min=asked, gpus_max=asked)
    return workload, table


def run(
    spec: str,
    seed: int,
    *,
    load: float,
    deadlines: bool = False,
    nodes: str = "one type",
    rigid: bool = False,
    clock: str = "rounds(period_s=60)",
    own_clocks: tuple[str, ...] = (),
    restart: str = "flat(seconds_s=30)",
) -> JobRecords:
    workload, table = inputs(seed, load, deadlines, nodes, rigid)
    return run_allocator(
        spec,
        workload,
        nodes=NODES[nodes],
        type_names=tuple("abc"[: table.rate_per_s.shape[0]]),
        truth=TableTruth(table),
        clock="" if spec.split("(")[0] in own_clocks else clock,
        restart=restart,
    )


def bound(metric: str, seed: int, *, load: float, nodes: str = "one type") -> float:
    if metric != "completion_mean_s":
        return math.nan
    workload, table = inputs(seed, load, False, nodes, False)
    type_gpus = np.bincount(NODES[nodes]["type_idx"], NODES[nodes]["gpus"]).astype(np.int64)
    return mean_completion_bound_s(workload, TableJobs(table), type_gpus)


MEAN, DUE = ("completion_mean_s",), ("deadline_satisfied_frac",)
SHARES = ("gandiva-fair", "gavel-max-min", "max-sum-throughput", "ossp", "finish-time-fairness", "allox")


def cases() -> list[Case]:
    elastic = [
        Case(
            f"elastic jobs, load {load:g}",
            MEAN,
            SEEDS,
            ("sia", "tiresias", "elasticflow"),
            partial(run, load=load, own_clocks=("elasticflow",)),
            bound=partial(bound, load=load),
        )
        for load in (0.6, 1.2)
    ]
    types = [
        Case(
            f"three types of GPU, load {load:g}",
            MEAN,
            SEEDS,
            ("sia", "max-sum-throughput(round_s=60)"),
            partial(run, load=load, nodes="three types", restart="flat(seconds_s=60)"),
            bound=partial(bound, load=load, nodes="three types"),
        )
        for load in (1.0, 2.0)
    ]
    due = [
        Case(
            f"deadlines, load {load:g}",
            DUE,
            SEEDS,
            ("elasticflow", "edf", "tiresias", "hypersched"),
            partial(
                run,
                load=load,
                deadlines=True,
                clock="events(slot_s=60)",
                own_clocks=("elasticflow", "hypersched"),
                restart="elasticflow",
            ),
        )
        for load in (0.6, 1.2)
    ]
    rigid = [
        Case(
            f"fixed numbers of GPUs, load {load:g}",
            ("rho_max", "makespan_s"),
            SEEDS,
            SHARES,
            partial(run, load=load, nodes="32", rigid=True, clock="rounds(period_s=120)", restart="none"),
        )
        for load in (1.0, 2.0, 4.0)
    ]
    epochs = [
        Case(
            f"fixed numbers of GPUs, batches that change, load {load:g}",
            ("rho_max", "makespan_s"),
            SEEDS,
            (*SHARES, "shockwave"),
            partial(generated_epochs.run, load=load),
        )
        for load in (1.5, 3.0)
    ]
    adaptive = [
        Case(
            f"adapted batches, {nodes} of GPU, {mix}, load {load:g}",
            MEAN,
            SEEDS,
            ("sia",),
            partial(generated_adaptive.run, load=load, nodes=nodes, mix=mix),
            bound=partial(generated_adaptive.bound, load=load, nodes=nodes, mix=mix),
            note="weighted-goodput as it was before the last of the changes named above"
            if nodes == "one type"
            else "",
        )
        for nodes, mix, load in (
            ("one type", "mixed", 0.5),
            ("three types", "mixed", 0.5),
            ("three types", "mostly short", 1.0),
        )
    ]
    return [*elastic, *types, *due, *rigid, *epochs, *adaptive]
