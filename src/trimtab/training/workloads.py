"""Workloads from tables of jobs: what a file leaves out is filled in here, each choice by name."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import polars as pl

from trimtab.domain.training_jobs import Flags, Floats, Ints, Workload
from trimtab.domain.training_profiles import ScalingTable
from trimtab.errors import TraceError
from trimtab.traces.read_jobs import JobTable

WorkFrom = Literal["iterations", "duration"]
Limits = Literal["measured", "rising", "elasticflow"]

ELASTICFLOW_LIMITS = {
    "T4": {
        ("bert", 0): 16,
        ("cifar10", 0): 16,
        ("deepspeech2", 320): 32,
        ("yolov3", 0): 4,
        ("ncf", 0): 1,
    },
    "A100": {
        ("deepspeech2", 32): 32,
        ("deepspeech2", 64): 64,
        ("gpt2", 128): 16,
        ("gpt2", 256): 32,
        ("bert", 64): 8,
        ("bert", 0): 16,
        ("inception3", 64): 16,
        ("inception3", 128): 32,
        ("resnet50", 64): 32,
        ("vgg16", 64): 32,
    },
}
"""Most GPUs of each model and batch (0 = any other) in ElasticFlow's artifact; 64 where not named."""


@dataclass(frozen=True, slots=True)
class WorkloadOptions:
    """How a table of jobs becomes a workload.

    Attributes:
        work_from: "iterations", the column `work`; "duration", the recorded duration at the requested GPUs.
        limits: most GPUs of a job: "measured", all that its curve has; "rising", up to its fastest level;
            "elasticflow", the table of that artifact.
        gpu: the GPU of the table of limits.
    """

    work_from: WorkFrom = "iterations"
    limits: Limits = "measured"
    gpu: str = "T4"


def table_workload(
    table: JobTable, profiles: ScalingTable, models: tuple[str, ...], options: WorkloadOptions
) -> Workload:
    """The workload of jobs whose models have curves. Raises TraceError for a model without one."""
    jobs = table.jobs
    model_idx = _model_idx(table, models)
    batch = jobs["batch"].to_numpy()
    curve = profiles.curves_of(model_idx, batch)
    _refuse_unprofiled(table, curve, profiles)
    gpus = jobs["gpus"].to_numpy()
    rate = profiles.rates(curve, np.zeros_like(curve), gpus)
    _refuse_without_speed(table, rate, profiles, curve)
    duration_s = _floats(jobs, "duration_s", np.nan)
    work = duration_s * rate if options.work_from == "duration" else _floats(jobs, "work", np.nan)
    return workload_of(
        table,
        models,
        model_idx,
        batch=batch,
        gpus_max=_limits(table, profiles, curve, options),
        work=work,
        duration_s=duration_s,
    )


def fixed_workload(table: JobTable) -> tuple[Workload, ScalingTable]:
    """Jobs without profiles: each runs its recorded duration with the GPUs it asked for, and with no others.

    Raises TraceError for a file that records no durations.
    """
    jobs = table.jobs
    if "duration_s" not in jobs:
        raise TraceError(
            "no durations and no profiles",
            file=str(table.path),
            expected="a file with durations, or its models' profiles (--profiles PATH)",
        )
    gpus = jobs["gpus"].to_numpy()
    levels = np.unique(gpus)
    names = tuple(f"with {n} GPUs" for n in levels)
    rates = np.identity(len(levels))[None]
    speeds = ScalingTable(levels, names, rates, np.arange(len(levels))[None], levels.astype(np.float64))
    duration_s = _floats(jobs, "duration_s", np.nan)
    workload = workload_of(
        table,
        ("as recorded",),
        np.zeros(len(jobs), np.int64),
        batch=gpus.astype(np.float64),
        gpus_max=gpus,
        work=duration_s,
        duration_s=duration_s,
        scales=False,
    )
    return workload, speeds


def with_unprofiled(
    table: JobTable, profiles: ScalingTable, models: tuple[str, ...], options: WorkloadOptions
) -> tuple[Workload, ScalingTable, int]:
    """As `table_workload`, but jobs without a curve keep their GPUs and run as recorded; and their number.

    Raises TraceError for such a job without a recorded duration.
    """
    place = {name: i for i, name in enumerate(models)}
    jobs = table.jobs
    model_idx = np.array([place.get(name, -1) for name in jobs["model"].to_list()], np.int64)
    batch = jobs["batch"].to_numpy()
    curve = profiles.curves_of(np.maximum(model_idx, 0), batch)
    asked = profiles.rates(np.maximum(curve, 0), np.zeros_like(curve), jobs["gpus"].to_numpy())
    known = (model_idx >= 0) & (curve >= 0) & (asked > 0)
    if known.all():
        return table_workload(table, profiles, models, options), profiles, 0
    with_curve, fixed = np.flatnonzero(known), np.flatnonzero(~known)
    recorded, own = fixed_workload(replace(table, jobs=jobs[fixed]))
    if not len(with_curve):
        return recorded, own, len(fixed)
    scaling = table_workload(replace(table, jobs=jobs[with_curve]), profiles, models, options)
    back = np.argsort(np.append(with_curve, fixed))

    def both(name: str) -> Any:
        return np.concatenate([getattr(scaling, name), getattr(recorded, name)])[back]

    workload = workload_of(
        table,
        (*models, *recorded.model_names),
        np.where(known, model_idx, len(models)),
        batch=both("batch"),
        gpus_max=both("gpus_max"),
        work=both("work"),
        duration_s=both("duration_s"),
        scales=known,
    )
    return workload, profiles.joined(own), len(fixed)


