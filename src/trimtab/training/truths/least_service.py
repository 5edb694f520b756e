"""The least seconds of each job, and its least GPU seconds on each type of GPU, for lower bounds.

No schedule of any allocator needs less.

For replayed jobs: a step lasts at least (passes + 1) times its computation, and a sample never brings more
progress than at the initial batch. So a GPU makes at most local batch over computation seconds, relative to
the initial batch; between measurements, which are joined linearly, that ratio is no higher than at one of
them. Times to the ends of epochs that are rounded may undercut this by half a second each.
For stepped jobs: all samples at the fastest measured batch. A change of batch may spare the rest of an epoch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trimtab.domain.training_jobs import Floats, Workload
from trimtab.domain.training_profiles import ApplicationProfile, ScalingTable, StepMeasurements
from trimtab.training.batch_choice import GradientNoise
from trimtab.training.truths.step_times import on_curve
from trimtab.training.truths.stepped_truth import SteppedJob, StepRates


def least_of_table(workload: Workload, table: ScalingTable) -> tuple[Floats, Floats]:
    """Of jobs of a table, over all counts that each may have."""
    curve = table.curves_of(workload.model_idx, workload.batch)
    rate = table.rate_per_s[:, curve].swapaxes(0, 1)  # [jobs, types, levels]
    low = np.where(workload.scales, workload.gpus_min, workload.gpus_requested)
    high = np.where(workload.scales, workload.gpus_max, workload.gpus_requested)
    may = (table.levels >= low[:, None]) & (table.levels <= high[:, None])
    with np.errstate(divide="ignore"):
        run_s = np.where(may[:, None] & (rate > 0), workload.work[:, None, None] / rate, np.inf)
    return run_s.min(axis=(1, 2)), (run_s * table.levels).min(axis=2)


def least_of_replayed(workload: Workload, profiles: Sequence[ApplicationProfile]) -> tuple[Floats, Floats]:
    """Of jobs that replay measurements."""
    of_app = np.array([_least_of(profile) for profile in profiles])  # [applications, 1 + types]
    place = {profile.name: i for i, profile in enumerate(profiles)}
    app = np.array([place[workload.model_names[m]] for m in workload.model_idx], np.int64)
    alone_s, gpu_s = of_app[app, 0], of_app[app, 1:]
    return np.maximum(alone_s, gpu_s.min(axis=1) / workload.gpus_max), gpu_s


def _least_of(profile: ApplicationProfile) -> list[float]:
    """Seconds with any number of GPUs, then GPU seconds on each type."""
    points = [_corners(profile, t, steps) for t, steps in enumerate(profile.steps)]
    step_s = min(float(rows[:, 1].min()) for rows in points)
    per_gpu = [float((rows[:, 0] / (rows[:, 1] - rows[:, 2])).max()) / profile.init_batch for rows in points]
    done = np.diff(profile.progress, prepend=0.0)
    fewest = done / GradientNoise(profile).at(profile.max_batch).gain
    return [float(fewest.sum() * step_s), *(float(profile.progress[-1] / speed) for speed in per_gpu)]


def _corners(profile: ApplicationProfile, type_idx: int, steps: StepMeasurements) -> Floats:
    """Local batch, step and synchronisation seconds: all measured, and where curves end, [rows, 3]."""
    ends = np.array([profile.min_local[type_idx], profile.max_local[type_idx]])
    rows = [np.column_stack([steps.scaled[:, 2], steps.scaled_times])]
    for batches, times in steps.placements.values():
        rows.append(np.column_stack([batches, times]))
        rows.append(np.column_stack([ends, [on_curve(batches, times, b) for b in ends]]))
    found = np.concatenate(rows)
    within = (found[:, 0] >= ends[0]) & (found[:, 0] <= ends[1]) & (found[:, 1] > found[:, 2])
    corners: Floats = found[within]
    return corners


def least_of_stepped(
    workload: Workload, rates: StepRates, jobs: Sequence[SteppedJob]
) -> tuple[Floats, Floats]:
    """Of jobs that run whole steps."""
    run_s = np.array(
        [
            [_stepped_s(job, int(g), rates, t) for t in range(len(rates.by_type))]
            for job, g in zip(jobs, workload.gpus_requested, strict=True)
        ]
    )
    return run_s.min(axis=1), run_s * workload.gpus_requested[:, None]


def _stepped_s(job: SteppedJob, gpus: int, rates: StepRates, type_idx: int) -> float:
    first = max(int(job.batch_by_epoch[0]), 1)
    changes = int(np.count_nonzero(np.diff(job.batch_by_epoch)))
    spared = (changes + 1) * rates.samples.get(job.model, 0) if changes else 0
    per_s = [
        max(batch, 1) * rate
        for (model, batch, n), rate in rates.by_type[type_idx].items()
        if model == job.model and n == gpus and (changes or batch == job.batch_by_epoch[0])
    ]
    fastest = max(per_s, default=0.0)
    return max(job.steps * first - spared, 0) / fastest if fastest > 0 else np.inf
