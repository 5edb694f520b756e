"""Table 3 of Sia (SOSP 2023): mean completion on 64 GPUs of three types, workloads drawn from Philly."""

from __future__ import annotations

from functools import cache, partial

import numpy as np

from bench.golden.cases import DATA, Golden
from bench.golden.pollux import replay_file
from trimtab.domain.training_jobs import Workload, gpu_nodes
from trimtab.traces.application_profiles import SIA_LIMITS, SIA_RESTART_S, read_applications
from trimtab.training.job_records import JobRecords
from trimtab.training.restart_costs import PerModelRestart
from trimtab.training.training_loop import run_allocator
from trimtab.training.truths.replay_truth import ReplayOptions, ReplayTruth

STUDY = "Sia Table 3, heterogeneous 64 GPUs, Philly, mean completion in hours"
TYPES = ("dgx-ext", "rtx", "aws")  # the slowest last: a job on several runs as on that one
NODES = gpu_nodes([0] * 2 + [1] * 3 + [2] * 6, [8] * 5 + [4] * 6)  # A100, RTX 2080 Ti, T4
GAVEL, GAVEL_CLOCK = "max-sum-throughput(round_s=360,variant=sia)", "rounds(period_s=360)"
FILES = (1, 2, 3, 4)


@cache
def truth() -> ReplayTruth:
    profiles = read_applications(DATA / "sia_profiles", TYPES, SIA_LIMITS, tuple(SIA_RESTART_S))
    return ReplayTruth(profiles, ReplayOptions(profiled="one-gpu"))


def workload(number: int, folder: str) -> Workload:
    file = DATA / "sia_workloads" / folder / f"workload-{number}.csv"
    made = replay_file(file, truth().profiles)
    made.columns["restart_s"] = [SIA_RESTART_S[name] for name in made.model_names]
    return made


def sia_run(spec: str, number: int, folder: str = "philly") -> JobRecords:
    return run_allocator(
        spec,
        workload(number, folder),
        nodes=NODES,
        type_names=TYPES,
        truth=truth(),
        clock=GAVEL_CLOCK if spec == GAVEL else "",
        restart=PerModelRestart(),
    )


@cache
def mean_hours(spec: str) -> float:
    runs = [sia_run(spec, number) for number in FILES]
    return float(np.mean([(r.finish_s - r.workload.submit_s).mean() for r in runs])) / 3600.0


def sia_over(spec: str) -> float:
    return mean_hours("sia") / mean_hours(spec)


def goldens() -> list[Golden]:
    where = "one digit is published; mean of four files; 6 nodes of 4 T4, 3 of 8 RTX 2080 Ti, 2 of 8 A100"
    return [
        Golden(STUDY, "sia", 0.6, partial(mean_hours, "sia"), 0.05, is_fast=False, note=where),
        Golden(
            STUDY,
            "sia over pollux",
            0.6,
            partial(sia_over, "pollux"),
            0.06,
            is_fast=False,
            is_missed=True,
            note="published are 0.6 h and 1.0 h, so a ratio from 0.52 to 0.68; jobs on several types run as "
            "on the slowest of them",
        ),
        Golden(
            STUDY,
            "sia over gavel",
            0.316,
            partial(sia_over, GAVEL),
            0.034,
            is_fast=False,
            note="maximum sum of throughputs, rounds of 360 s, each job with the GPUs and batch of its file; "
            "one queue of all types and shares at each decision, as in that simulator; estimates scale from "
            "one-GPU profiles and count goodput, where the source has measured steps",
        ),
    ]
