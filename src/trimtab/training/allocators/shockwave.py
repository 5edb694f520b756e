"""Shockwave: a window of rounds that balances welfare, finish-time fairness and the makespan."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final, Self, cast

import numpy as np

from trimtab.compiled.elementwise import elementwise
from trimtab.domain.allocator import Allocation, Allocator, Epochs, EpochSpeed, JobNeed, Speed
from trimtab.domain.parameters import Count, Fraction, NonNegative, Positive
from trimtab.domain.training_jobs import Flags, Floats, GpuCluster, Ints, Records, configs
from trimtab.training.allocators.shared.window_plans import WindowProblem, laid_out, rounds_of_jobs

_PLAIN_EPOCHS: Final = 100  # of jobs that report none
_BASES: Final = np.array([0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
_LOGS: Final = elementwise(math.log, np.where(_BASES > 0, _BASES, 1e-6))  # of progress 0, as in the source
_LATE_POWER: Final = 100.0  # of jobs that are late and end within a round


@dataclass
class Window:
    """The plan in force, and the finish times that jobs were promised; keys are job_idx."""

    runs: dict[int, Flags] = field(default_factory=dict)  # [rounds of the window]
    active: frozenset[int] = frozenset()
    gpus: int = 0  # that the plan is for
    at: int = 0  # round of the window
    round: int = 0
    promised: dict[int, list[tuple[int, float]]] = field(default_factory=dict)  # round, finish time


@dataclass(frozen=True)
class Shockwave(Allocator):
    """Rounds of a window by Nash welfare over time, with finish times no later than promised.

    Idea
        Jobs have a fixed number of GPUs, and change their batch as they train. What a job still needs is
        expected under a Dirichlet posterior over the batches seen. A programme gives each job rounds of a
        window: it maximises the mean logarithm of progress less k times the longest remaining time, while no
        job ends later than it would with an equal share, averaged over time. If that can't be, late jobs
        weigh (lateness)^power instead, and go first within the window.
    Source
        Zheng et al., Shockwave: Fair and Efficient Cluster Scheduling for Dynamic Adaptation in Machine
        Learning, NSDI 2023, §5 and §6, and its simulator.
    Reads
        gpus_requested, submit_s, epochs, or work_left and goodput where a job reports no epochs.
    Cost
        O(jobs · rounds · log(jobs · rounds)) for each plan.
    When it wins / loses
        Short makespans and few jobs that are treated unfairly, also where run times change underway. It
        needs epochs and batches, and gives no job more GPUs than it asked for.
    Deviations from the source
        The programme is solved by `shared/window_plans.py` in place of Gurobi. Which rounds of the window
        a job gets is free where no job is late; the source takes what Gurobi returns, here priorities are
        equal then. Widths that do not divide each other may leave a job with fewer rounds than planned; idle
        GPUs go to the job with most left, as in the source. Finish times are those of the clock, not rounds
        times their length. Jobs that report no epochs have 100 equal ones. The source's calibration of
        profiles by measured speeds is left out: it takes waiting for running.
    """

    name: ClassVar[str] = "shockwave"
    needs: ClassVar[frozenset[JobNeed]] = frozenset({JobNeed.SCALING, JobNeed.WORK_LEFT})
    clock: ClassVar[str] = "step-rounds(period_s=120)"
    window: Count = 20
    round_s: Positive = 120.0
    weight: NonNegative = 1e-3  # k, of the longest remaining time
    power: Positive = 12.0  # of lateness
    ratio_max: Positive = 1.0  # of finish times over those promised
    momentum: Fraction = 0.9
    again: Count = 8  # rounds after which a plan is made anew in any case

    def in_rounds_of(self, round_s: float) -> Self:
        """With windows of such rounds."""
        return replace(self, round_s=round_s)

    def init(self, cluster: GpuCluster, n_jobs: int) -> Window:
        """No plan."""
        return Window()

    def allocate(
        self, jobs: Records, cluster: GpuCluster, now_s: float, speed: Speed, memory: Window
    ) -> Allocation:
        """Follow the plan, or make one where jobs or GPUs came or went or it is old."""
        index = [int(j) for j in jobs["job_idx"]]
        active = frozenset(index)
        changed = active != memory.active or cluster.n_gpus != memory.gpus
        if changed or memory.at >= min(self.again, self.window):
            known = _known_epochs(jobs, speed)
            if changed:
                self._promise(memory, jobs, known, cluster.n_gpus)
            self._plan(memory, jobs, known, cluster.n_gpus, now_s)
            memory.active, memory.gpus, memory.at = active, cluster.n_gpus, 0
        runs = np.array([memory.runs[j][memory.at] for j in index], np.bool_)
        memory.at += 1
        memory.round += 1
        counts = np.zeros((len(jobs), len(cluster.type_names)), np.int64)
        free = cluster.type_gpus.copy()
        for row in np.flatnonzero(runs):
            t = int(np.argmax(free))
            if jobs["gpus_requested"][row] <= free[t]:
                counts[row, t] = jobs["gpus_requested"][row]
                free[t] -= counts[row, t]
        return Allocation(counts=counts)

    def _promise(self, memory: Window, jobs: Records, known: list[Epochs], gpus: int) -> None:
        """Note when each job would end with an equal share."""
        share = min(1.0, gpus / len(jobs))
        for job, submit_s, epochs in zip(jobs["job_idx"].tolist(), jobs["submit_s"], known, strict=True):
            ran_s = float(epochs.regime_s[epochs.seen[: epochs.done]].sum())
            finish_s = float(submit_s) + (ran_s + posterior_left_s(epochs)) / share
            memory.promised.setdefault(job, []).append((memory.round, finish_s))

    def _promised_s(self, memory: Window, job: int) -> float:
        """Mean over time of what was promised, and a part of the last promise."""
        noted = memory.promised[job]
        times = [t for t, _ in noted] + [memory.round]
        value = np.array([finish_s for _, finish_s in noted])
        lasted = np.diff(times)
        mean_s = float((lasted * value).sum() / lasted.sum()) if lasted.sum() > 0 else float(value[0])
        return self.momentum * mean_s + (1.0 - self.momentum) * float(value[-1])

    def _plan(self, memory: Window, jobs: Records, known: list[Epochs], gpus: int, now_s: float) -> None:
        index = jobs["job_idx"].tolist()
        width = jobs["gpus_requested"].astype(np.int64)
        fits = width <= gpus
        share = min(1.0, gpus / len(jobs))
        left_s = np.array([posterior_left_s(epochs) for epochs in known])
        promised_s = np.array([self._promised_s(memory, job) for job in index])
        utility, remaining_s = self._outcomes(known, left_s)
        ends_s = now_s + self.window * self.round_s + remaining_s / share
        late = ends_s > self.ratio_max * promised_s[:, None]
        least = np.where(fits, late.sum(axis=1), 0)
        priority = np.ones(len(jobs))
        found = self._solved(utility, remaining_s, least, width, gpus, fits)
        if found is None:
            ratio = (now_s + left_s / share) / promised_s
            power = np.where(left_s < self.round_s, _LATE_POWER, self.power)
            priority = np.where(ratio > self.ratio_max, np.maximum(ratio, 1.0) ** power, 1.0)
            weighted = utility * priority[:, None]
            found = self._solved(weighted, remaining_s, np.zeros_like(least), width, gpus, fits)
        assert found is not None  # without promises nothing has to run
        runs = laid_out(found, width, gpus, self.window, priority)
        _fill(runs, width, gpus, left_s)
        memory.runs = dict(zip(index, runs, strict=True))

    def _outcomes(self, known: list[Epochs], left_s: Floats) -> tuple[Floats, Floats]:
        """Logarithm of progress, and run time left, of each job after so many rounds."""
        total = np.array([epochs.total for epochs in known], np.float64)[:, None]
        done = np.array([epochs.done for epochs in known], np.float64)[:, None]
        epoch_s = np.array([epochs.regime_s[epochs.seen].mean() for epochs in known])[:, None]
        runs_s = np.arange(self.window + 1)[None, :] * self.round_s
        runs_s = np.minimum(runs_s, (total - done) * epoch_s)
        progress = np.minimum((done + runs_s / epoch_s) / total, 1.0)
        utility = np.interp(progress, _BASES, _LOGS) / (len(known) * self.window)
        return utility, np.maximum(left_s[:, None] - runs_s, 0.0)

    def _solved(
        self, utility: Floats, remaining_s: Floats, least: Ints, width: Ints, gpus: int, fits: Flags
    ) -> Ints | None:
        rounds = np.zeros(len(width), np.int64)
        if not fits.any():
            return rounds
        problem = WindowProblem(utility[fits], remaining_s[fits], least[fits], width[fits], gpus, self.weight)
        found = rounds_of_jobs(problem)
        if found is None:
            return None
        rounds[fits] = found
        return rounds


def posterior_left_s(epochs: Epochs) -> float:
    """Expected run time left: a Dirichlet posterior over regimes, from equal parts and the epochs seen."""
    left = epochs.total - epochs.done
    if left <= 0:
        return 1.0
    regimes = len(epochs.regime_s)
    seen = np.bincount(epochs.seen, minlength=regimes)
    weight = epochs.total / regimes + seen
    expected = epochs.total * weight / weight.sum()
    for regime, count in enumerate(seen.tolist()):
        expected[regime] -= min(count, math.floor(expected[regime]))
    all_left = max(int(expected.sum() + 1), left)
    return float((expected * epochs.regime_s).sum()) * left / all_left


def _fill(runs: Flags, width: Ints, gpus: int, left_s: Floats) -> None:
    """Give idle GPUs of each round to those with most run time left."""
    order = np.argsort(-left_s, kind="stable")
    for t in range(runs.shape[1]):
        free = gpus - int(width[runs[:, t]].sum())
        for job in order:
            if free > 0 and not runs[job, t] and width[job] <= free:
                runs[job, t] = True
                free -= int(width[job])


def _known_epochs(jobs: Records, speed: Speed) -> list[Epochs]:
    """Epochs as jobs report them, or equal ones."""
    if JobNeed.EPOCHS in speed.provides:
        return cast(EpochSpeed, speed).epochs(jobs)
    rate = np.maximum(speed.goodput(jobs, configs(jobs["gpus_requested"])), 1e-300)
    total_s = jobs["work_total"] / rate / _PLAIN_EPOCHS
    done = np.floor((1.0 - jobs["work_left"] / jobs["work_total"]) * _PLAIN_EPOCHS).astype(np.int64)
    done = np.clip(done, 0, _PLAIN_EPOCHS)
    return [
        Epochs(_PLAIN_EPOCHS, int(d), np.zeros(d + 1, np.int64), np.array([max(s, 1e-9)]), 1.0, 1.0)
        for d, s in zip(done, total_s.tolist(), strict=True)
    ]
