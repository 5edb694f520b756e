"""HyperSched on measured validation curves: the trials of one application, one for each measured batch.

Nothing is published for these curves. The best accuracy of a trial at the deadline stands for each rule.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial

import numpy as np

from bench.golden.cases import Golden
from bench.golden.pollux import PROFILES
from trimtab.domain.training_jobs import gpu_nodes
from trimtab.traces.application_profiles import read_applications
from trimtab.training.batch_choice import GradientNoise
from trimtab.training.training_loop import run_allocator
from trimtab.training.truths.replay_truth import ReplayTruth
from trimtab.training.truths.replay_workloads import alone_seconds, replay_workload

STUDY = "HyperSched, trials of {} on 8 T4, best accuracy at the deadline"
PARTS = (0.125, 0.25)  # of the seconds that the median trial takes alone on one GPU
WAYS = {
    "fifo": "each trial on one GPU to the end",
    "hypersched(metric=accuracy,stops=true)": "the GPUs that are left to the best trial",
    "hypersched(metric=accuracy,stops=true,rest=uniform)": "in turns from the best trial on",
    "hypersched(metric=accuracy,stops=true,rest=softmax)": "by the softmax of the accuracies",
    "hypersched(metric=accuracy,stops=true,rest=random)": "at random",
    "hypersched(metric=accuracy)": "to the best trial; none is stopped",
}


@cache
def best_accuracy(application: str, spec: str, part: float) -> float:
    profiles = read_applications(PROFILES, names=[application])
    batches = profiles[0].batches
    n = len(batches)
    one = np.ones(n, np.int64)
    workload = replay_workload(
        application, profiles, [f"batch-{b:g}" for b in batches], np.zeros(n), [application] * n, one, batches
    )
    whole_s = float(np.median(alone_seconds(profiles, one * 0, batches, one, (1.0,))))
    workload = replace(workload, deadline_s=np.full(n, part * whole_s))
    truth = ReplayTruth(profiles)
    run_allocator(
        spec,
        workload,
        nodes=gpu_nodes(0, [4, 4]),
        type_names=("t4",),
        truth=truth,
        clock="rounds(period_s=60)",
        restart="flat(seconds_s=30)",
        horizon_s=part * whole_s,
    )
    progress = profiles[0].progress[-1] - truth.work_left(np.arange(n))
    epochs = (profiles[0].progress <= progress[:, None] + 1e-6).sum(axis=1)
    noise = GradientNoise(profiles[0])
    losses = [noise.at(float(b)).loss[e - 1] if e else 1.0 for b, e in zip(batches, epochs, strict=True)]
    return 1.0 - float(min(losses))


def goldens() -> list[Golden]:
    return [
        Golden(
            STUDY.format(application), f"{spec}, {part:g} of a trial", np.nan,
            partial(best_accuracy, application, spec, part), is_fast=False, note=note,
        )
        for application in ("cifar10", "imagenet", "yolov3")
        for part in PARTS
        for spec, note in WAYS.items()
    ]  # fmt: skip
