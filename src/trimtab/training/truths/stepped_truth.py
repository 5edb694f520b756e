"""Jobs that run whole steps in rounds and change their batch as they train, as in Gavel's simulator.

A round gives a job the whole steps that fit into the period, at the speed of its present batch. A job that
did not run in the round before loses `overhead_s` of it. A job has so many epochs; its batch by epoch is a
schedule. At the end of a round in which its schedule asks for another batch, the change is noted, and it
takes place at the end of the next round in which the job runs; epochs done and epochs left stay as they were.

Source: the simulator of Zheng et al., Shockwave, NSDI 2023, which builds on that of Narayanan et al., Gavel,
OSDI 2020.
Two jobs on the same GPUs run at the speeds of their pair to the end of the round. Their time counts by that
speed where time ends a job.
Deviations: none known. A job that ran for 1.5 times the time that its schedule takes ends, as in the source;
so does one that was given five rounds with no step left to do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from trimtab.domain.allocator import Epochs, JobNeed, Speed
from trimtab.domain.service_loads import PairSpeeds
from trimtab.domain.training_jobs import Flags, Floats, Ints, Records, Workload
from trimtab.errors import UsageError
from trimtab.training.levels import equal_parts, no_services
from trimtab.training.shared_gpus import partner_rows, speeds_together
from trimtab.training.truths.progress import Running

_SHORTEST_S: Final = 1e-6  # of a round, so that time goes on
_EMPTY_ROUNDS: Final = 5  # in the source a round without steps has failed, and so many failures end a job

_ONE_EPOCH: Final = 10**15  # samples: more than any job has

Key = tuple[str, int, int]  # model, batch, GPUs


@dataclass(frozen=True)
class SteppedJob:
    """The measured behaviour of one job."""

    model: str
    batch_by_epoch: Ints  # [epochs]
    doubles: bool  # its batch only grows, by doubling, one epoch ahead ("gns"); else it follows the schedule
    steps: int  # at its first batch
    overrun_s: float  # it ends after so many seconds with GPUs
    profile: Ints = field(default_factory=lambda: np.zeros(0, np.int64))  # [epochs] batch that estimates see


@dataclass(frozen=True)
class StepRates:
    """Steps per second on each type of GPU, and samples of an epoch.

    A model without samples has one epoch.
    """

    by_type: tuple[Mapping[Key, float], ...]
    samples: Mapping[str, int]
    pairs: PairSpeeds | None = None  # of jobs on the same GPUs; None = nothing is known of them
    kinds: Mapping[tuple[str, int], int] = field(default_factory=dict)  # model, batch → curve of `pairs`

    def steps_of_epoch(self, model: str, batch: int) -> int:
        """Whole steps of an epoch."""
        return math.ceil(self.samples.get(model, _ONE_EPOCH) / max(batch, 1))


class SteppedTruth:
    """The truth about such jobs."""

    def __init__(
        self,
        rates: StepRates,
        jobs: Sequence[SteppedJob],
        *,
        period_s: float = 120.0,
        overhead_s: float = 20.0,
    ) -> None:
        self.rates, self.jobs = rates, tuple(jobs)
        self.period_s, self.overhead_s = period_s, overhead_s

    def begin(self, workload: Workload) -> Speed:
        """Start all jobs anew."""
        n = len(workload)
        self._gpus = workload.gpus_requested
        self._batch = np.array([job.batch_by_epoch[0] for job in self.jobs], np.int64)
        self._total = np.array([job.steps for job in self.jobs], np.int64)
        self._done, self._changes = np.zeros(n, np.int64), np.zeros(n, np.bool_)
        self._ran_s, self._round = np.zeros(n), 0
        self._empty = np.zeros(n, np.int64)  # rounds without a step to do
        self._last_round = np.full(n, -2)
        self._kind = np.zeros(n, np.int64)
        self.rate = np.zeros((n, len(self.rates.by_type)))  # [jobs, types] with the GPUs asked for
        for job in range(n):
            self._look_up(job)
            if not (self.rate[job] * self.period_s >= 1.0).any():
                raise UsageError(
                    "has no measured speed, or does not do one step in a round",
                    file=workload.name,
                    field=f"job {workload.job_ids[job]}",
                    value=self._key(job),
                    expected="a model, batch and number of GPUs of the profile",
                )
        return SteppedSpeed(self)

    def resume(self, work_left: Floats) -> None:
        """After `begin`: so many steps are left of each job."""
        self._done = self._total - np.minimum(np.ceil(work_left), self._total).astype(np.int64)

    def oracle(self) -> Speed:
        """The same: speeds of the present batch are known; the schedule to come is not told."""
        return SteppedSpeed(self)

    def advance(self, running: Running, seconds: Floats) -> Floats:
        """Whole steps of each row."""
        after = np.full(len(running), np.inf)
        steps, rate = self._steps(running)
        for i, job in enumerate(running.job_idx.tolist()):
            if rate[i] <= 0:
                continue
            if self._done[job] >= self._total[job]:
                self._last_round[job] = self._round
                self._empty[job] += 1
                after[i] = 0.0 if self._empty[job] == _EMPTY_ROUNDS else np.inf
                continue
            if rate[i] <= 0:  # the two can't share GPUs
                self._last_round[job] = self._round
                continue
            count = min(int(steps[i]), int(rate[i] * seconds[i] + 1e-6))
            took_s = count / rate[i]
            ran_s = took_s
            if self._round > 0 and self._last_round[job] < self._round - 1 and took_s > self.period_s - 5.0:
                ran_s = took_s - self.overhead_s
                count = int(count * (ran_s / took_s))
            self._last_round[job] = self._round
            self._done[job] += count
            self._ran_s[job] += ran_s * (rate[i] / self.rate[job, running.type_idx[i]])
            if self._done[job] >= self._total[job] or self._ran_s[job] > self.jobs[job].overrun_s:
                self._done[job] = self._total[job]
                after[i] = took_s
            else:
                self._adapt(job)
        self._round += 1
        return after

    def save(self, job_idx: Ints) -> None:
        """Not known."""
        raise UsageError(
            "jobs that run whole steps in rounds have no checkpoints",
            field="rules.checkpoint_s",
            expected="0: nothing is lost",
        )

    def go_back(self, job_idx: Ints) -> None:
        """Never: nothing is lost."""

    def time_to_finish_s(self, running: Running) -> Floats:
        """The end of the round, for every row: then the last one has done its steps."""
        steps, rate = self._steps(running)
        runs = rate > 0
        if not runs.any():
            pairs = bool((running.partner_job_idx >= 0).any())  # that can't share GPUs: they may part again
            return np.full(len(running), self.period_s if pairs else np.inf)
        return np.full(len(running), max((steps[runs] / rate[runs]).max(), _SHORTEST_S))

    def work_left(self, job_idx: Ints) -> Floats:
        """Steps left at the present batch."""
        return (self._total - self._done)[job_idx].astype(np.float64)

    def reports(self, job_idx: Ints) -> tuple[Floats, Floats]:
        """None: there are no services."""
        return no_services(job_idx)

    def true_work_left(self, job_idx: Ints) -> Floats:
        """The same."""
        return self.work_left(job_idx)

    def kept(self, job: Ints, partner: Ints, type_idx: Ints, gpus: Ints) -> Floats:
        """Share of its own speed that each job keeps beside its partner; nan = nothing is known."""
        if self.rates.pairs is None:
            return np.full(np.broadcast_shapes(job.shape, partner.shape, gpus.shape), np.nan)
        own, other = self._kind[job], self._kind[partner]
        return self.rates.pairs.kept(own, other, type_idx, gpus, 1.0, 1.0)

    def epochs_of(self, job: int) -> Epochs:
        """The known epochs of a job."""
        made, batch = self.jobs[job], int(self._batch[job])
        plan = made.profile if len(made.profile) else made.batch_by_epoch
        batches, regime = np.unique(plan, return_inverse=True)
        done = min(int(self._done[job] // self.rates.steps_of_epoch(made.model, batch)), len(plan))
        samples, gpus = self.rates.samples[made.model], int(self._gpus[job])
        rate = [self.rates.by_type[0].get((made.model, int(b), gpus), np.inf) for b in batches]
        seconds = np.maximum(np.rint(samples / batches / np.array(rate)), 1.0)
        return Epochs(len(plan), done, regime[: done + 1], seconds, float(samples), float(batch))

    def slowest_type(self, job_idx: Ints, n_gpus: Ints, held: Flags) -> Ints:
        """At the present batch."""
        return np.where(held, self.rate[job_idx], np.inf).argmin(axis=1)

    def rate_of(self, job: int, type_idx: int, gpus: int) -> float:
        """Steps per second at the present batch; 0 = not measured."""
        return float(self.rates.by_type[type_idx].get((*self._key(job)[:2], gpus), 0.0))

    def _steps(self, running: Running) -> tuple[Ints, Floats]:
        rows = running.job_idx
        rate = self.rate[rows, running.type_idx]
        if (running.partner_job_idx >= 0).any():
            partner = partner_rows(running)
            beside = np.where(partner >= 0, rows[partner], rows)
            kept = self.kept(rows, beside, running.type_idx, running.n_gpus)
            rate = np.where(partner >= 0, speeds_together(running, rate, kept), rate)
        whole = np.where(rate > 0, np.maximum((rate * self.period_s).astype(np.int64), 1), 0)
        return np.minimum(whole, self._total[rows] - self._done[rows]), rate

    def _key(self, job: int) -> Key:
        return self.jobs[job].model, int(self._batch[job]), int(self._gpus[job])

    def _look_up(self, job: int) -> None:
        self._kind[job] = self.rates.kinds.get(self._key(job)[:2], 0)
        self.rate[job] = [rates.get(self._key(job), 0.0) for rates in self.rates.by_type]

    def _adapt(self, job: int) -> None:
        """Make the change noted before, then note the next one."""
        if self._changes[job]:
            self._rescale(job, self._wanted_batch(job))
        self._changes[job] = self._wants_change(job)

    def _epoch(self, job: int) -> int:
        return math.ceil(self._done[job] / self.rates.steps_of_epoch(self.jobs[job].model, self._batch[job]))

    def _planned(self, job: int, epoch: int) -> int:
        plan = self.jobs[job].batch_by_epoch
        return int(plan[min(epoch, len(plan) - 1)])

    def _wants_change(self, job: int) -> bool:
        epoch, batch = self._epoch(job), self._batch[job]
        if self.jobs[job].doubles:
            return self._planned(job, epoch + 1) > batch or self._planned(job, epoch) > batch
        return self._planned(job, epoch) != batch

    def _wanted_batch(self, job: int) -> int:
        if self.jobs[job].doubles:
            return int(2 * self._batch[job])
        plan, batch = self.jobs[job].batch_by_epoch, int(self._batch[job])
        others = plan[plan != plan[0]]
        return int(others[0]) if batch == plan[0] and len(others) else int(plan[0])

    def _rescale(self, job: int, batch: int) -> None:
        model, before = self.jobs[job].model, int(self._batch[job])
        if (model, batch, int(self._gpus[job])) not in self.rates.by_type[0]:
            return
        old, new = self.rates.steps_of_epoch(model, before), self.rates.steps_of_epoch(model, batch)
        epochs = math.ceil(self._total[job] / old)
        steps = math.ceil(self._total[job] * (1 / (batch / before)))
        self._total[job] = steps if math.ceil(steps / new) == epochs else new * epochs
        self._done[job] = math.ceil(self._done[job] / old) * new
        self._batch[job] = batch
        self._look_up(job)


class SteppedSpeed:
    """The estimate: the measured speed of each job's present batch."""

    def __init__(self, truth: SteppedTruth) -> None:
        self._truth = truth

    @property
    def levels(self) -> Ints:
        """Any number of GPUs."""
        return np.zeros(0, np.int64)

    @property
    def provides(self) -> frozenset[JobNeed]:
        """Speeds, and steps left."""
        types = {JobNeed.TYPES} if self._truth.rate.shape[1] > 1 else set()
        pairs = {JobNeed.SHARING} if self._truth.rates.pairs is not None else set()
        known = all(job.model in self._truth.rates.samples for job in self._truth.jobs)
        epochs = {JobNeed.EPOCHS} if known else set()
        return frozenset({JobNeed.SCALING, JobNeed.WORK_LEFT} | epochs | types | pairs)

    def goodput(self, jobs: Records, configs: Records) -> Floats:
        """Steps per second; 0 = not measured."""
        job, type_idx, gpus, asked = np.broadcast_arrays(
            jobs["job_idx"], configs["type_idx"], configs["gpus"], jobs["gpus_requested"]
        )
        value: Floats = np.where(gpus == asked, self._truth.rate[job, type_idx], 0.0)
        for at in zip(*np.nonzero((gpus != asked) & (gpus > 0)), strict=True):
            value[at] = self._truth.rate_of(int(job[at]), int(type_idx[at]), int(gpus[at]))
        return value

    def epochs(self, jobs: Records) -> list[Epochs]:
        """Epochs by the profile: batches so far, all batches of a job, and what an epoch takes with each."""
        return [self._truth.epochs_of(int(job)) for job in jobs["job_idx"]]

    def batch(self, jobs: Records, configs: Records) -> tuple[Floats, Ints]:
        """The job's batch in equal parts."""
        return equal_parts(jobs, configs)

    def shared(self, jobs: Records, partners: Records, configs: Records) -> tuple[Floats, Floats]:
        """Speeds alone times what each keeps of it; nan = nothing is known of pairs."""
        own, other = jobs["job_idx"], partners["job_idx"]
        types, gpus = configs["type_idx"], configs["gpus"]
        first = self.goodput(jobs, configs) * self._truth.kept(own, other, types, gpus)
        return first, self.goodput(partners, configs) * self._truth.kept(other, own, types, gpus)
