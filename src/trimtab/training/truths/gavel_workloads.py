"""Workloads from job lists of Gavel's format, and the truth about them.

Published schedules of batches give the time that a job takes alone. What the jobs of the simulator follow
differs from them: mode "accordion" has critical epochs of its own (`is_critical`), and mode "gns" looks one
epoch ahead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from trimtab.domain.service_loads import PairSpeeds, busy_of_measured
from trimtab.domain.training_jobs import Floats, Ints, Workload
from trimtab.traces.gavel_jobs import GavelJob, Key, PairRates
from trimtab.training.truths.stepped_truth import SteppedJob, SteppedTruth, StepRates


def with_pairs(rates: StepRates, measured: Sequence[PairRates]) -> StepRates:
    """Rates with the speeds of pairs of each type. Pairs that were not measured follow the formula."""
    kinds = sorted({key[:2] for table in rates.by_type for key in table})
    index = {kind: i for i, kind in enumerate(kinds)}
    return replace(rates, pairs=pair_speeds(kinds, rates.by_type, measured), kinds=index)


def pair_speeds(
    kinds: Sequence[tuple[str, int]], alone: Sequence[Mapping[Key, float]], measured: Sequence[PairRates]
) -> PairSpeeds:
    """Pairs of kinds (model, batch), by type: what each keeps of its speed alone."""
    index = {kind: i for i, kind in enumerate(kinds)}
    levels = sorted({own[2] for table in measured for own, _ in table}) or [1]
    kept = np.full((len(measured), len(levels), len(kinds), len(kinds)), np.nan)
    for t, table in enumerate(measured):
        for (own, other), rate in table.items():
            if own[2] == other[2] and alone[t].get(own, 0.0) > 0:
                at = levels.index(own[2])
                kept[t, at, index[own[:2]], index[other[:2]]] = min(rate / alone[t][own], 1.0)
    busy = busy_of_measured(kept[0, 0])
    return PairSpeeds(busy, np.array(levels, np.int64), kept)


def gavel_profile(kinds: Sequence[tuple[str, int]], alone: Mapping[Key, float]) -> Floats:
    """What is known of kinds (model, batch) alone: logarithms of speed and batch, [kinds, 2]."""
    rows = [(math.log(max(alone.get((*kind, 1), 0.0), 1e-9)), math.log(max(kind[1], 1))) for kind in kinds]
    return np.array(rows)


LARGEST_BATCH: Final = {"LM": 80, "ResNet-18": 256, "ResNet-50": 128, "Recommendation": 8192}
OVERRUN: Final = 1.5  # a job ends after so many times the seconds that its schedule takes


def gavel_workload(
    name: str,
    jobs: Sequence[GavelJob],
    schedules: Mapping[int, Ints],
    patterns: Mapping[tuple[str, int], Ints],
    rates: StepRates,
    type_share: Sequence[float] = (1.0,),
) -> tuple[Workload, SteppedTruth]:
    """The workload of a list, sorted by arrival, and its truth. Jobs without a schedule keep their batch.

    `type_share`: share of each type of GPU in the cluster.

    Jobs whose batch follows the noise take it from `patterns`, which go on behind the end of a schedule.
    """
    order = sorted(range(len(jobs)), key=lambda i: jobs[i].arrival_s)
    listed = [jobs[i] for i in order]
    plans = [schedules.get(i, np.array([jobs[i].batch])) for i in order]
    stepped = [_stepped(job, plan, rates) for job, plan in zip(listed, plans, strict=True)]
    models = tuple(sorted({job.model for job in listed}))
    n = len(jobs)
    gpus = np.array([job.gpus for job in listed], np.int64)
    steps = np.array([job.steps for job in listed], np.float64)
    workload = Workload(
        name=name,
        job_ids=tuple(f"{i}" for i in order),
        model_names=models,
        submit_s=np.array([job.arrival_s for job in listed]),
        deadline_s=np.full(n, np.inf),
        model_idx=np.array([models.index(job.model) for job in listed], np.int64),
        gpus_requested=gpus,
        gpus_min=gpus,
        gpus_max=gpus,
        batch=np.array([job.batch for job in listed], np.float64),
        work=steps,
        declared_work=steps.copy(),
        duration_s=schedule_s(stepped, gpus, rates, type_share),
        priority=np.ones(n, np.int64),
        tenant_idx=np.zeros(n, np.int64),
        tenant_names=("",),
        preemptible=np.ones(n, np.bool_),
        scales=np.zeros(n, np.bool_),
        columns={"weight": np.array([job.priority for job in listed])},
    )
    followed = [
        replace(made, batch_by_epoch=_followed(job, made, patterns), profile=made.batch_by_epoch)
        for job, made in zip(listed, stepped, strict=True)
    ]
    return workload, SteppedTruth(rates, followed)


def is_critical(model: str, batch: int, epoch: int) -> bool:
    """Whether a job of mode "accordion" trains at its first batch in this epoch, else at the largest."""
    if model == "LM":
        return epoch < 10
    if model == "Recommendation":
        return epoch < {512: 30, 1024: 30, 2048: 40}.get(batch, 10)
    if model == "ResNet-50":
        return epoch % 30 < 10
    if model == "ResNet-18":
        head = 20 if batch == LARGEST_BATCH[model] else 10
        return epoch < head or 150 <= epoch < 160 or 250 <= epoch < 260
    return True


def _followed(job: GavelJob, made: SteppedJob, patterns: Mapping[tuple[str, int], Ints]) -> Ints:
    """The batch by epoch that the simulator's jobs follow."""
    if job.mode == "gns":
        return patterns.get((job.job_type, job.gpus), made.batch_by_epoch)
    if job.mode != "accordion" or job.model not in LARGEST_BATCH:
        return made.batch_by_epoch
    critical = [is_critical(job.model, job.batch, epoch) for epoch in range(len(made.batch_by_epoch) + 1)]
    return np.where(critical, job.batch, LARGEST_BATCH[job.model])