def workload_of(
    table: JobTable,
    models: tuple[str, ...],
    model_idx: Ints,
    *,
    batch: Floats,
    gpus_max: Ints,
    work: Floats,
    duration_s: Floats,
    scales: Flags | bool = True,
) -> Workload:
    """A workload with the columns of a table and these ones."""
    jobs, n = table.jobs, len(table.jobs)
    may_scale: Flags = np.broadcast_to(scales, n).copy()
    least = np.where(may_scale, 1, jobs["gpus"].to_numpy())
    tenants, tenant_idx = np.unique(_texts(jobs, "tenant"), return_inverse=True)
    every: Flags = np.ones(n, np.bool_)
    return Workload(
        name=str(table.path),
        job_ids=tuple(jobs["job_id"].to_list()),
        model_names=models,
        submit_s=jobs["submit_s"].to_numpy(),
        deadline_s=_floats(jobs, "deadline_s", np.inf),
        model_idx=model_idx,
        gpus_requested=jobs["gpus"].to_numpy(),
        gpus_min=_whole(jobs, "gpus_min", least),
        gpus_max=_whole(jobs, "gpus_max", gpus_max),
        batch=batch,
        work=work,
        declared_work=work.copy(),
        duration_s=duration_s,
        priority=jobs["priority"].to_numpy() if "priority" in jobs else np.zeros(n, np.int64),
        tenant_idx=tenant_idx.astype(np.int64),
        tenant_names=tuple(str(t) for t in tenants),
        preemptible=every,
        scales=may_scale,
    )


def _floats(jobs: pl.DataFrame, name: str, missing: float) -> Floats:
    if name not in jobs:
        return np.full(len(jobs), missing)
    return np.asarray(jobs[name].fill_null(missing).to_numpy(), np.float64)


def _whole(jobs: pl.DataFrame, name: str, missing: Ints) -> Ints:
    return jobs[name].to_numpy() if name in jobs else missing


def _texts(jobs: pl.DataFrame, name: str) -> list[str]:
    return jobs[name].fill_null("").to_list() if name in jobs else [""] * len(jobs)


def _model_idx(table: JobTable, models: tuple[str, ...]) -> Ints:
    names = table.jobs["model"].to_list()
    place = {name: i for i, name in enumerate(models)}
    for row, name in enumerate(names):
        if name not in place:
            raise TraceError(
                "a model without a profile",
                file=str(table.path),
                field=f"job {table.jobs['job_id'][row]}, model",
                value=name,
                expected=f"one of {', '.join(models)}, or a file {name}.csv beside their profiles; "
                "or the rule unprofiled: recorded",
            )
    return np.array([place[name] for name in names], np.int64)


def _refuse_unprofiled(table: JobTable, curve: Ints, profiles: ScalingTable) -> None:
    for row in np.flatnonzero(curve < 0)[:1]:
        model, batch = table.jobs["model"][int(row)], table.jobs["batch"][int(row)]
        raise TraceError(
            "a batch without a profile",
            file=str(table.path),
            field=f"job {table.jobs['job_id'][int(row)]}, batch",
            value=f"{model}, {batch:g}",
            expected=f"one of {', '.join(profiles.curve_names)}; or the rule unprofiled: recorded",
        )


def _refuse_without_speed(table: JobTable, rate: Floats, profiles: ScalingTable, curve: Ints) -> None:
    for row in np.flatnonzero(rate <= 0)[:1]:
        runs = profiles.levels[profiles.rate_per_s[0, curve[row]] > 0]
        raise TraceError(
            "asks for GPUs with which its model does not run",
            file=str(table.path),
            field=f"job {table.jobs['job_id'][int(row)]}, gpus",
            value=int(table.jobs["gpus"][int(row)]),
            expected=f"{runs.min()} to {runs.max()}, as {profiles.curve_names[curve[row]]} was measured; "
            "or the rule unprofiled: recorded",
        )


def _limits(table: JobTable, profiles: ScalingTable, curve: Ints, options: WorkloadOptions) -> Ints:
    levels, rate = profiles.levels, profiles.rate_per_s[0]
    batch = table.jobs["batch"].to_numpy()
    if options.limits == "rising":
        return levels[rate.argmax(axis=1)][curve]
    measured = levels[len(levels) - 1 - (rate > 0)[:, ::-1].argmax(axis=1)][curve]
    if options.limits == "measured":
        return np.minimum(measured, np.maximum(batch, 1)).astype(np.int64)
    known = ELASTICFLOW_LIMITS[options.gpu]
    pairs = zip(table.jobs["model"].to_list(), batch, strict=True)
    return np.array([known.get((m, b), known.get((m, 0), min(int(b), 64))) for m, b in pairs], np.int64)
