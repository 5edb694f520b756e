"""The estimate of real jobs of which some have a range of batches: goodput, from steps and gradient noise.

Jobs of a fixed batch are those of `measured_speed`. A job with a range has a throughput model of its own
(`fitted_speed`), fitted to the mean steps of each configuration that it ran with. Until it has run it is as
fast as declared at its least batch. Work is samples at the least batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from trimtab.domain.allocator import JobNeed
from trimtab.domain.training_jobs import AGENT_BATCH, JOBS, Floats, Ints, Records, configs
from trimtab.training.batch_choice import LIMITS
from trimtab.training.fitted_speed import FittedSpeed
from trimtab.training.levels import never_measured
from trimtab.training.runner.batch_plan import BatchPlan, gain, learning_rate_factor
from trimtab.training.runner.job_list import JobSpec
from trimtab.training.runner.measured_speed import MeasuredSpeed, StepTimes
from trimtab.training.runner.rank_protocol import Report

MOST_NOISE = 1e9  # where no gradient is left under the noise


class AdaptiveSpeed:
    """Estimates of all jobs of a run."""

    def __init__(self, jobs: Sequence[JobSpec]) -> None:
        self.plain = MeasuredSpeed(jobs)
        self._jobs = jobs
        self.adapts = np.array([job.batch_range is not None for job in jobs], np.bool_)
        self._least = np.array([job.least_batch for job in jobs], np.float64)
        self.fitted = FittedSpeed(_limits(jobs))
        self.noise = np.zeros(len(jobs))
        self._seen: dict[tuple[int, int, int, int], StepTimes] = {}  # job, nodes, GPUs, local batch

    def grown(self, jobs: Sequence[JobSpec]) -> AdaptiveSpeed:
        """This estimate, with further jobs at the end."""
        made = AdaptiveSpeed(jobs)
        made.plain.learn(self.plain)
        made.noise[: len(self.noise)] = self.noise
        for (job, *key), times in self._seen.items():
            nodes, gpus, local_batch = key
            made._seen[job, nodes, gpus, local_batch] = times
            noise = float(self.noise[job])
            made.fitted.revise(job, 0, (nodes, gpus, local_batch), (times.step_s, times.sync_s), noise)
        return made

    @property
    def levels(self) -> Ints:
        """Every number of GPUs that a job may have."""
        return self.plain.levels

    @property
    def provides(self) -> frozenset[JobNeed]:
        """Scaling, work left and deadlines; goodput where a job has a range of batches."""
        return self.plain.provides | ({JobNeed.GOODPUT} if self.adapts.any() else frozenset())

    @property
    def fit_error_frac(self) -> float:
        """Mean of |predicted ÷ measured − 1| over configurations that ran; nan = none was predicted."""
        errors = [*self.plain.errors, *(t.error_frac for t in self._seen.values())]
        known = [error for error in errors if not math.isnan(error)]
        return float(np.mean(known)) if known else math.nan

    def report(self, job: int, nodes: int, gpus: int, plan: BatchPlan, told: Report) -> None:
        """A job did steps, and may have measured the noise of its gradient."""
        sync_s = 0.0 if math.isnan(told.sync_s) else told.sync_s
        if not self.adapts[job]:
            self.plain.report(job, nodes, gpus, told.step_s, sync_s)
            return
        if not (math.isnan(told.grad_sqr) or math.isnan(told.grad_var)):
            var = told.grad_var * plan.batch / self._least[job]  # at the least batch
            self.noise[job] = min(var / told.grad_sqr, MOST_NOISE) if told.grad_sqr > 0 else MOST_NOISE
        pass_s = (told.step_s - sync_s) / (plan.accumulation + 1)  # the last one overlaps with the sum
        step_s = told.step_s - plan.accumulation * pass_s
        key = nodes, gpus, plan.local_batch
        if (job, *key) not in self._seen:
            predicted = self.fitted.step_s(job, *key) if self.fitted.has_run(job) else math.nan
            self._seen[job, *key] = StepTimes(predicted)
        times = self._seen[job, *key]
        times.add(step_s, sync_s)
        self.fitted.revise(job, 0, key, (times.step_s, times.sync_s), float(self.noise[job]))

    def is_known(self, job: int) -> bool:
        """Whether anything was declared of a job's speed, or it was measured."""
        return self.plain.is_known(job) or self.fitted.has_run(job)

    def goodput(self, jobs: Records, ways: Records) -> Floats:
        """Work per second."""
        rates = self.plain.goodput(jobs, ways)
        learned = self._learned(jobs)
        if not learned.any():
            return rates
        fitted = self.fitted.goodput(jobs, ways) * self._least[jobs["job_idx"]]
        return np.where(learned, fitted, rates)

    def batch(self, jobs: Records, ways: Records) -> tuple[Floats, Ints]:
        """Local batch and accumulation: equal parts of a fixed batch, else what is best."""
        local, passes = self.plain.batch(jobs, ways)
        learned = self._learned(jobs)
        if not learned.any():
            return local, passes
        best, accumulation = self.fitted.batch(jobs, ways)
        return np.where(learned, best, local), np.where(learned, accumulation, passes)

    def _learned(self, jobs: Records) -> Ints:
        has_run = np.array([self.fitted.has_run(k) for k in range(len(self._jobs))], np.bool_)
        return (self.adapts & has_run)[jobs["job_idx"]]

    def shared(self, jobs: Records, partners: Records, ways: Records) -> tuple[Floats, Floats]:
        """Never measured."""
        return never_measured(jobs, partners, ways)

    def nodes_seen(self, job: int, gpus: int) -> int:
        """Over how many nodes so many GPUs were spread when they ran; 0 = they never did."""
        if not self.adapts[job]:
            return self.plain.nodes_seen(job, gpus)
        return min((nodes for k, nodes, n, _ in self._seen if (k, n) == (job, gpus)), default=0)

    def work_per_s(self, job: int, nodes: int, gpus: int, plan: BatchPlan | None = None) -> float:
        """The estimate for one job, with the best batch or with that of a plan."""
        one = np.zeros(1, JOBS)
        one["job_idx"] = job
        way = configs(gpus, nodes=nodes, local_batch=AGENT_BATCH if plan is None else plan.local_batch)
        way["accumulation"] = 0 if plan is None else plan.accumulation
        return float(self.goodput(one, np.atleast_1d(way))[0])

    def plan(self, job: int, nodes: int, gpus: int, samples: int, work: float) -> BatchPlan:
        """The best batch with these GPUs, for a job that is so far."""
        spec = self._jobs[job]
        least = spec.least_batch
        if spec.batch_range is None or not self.fitted.has_run(job):
            share = -(-least // gpus)
            passes = -(-share // int(self.fitted.limits["max_local"][job, 0])) - 1
            return BatchPlan(least, -(-share // (passes + 1)), passes, samples, work)
        local, passes = self.fitted.choose(job, 0, nodes, gpus)
        batch = min(max(local * (passes + 1) * gpus, least), spec.batch_range.max)
        noise, scale = float(self.noise[job]), batch / least
        factor = learning_rate_factor(spec.batch_range.learning_rate, noise, scale)
        return BatchPlan(batch, local, passes, samples, work, gain(noise, scale) / scale, factor)


def _limits(jobs: Sequence[JobSpec]) -> Records:
    limits = np.zeros((len(jobs), 1), LIMITS)
    for row, job in zip(limits[:, 0], jobs, strict=True):
        bounds = job.batch_range
        most = job.least_batch if bounds is None else bounds.max
        row["init_batch"], row["max_batch"] = job.least_batch, most
        row["min_local"] = 1
        row["max_local"] = most if bounds is None else bounds.local_max or most
    return limits
