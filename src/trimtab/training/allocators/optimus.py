"""Optimus with its own fits: convergence and speed of a job are learned from what it reports as it runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, cast

import numpy as np

from trimtab.domain.allocator import Allocation, Allocator, JobNeed, Losses, LossSpeed, Speed
from trimtab.domain.parameters import Count, Natural, Positive
from trimtab.domain.training_jobs import Floats, GpuCluster, Ints, Records
from trimtab.training.allocators.shared.in_order import of_one_type
from trimtab.training.allocators.shared.marginal_gains import gains_of, least_and_most, raised
from trimtab.training.performance.optimus_convergence import EXTRA_EPOCHS, FittedCurves
from trimtab.training.performance.profiled_runs import Samples
from trimtab.training.performance.throughput_formulas import OptimusSpeed

_KINDS = 3  # numbers of GPUs that the formula of speed needs

Kind = tuple[int, float]  # model, batch


@dataclass
class Observed:
    """What was seen of the jobs of a run."""

    before: dict[int, tuple[float, float]] = field(default_factory=dict)  # job → work, seconds
    ran: dict[Kind, dict[int, Floats]] = field(default_factory=dict)  # GPUs → [seconds, work]
    curves: FittedCurves = field(default_factory=FittedCurves)


@dataclass(frozen=True)
class Optimus(Allocator):
    """Each further GPU goes to the job whose remaining time it shortens most, by fits of its own runs.

    Idea
        The loss of a job is fitted to 1 / (β0 k + β1) + β2; its work ends where that curve falls by less than
        `threshold` over `window` epochs. Seconds of a step are fitted to θ0 batch / w + θ1 + θ2 w for w GPUs,
        by non-negative least squares over the numbers of GPUs with which jobs of this model and batch ran. A
        model that has run with fewer than `explore` numbers explores: one of its jobs gets the next of 1, 2,
        4, …. Other GPUs are given one by one to the largest reduction of remaining time.
    Source
        Peng et al., Optimus: An Efficient Dynamic Resource Scheduler for Deep Learning Clusters, EuroSys
        2018, §3 and §4.1, and its published program.
    Reads
        losses, progress_s, model_idx, batch, gpus_min, gpus_max, gpus_requested. Neither declared work nor
        estimated speeds.
    Cost
        A fit of O(100 · epochs) for a job whose epochs have grown by a fifth, O(jobs · GPUs) for the
        estimates, O(GPUs log jobs) for the choice.
    When it wins / loses
        It needs no declared work and no profiles. Curves that go on falling slowly, such as those with a drop
        of the learning rate to come, end later than it thinks; exploration and the frequent changes cost
        restarts.
    Deviations from the source
        Workers are GPUs, with no parameter servers. The source explores by runs of its own before a job
        starts; here the job itself runs so, in a round that counts, and pays its restarts. Jobs of one model
        and batch share what they saw. As in the source, a job with fewer than three epochs has 20 more to go,
        and a job that goes on past its predicted end one. Rounds are those of the oracle's evaluation, 60 s;
        the source's have 600 s.
    """

    name: ClassVar[str] = "optimus"
    needs: ClassVar[frozenset[JobNeed]] = frozenset({JobNeed.LOSSES})
    keeps_gangs: ClassVar[bool] = False
    clock: ClassVar[str] = "rounds(period_s=60)"
    placement: ClassVar[str] = "spread"
    threshold: Positive = 0.05  # fall of the loss, over that after the first epoch
    window: Count = 10  # epochs
    explore: Natural = 3  # numbers of GPUs of a model

    def init(self, cluster: GpuCluster, n_jobs: int) -> Observed:
        """Nothing was seen."""
        return Observed()

    def allocate(
        self, jobs: Records, cluster: GpuCluster, now_s: float, speed: Speed, memory: Observed
    ) -> Allocation:
        """Learn, explore, then grant GPUs one by one."""
        told = cast(LossSpeed, speed).losses(jobs)
        kinds = [(int(m), float(b)) for m, b in zip(jobs["model_idx"], jobs["batch"], strict=True)]
        held = cluster.held.sum(axis=1)
        self._observe(jobs, told, kinds, held, memory)
        free = cluster.n_gpus
        least, most = least_and_most(jobs, free)
        counts = np.where(np.cumsum(least) <= free, least, 0)
        free -= int(counts.sum())
        explores = np.zeros(len(jobs), np.bool_)
        for row in np.flatnonzero((counts > 0) & (most > least)):
            wanted = self._next(kinds[row], int(least[row]), int(most[row]), memory)
            busy = any(explores[o] and kinds[o] == kinds[row] for o in range(row))
            if not busy and 0 < wanted <= free + counts[row]:
                explores[row] = True
                free -= wanted - int(counts[row])
                counts[row] = wanted
        if free > 0:
            left = self._work_left(jobs, told, memory)
            gpus = np.arange(1, cluster.n_gpus + 1)
            per_work = {kind: self._seconds(kind, gpus, memory) for kind in set(kinds)}
            gain = gains_of(np.array([per_work[kind] for kind in kinds]) * left[:, None])
            counts = raised(counts, np.where(explores, counts, most), free, gain)
        return Allocation(counts=of_one_type(counts, cluster))

    def _observe(
        self, jobs: Records, told: list[Losses], kinds: list[Kind], held: Ints, memory: Observed
    ) -> None:
        """Add the work and the seconds since the last decision, with the GPUs held until now."""
        before, memory.before = memory.before, {}
        for row, job in enumerate(jobs["job_idx"].tolist()):
            done, seconds, gpus = told[row].done, float(jobs["progress_s"][row]), int(held[row])
            was_done, was_s = before.get(job, (done, seconds))
            if gpus > 0 and done > was_done and seconds > was_s:
                seen = memory.ran.setdefault(kinds[row], {})
                seen[gpus] = seen.get(gpus, np.zeros(2)) + np.array([seconds - was_s, done - was_done])
            memory.before[job] = (done, seconds)

    def _next(self, kind: Kind, least: int, most: int, memory: Observed) -> int:
        """The next number of GPUs to explore; 0 = enough are known."""
        known = memory.ran.get(kind, {})
        if len(known) >= self.explore:
            return 0
        gpus = least
        while gpus in known and 2 * gpus <= most:
            gpus *= 2
        return 0 if gpus in known else gpus

    def _seconds(self, kind: Kind, gpus: Ints, memory: Observed) -> Floats:
        """Seconds of a unit of work with these numbers of GPUs, by the fit; perfect scaling before it."""
        known = memory.ran.get(kind, {})
        if not known:
            return 1.0 / gpus
        seconds = np.array([s / work for s, work in known.values()])
        seen = np.array(list(known))
        if len(known) < _KINDS:
            return float((seconds * seen).mean()) / gpus
        batch = max(kind[1], 1.0)
        fit = OptimusSpeed().fit(_samples(seen, batch, seconds))
        return fit.seconds(_samples(gpus, batch, np.full(len(gpus), np.nan)))

    def _work_left(self, jobs: Records, told: list[Losses], memory: Observed) -> Floats:
        """Of each job, by its curve; the mean of the others for one that has not ended an epoch."""
        left = np.full(len(jobs), np.nan)
        for row, job in enumerate(jobs["job_idx"].tolist()):
            epochs = len(told[row].work)
            if epochs > 0:
                of_epoch = float(told[row].work[-1]) / epochs
                ends = self._epochs(job, told[row], memory)
                left[row] = max(ends - told[row].done / of_epoch, 1.0) * of_epoch
        known = left[~np.isnan(left)]
        return np.where(np.isnan(left), float(known.mean()) if len(known) else 1.0, left)

    def _epochs(self, job: int, told: Losses, memory: Observed) -> float:
        """Epochs of a job in all."""
        n = len(told.work)
        if n < 3:
            return float(n + EXTRA_EPOCHS)
        curve = memory.curves.of(job, told.loss)
        return min(curve.steps_to_converge(self.threshold, self.window), float(n + 10 * EXTRA_EPOCHS))


def _samples(gpus: Ints, batch: float, seconds: Floats) -> Samples:
    """One curve."""
    columns = {"curve": np.zeros(len(gpus), np.int64), "batch": np.full(len(gpus), batch), "gpus": gpus}
    return Samples(columns, seconds)
