"""The estimate of real jobs: samples per second as reported, and by a throughput model where nothing was.

Jobs of one model and batch share what they report. A configuration that ran is as fast as its mean report.
Another one is as fast as declared, times the mean ratio of measured to declared speeds; where fewer than two
speeds are declared, by the model of step times that is fitted to all that ran (`throughput_model`). Declared
speeds are linear between two numbers of GPUs, and beyond the last. Without any a job that never ran does a
step a second, and scales perfectly.

What was predicted for a configuration before it ran is compared with what it then did: the error of the fit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from trimtab.domain.allocator import JobNeed
from trimtab.domain.training_jobs import Floats, Ints, Records
from trimtab.training.levels import equal_parts, never_measured
from trimtab.training.runner.job_list import JobSpec
from trimtab.training.throughput_model import LEAST, fit_throughput, step_seconds

Layout = tuple[int, int]  # nodes, GPUs
NEWEST: Final = 0.2  # least weight of a new report in the mean: what is long past fades

_PROVIDED = frozenset({JobNeed.SCALING, JobNeed.WORK_LEFT, JobNeed.DEADLINES})


@dataclass
class StepTimes:
    """Mean seconds of one configuration."""

    predicted_s: float  # of a step, before it ran; nan = nothing was known
    step_s: float = 0.0
    sync_s: float = 0.0
    reports: int = 0

    def add(self, step_s: float, sync_s: float) -> None:
        """A report."""
        self.reports += 1
        weight = max(1.0 / self.reports, NEWEST)
        self.step_s += weight * (step_s - self.step_s)
        self.sync_s += weight * (sync_s - self.sync_s)

    @property
    def error_frac(self) -> float:
        """|Predicted ÷ measured − 1|; nan = nothing was predicted."""
        return abs(self.step_s / self.predicted_s - 1.0)


@dataclass
class _Curve:
    """The measurements of one model and batch."""

    batch: float
    declared: dict[int, float]  # GPUs → samples per second
    seen: dict[Layout, StepTimes] = field(default_factory=dict)
    fitted: Floats | None = None  # parameters of the model; None = to be fitted

    def samples_per_s(self, nodes: int, gpus: int) -> float:
        """By what ran, else by the declared speeds times how far off they were, else by the fit."""
        if (times := self.seen.get((nodes, gpus))) is not None:
            return self.batch / times.step_s
        if self.seen and len(self.declared) > 1:
            ratios = [self.batch / t.step_s / self._declared_rate(n) for (_, n), t in self.seen.items()]
            return self._declared_rate(gpus) * float(np.mean(ratios))
        if self.seen:
            return self._fitted_rate(nodes, gpus)
        return self._declared_rate(gpus)

    def _declared_rate(self, gpus: int) -> float:
        if not self.declared:
            return self.batch * gpus
        counts = sorted(self.declared)
        rates = [self.declared[n] for n in counts]
        if gpus <= counts[0]:
            return rates[0] * gpus / counts[0]
        if gpus >= counts[-1] and len(counts) > 1:
            slope = (rates[-1] - rates[-2]) / (counts[-1] - counts[-2])
            return max(rates[-1] + slope * (gpus - counts[-1]), LEAST)
        if gpus >= counts[-1]:
            return rates[-1] * gpus / counts[-1]
        return float(np.interp(gpus, counts, rates))

    def _fitted_rate(self, nodes: int, gpus: int) -> float:
        if self.fitted is None:
            rows = np.array([(*layout, t.step_s, t.sync_s) for layout, t in self.seen.items()], np.float64)
            step_s = rows[:, 2]
            grad_s = np.maximum(step_s - rows[:, 3], 0.01 * step_s)
            self.fitted = fit_throughput(rows[:, 0], rows[:, 1], self.batch / rows[:, 1], grad_s, step_s)
        return self.batch / step_seconds(self.fitted, nodes, gpus, self.batch / gpus)


class MeasuredSpeed:
    """Estimates of all jobs of a run."""

    def __init__(self, jobs: Sequence[JobSpec]) -> None:
        curves: dict[tuple[str, int], _Curve] = {}
        for job in jobs:
            known = curves.setdefault((job.model_name, job.least_batch), _Curve(job.least_batch, {}))
            known.declared.update(job.samples_per_s)
        self._levels = np.arange(1, max((job.limits[1] for job in jobs), default=0) + 1)
        self._curves = curves
        self._of_job = [curves[job.model_name, job.least_batch] for job in jobs]

    def learn(self, other: MeasuredSpeed) -> None:
        """Take over what another estimate was told, of jobs that are among these."""
        for key, curve in other._curves.items():
            self._curves[key].seen = curve.seen

    @property
    def levels(self) -> Ints:
        """Every number of GPUs that a job may have."""
        return self._levels

    @property
    def provides(self) -> frozenset[JobNeed]:
        """Scaling, work left and deadlines."""
        return _PROVIDED

    @property
    def errors(self) -> list[float]:
        """Errors of what was predicted for each configuration that ran; nan = nothing was."""
        return [times.error_frac for curve in self._curves.values() for times in curve.seen.values()]

    def report(self, job: int, nodes: int, gpus: int, step_s: float, sync_s: float) -> None:
        """A job did steps."""
        curve = self._of_job[job]
        if (nodes, gpus) not in curve.seen:
            is_known = curve.seen or curve.declared
            predicted_s = curve.batch / curve.samples_per_s(nodes, gpus) if is_known else math.nan
            curve.seen[nodes, gpus] = StepTimes(predicted_s)
        curve.seen[nodes, gpus].add(step_s, sync_s)
        curve.fitted = None

    def is_known(self, job: int) -> bool:
        """Whether anything was declared of a job's speed, or it was measured."""
        return bool(self._of_job[job].declared or self._of_job[job].seen)

    def samples_per_s(self, job: int, nodes: int, gpus: int) -> float:
        """The estimate for one job."""
        return self._of_job[job].samples_per_s(nodes, gpus)

    def nodes_seen(self, job: int, gpus: int) -> int:
        """Over how many nodes so many GPUs were spread when they ran; 0 = they never did."""
        return min((nodes for nodes, n in self._of_job[job].seen if n == gpus), default=0)

    def goodput(self, jobs: Records, configs: Records) -> Floats:
        """Samples per second."""
        job, nodes, gpus = np.broadcast_arrays(jobs["job_idx"], configs["nodes"], configs["gpus"])
        known: dict[tuple[int, int, int], float] = {}
        rates = np.zeros(job.shape)
        for at in np.ndindex(job.shape):
            key = int(job[at]), int(nodes[at]), int(gpus[at])
            if key[2] > 0:
                if key not in known:
                    known[key] = self.samples_per_s(*key)
                rates[at] = known[key]
        return rates

    def batch(self, jobs: Records, configs: Records) -> tuple[Floats, Ints]:
        """The job's batch in equal parts."""
        return equal_parts(jobs, configs)

    def shared(self, jobs: Records, partners: Records, configs: Records) -> tuple[Floats, Floats]:
        """Never measured."""
        return never_measured(jobs, partners, configs)