def schedule_s(
    jobs: Sequence[SteppedJob], gpus: Ints, rates: StepRates, type_share: Sequence[float] = (1.0,)
) -> Floats:
    """Seconds that each job takes alone: the harmonic mean over types of GPU, by their shares of the cluster.

    So a ratio to it is the mean of the ratios to each type (Sia, SOSP 2023, §5.5).
    """
    each_s = np.array(
        [
            [_alone_s(job, int(g), rates, t) for t in range(len(type_share))]
            for job, g in zip(jobs, gpus, strict=True)
        ]
    )
    with np.errstate(divide="ignore"):
        return np.asarray(1.0 / (np.asarray(type_share) / each_s).sum(axis=1), np.float64)


def _alone_s(job: SteppedJob, gpus: int, rates: StepRates, type_idx: int) -> float:
    """Seconds on one type; inf where a batch has no speed."""
    batches, epochs = np.unique(job.batch_by_epoch, return_counts=True)
    table = rates.by_type[type_idx]
    per_s = [table.get((job.model, int(b), gpus), 0.0) for b in batches]
    if min(per_s) <= 0:
        return math.inf
    if job.model not in rates.samples:
        return job.steps / per_s[0]
    samples = rates.samples[job.model]
    return sum(float(n * samples / max(b, 1) / r) for b, n, r in zip(batches, epochs, per_s, strict=True))


def _stepped(job: GavelJob, plan: Ints, rates: StepRates) -> SteppedJob:
    epochs = -(-job.steps // rates.steps_of_epoch(job.model, job.batch))
    full = plan if len(plan) > 1 else np.full(epochs, job.batch)
    made = SteppedJob(job.model, full, job.mode == "gns", job.steps, np.inf)
    alone_s = [_alone_s(made, job.gpus, rates, t) for t in range(len(rates.by_type))]
    slowest_s = max((s for s in alone_s if s < math.inf), default=math.inf)
    overrun_s = float(int(OVERRUN * slowest_s)) if slowest_s < math.inf else math.inf
    return SteppedJob(made.model, made.batch_by_epoch, made.doubles, made.steps, overrun_s)
