"""Workloads of applications with profiles: who asks for which GPUs and batch, and when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from trimtab.domain.training_jobs import JOBS, Floats, Ints, Workload, configs
from trimtab.domain.training_profiles import ApplicationProfile
from trimtab.errors import TraceError
from trimtab.traces.read_jobs import JobTable
from trimtab.training.batch_choice import GradientNoise
from trimtab.training.truths.replay_oracle import ReplayOracle
from trimtab.training.truths.replay_truth import limits_of
from trimtab.training.truths.step_times import StepTimes
from trimtab.training.workloads import workload_of


def table_replay_workload(
    table: JobTable, profiles: Sequence[ApplicationProfile], type_share: Sequence[float] = (1.0,)
) -> Workload:
    """The workload of a file of jobs whose models all have profiles.

    Each job's recorded duration is the time that it takes alone with the GPUs and batch that it asked for.
    `type_share`: share of each type of GPU in the cluster.
    """
    jobs, names = table.jobs, [profile.name for profile in profiles]
    app = np.array([names.index(name) for name in jobs["model"].to_list()], np.int64)
    batch = np.nan_to_num(jobs["batch"].to_numpy()) if "batch" in jobs else np.zeros(len(jobs))
    gpus = jobs["gpus"].to_numpy()
    most = np.array([profile.max_batch for profile in profiles])[app]
    for row in np.flatnonzero(batch > most)[:1]:
        raise TraceError(
            "a batch beyond the measured ones",
            file=str(table.path),
            field=f"job {jobs['job_id'][int(row)]}, batch",
            value=float(batch[row]),
            expected=f"at most {most[row]:g}, as {names[app[row]]} was measured; 0 = adapted",
        )
    made = workload_of(
        table,
        tuple(names),
        app,
        batch=batch,
        gpus_max=np.maximum(np.array([_most_gpus(p) for p in profiles], np.int64)[app], gpus),
        work=np.full(len(jobs), np.nan),
        duration_s=alone_seconds(profiles, app, batch, gpus, type_share),
    )
    return replace(made, declared_work=np.array([p.progress[-1] for p in profiles])[app])


def alone_seconds(
    profiles: Sequence[ApplicationProfile],
    app: Ints,
    batch: Floats,
    gpus: Ints,
    type_share: Sequence[float],
) -> Floats:
    """Seconds that jobs take alone, GPUs packed, at one batch to the end; nan = they can't run so.

    Over several types of GPU the harmonic mean, by their shares of the cluster, as in `schedule_s`.
    """
    limits = limits_of([profiles[a] for a in app], batch, len(profiles[0].steps))
    steps = [[StepTimes(measured) for measured in profile.steps] for profile in profiles]
    oracle = ReplayOracle(profiles, steps, app, limits, is_artifact=False)
    jobs = np.zeros(len(app), JOBS)
    jobs["job_idx"] = np.arange(len(app))
    width = np.array([profile.node_gpus for profile in profiles])[app]
    types = np.arange(len(type_share))
    packed = configs(gpus[:, None], nodes=-(-gpus // width)[:, None], type_idx=types)
    per_s = (oracle.goodput(jobs[:, None], packed) * np.asarray(type_share)).sum(axis=1)
    noise = [GradientNoise(profile) for profile in profiles]
    begun = np.array([profiles[a].init_batch for a in app])
    iterations = [
        noise[a].at(float(b)).iterations[-1] for a, b in zip(app, np.where(batch, batch, begun), strict=True)
    ]
    with np.errstate(divide="ignore"):
        return np.where(per_s > 0, np.array(iterations) / per_s, np.nan)


def _most_gpus(profile: ApplicationProfile) -> int:
    return int(min(profile.gpus_max, profile.max_batch // profile.min_local.min()))


def replay_workload(
    name: str,
    profiles: Sequence[ApplicationProfile],
    job_ids: Sequence[str],
    submit_s: Floats,
    applications: Sequence[str],
    gpus: Ints,
    batch: Floats,
) -> Workload:
    """The workload of these columns, sorted by submission. Raises TraceError for an unknown application."""
    n, order = len(job_ids), np.argsort(submit_s, kind="stable")
    names = tuple(profile.name for profile in profiles)
    for row, application in enumerate(applications):
        if application not in names:
            raise TraceError(
                "an application without a profile",
                file=name,
                field=f"job {job_ids[row]}",
                value=application,
                expected=f"one of {', '.join(names)}",
            )
    model = np.array([names.index(application) for application in applications], np.int64)[order]
    gpus = np.asarray(gpus, np.int64)[order]
    most = [_most_gpus(profile) for profile in profiles]
    unknown = np.full(n, np.nan)
    return Workload(
        name=name,
        job_ids=tuple(job_ids[i] for i in order),
        model_names=names,
        submit_s=np.asarray(submit_s, np.float64)[order],
        deadline_s=np.full(n, np.inf),
        model_idx=model,
        gpus_requested=gpus,
        gpus_min=np.ones(n, np.int64),
        gpus_max=np.maximum(np.array(most, np.int64)[model], gpus),
        batch=np.asarray(batch, np.float64)[order],
        work=unknown,
        declared_work=np.array([profile.progress[-1] for profile in profiles])[model],
        duration_s=unknown.copy(),
        priority=np.zeros(n, np.int64),
        tenant_idx=np.zeros(n, np.int64),
        tenant_names=("",),
        preemptible=np.ones(n, np.bool_),
        scales=np.ones(n, np.bool_),
    )
