"""Runs of the published workloads of Pollux's simulator: 16 nodes with 4 GPUs, rounds of 60 s."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from functools import partial
from math import nan
from pathlib import Path
from statistics import fmean

import numpy as np

from bench.golden.cases import DATA, Golden
from trimtab.domain.training_jobs import Workload, gpu_nodes
from trimtab.domain.training_profiles import ApplicationProfile
from trimtab.traces.application_profiles import read_applications
from trimtab.training.allocator_catalogue import AllocatorSpec
from trimtab.training.job_records import JobRecords
from trimtab.training.restart_costs import FlatRestart
from trimtab.training.training_loop import run_allocator
from trimtab.training.truths.replay_truth import ReplayOptions, ReplayTruth
from trimtab.training.truths.replay_workloads import replay_workload

PROFILES, WORKLOADS = DATA / "pollux_osdi21" / "profiles", DATA / "pollux_osdi21" / "workloads"
ARTIFACT = ReplayOptions(ring="largest-first", oracle="artifact")


def replay_file(file: Path, profiles: Sequence[ApplicationProfile]) -> Workload:
    """A published list of jobs for these applications."""
    with file.open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    return replay_workload(
        str(file),
        profiles,
        [row["name"] for row in rows],
        np.array([float(row["time"]) for row in rows]),
        [row["application"] for row in rows],
        np.array([int(row["num_replicas"]) for row in rows]),
        np.array([float(row["batch_size"]) for row in rows]),
    )


def read_workload(number: int, options: ReplayOptions = ARTIFACT) -> tuple[Workload, ReplayTruth]:
    """One of the published workloads; by default with the options of Tiresias and Optimus."""
    profiles = read_applications(PROFILES)
    workload = replay_file(WORKLOADS / f"workload-{number}.csv", profiles)
    return workload, ReplayTruth(profiles, options)


def pollux_run(workload: Workload, truth: ReplayTruth, allocator: AllocatorSpec) -> JobRecords:
    """One run on 64 GPUs."""
    return run_allocator(
        allocator,
        workload,
        nodes=gpu_nodes(0, np.full(16, 4)),
        type_names=("t4",),
        truth=truth,
        clock="rounds(period_s=60)",
        restart=FlatRestart(30.0),
    )


def mean_completion_s(run: JobRecords) -> float:
    """Average of finish less submission."""
    return float((run.finish_s - run.workload.submit_s).mean())


STUDY = "Pollux simulator, 64 T4, mean job completion in s"
TIRESIAS = "tiresias(service=held,place=spread)"
PUBLISHED = {
    "tiresias": {1: 2473.65, 3: 3876.3, 6: 3469.69375},
    "optimus-oracle": {1: 4087.1, 3: 3944.0, 6: 5301.875},
    "pollux": {1: 2088.8, 3: 2188.5, 6: 2446.1},
}
SEEDS = 5


def completion_s(name: str, number: int) -> float:
    workload, truth = read_workload(number)
    return mean_completion_s(pollux_run(workload, truth, TIRESIAS if name == "tiresias" else name))


def of_seeds_s(number: int) -> float:
    workload, truth = read_workload(number, ReplayOptions())
    return fmean(mean_completion_s(pollux_run(workload, truth, f"pollux(seed={k})")) for k in range(SEEDS))


def rounding(published: float) -> float:
    """Half of the last digit that was published: some figures have one digit, others all."""
    return 0.05 if round(published, 1) == published else 1e-6


def goldens() -> list[Golden]:
    exact = [
        Golden(STUDY, f"{name}, workload {w}", published, partial(completion_s, name, w), rounding(published))
        for name in ("tiresias", "optimus-oracle")
        for w, published in PUBLISHED[name].items()
    ]
    searched = [
        Golden(
            STUDY, f"pollux, workload {w}", published, partial(of_seeds_s, w), 0.05 * published,
            is_fast=False, note="mean of five seeds of the genetic search",
        )
        for w, published in PUBLISHED["pollux"].items()
    ]  # fmt: skip
    fitted = [
        Golden(
            STUDY, f"optimus with fits of its own, workload {w}", nan, partial(completion_s, "optimus", w),
            is_fast=False, note="losses are the measured validation errors; each job explores as it runs",
        )
        for w in PUBLISHED["optimus-oracle"]
    ]  # fmt: skip
    return [*exact, *fitted, *searched]
