"""MLFS-style: jobs in order of a priority that joins progress of the loss with deadlines and waiting."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np

from trimtab.domain.allocator import Allocation, Allocator, JobNeed, Losses, Speed
from trimtab.domain.parameters import Fraction, NonNegative
from trimtab.domain.training_jobs import Floats, GpuCluster, Records, configs
from trimtab.training.allocators.shared.in_order import given_in_order
from trimtab.training.allocators.shared.seen_losses import seen_losses
from trimtab.training.performance.optimus_convergence import FittedCurves

_SOON = 1e-3  # mean job lengths: a deadline or a finish that is nearer, or past, counts as so near


@dataclass
class Control:
    """Of the load, in a run."""

    level: int = 0  # how far jobs are downgraded: 0 = they run all iterations
    curves: FittedCurves = field(default_factory=FittedCurves)


@dataclass(frozen=True)
class Mlfs(Allocator):
    """Jobs whose loss still falls, whose deadline or finish is near, or that wait long, come first.

    Idea
        MLF-H: priority = α · ML + (1 − α) · C. ML = urgency / I · (loss reduction of the last iteration) /
        (all reductions so far), I being the present iteration: early iterations matter most. C = γd / (time
        to the deadline) + γr / (remaining run time) + γw · (waiting time). Jobs get the GPUs that they asked
        for in this order; a job that does not fit is passed over. MLF-C, for jobs of users who allow it:
        while jobs wait or more than `overload_frac` of the GPUs are held, jobs are downgraded step by step.
        First a job stops when its loss is within `tolerance` of the one that its fitted curve has at the end
        of its work; then also when it has `required_frac` of the reduction up to there.
    Source
        Wang, Liu and Shen, Job Scheduling for Large-scale Machine Learning Clusters, CoNEXT 2020, §3.
        "-style": the parts below are left out or chosen.
    Reads
        losses, work_left, work_total, goodput, deadline_s, priority, age_s, run_s, gpus_requested.
    Cost
        O(jobs log jobs) a round, and under overload a fit of O(100 · epochs) for a job whose epochs have
        grown by a fifth.
    When it wins / loses
        Meets deadlines of short jobs and finishes them early. Long jobs near their end lose GPUs to new ones;
        it restarts jobs often. Jobs that are stopped count as finished, with less learned.
    Deviations from the source
        A job is one task: no parts of models, hence no dependents, no parameter servers, no migration between
        overloaded servers; placement is the run's. An iteration is an epoch; of jobs that report no losses, a
        hundredth of the work, with a loss of 1 / (1 + 9 x) after the share x. Times are in units of the mean
        run time of the active jobs, since the paper names no unit; past deadlines count as very near. Urgency
        is 1 + the job's priority. `allows` says for all jobs what the source asks each user. Jobs are
        downgraded by one step a round, and back at once; the paper names no pace. The reinforcement learning
        MLF-RL is not part of it.
    """

    name: ClassVar[str] = "mlfs"
    needs: ClassVar[frozenset[JobNeed]] = frozenset({JobNeed.SCALING, JobNeed.WORK_LEFT})
    clock: ClassVar[str] = "rounds(period_s=60)"
    alpha: NonNegative = 0.3
    gamma_deadline: NonNegative = 0.3
    gamma_remaining: NonNegative = 0.3
    gamma_waiting: NonNegative = 0.35
    allows: Literal["nothing", "optstop", "accuracy"] = "nothing"  # the furthest downgrade
    overload_frac: Fraction = 0.9  # of the GPUs
    tolerance: Fraction = 0.01  # of the loss reduction at the end
    required_frac: Fraction = 0.9  # of it

    def init(self, cluster: GpuCluster, n_jobs: int) -> Control:
        """Jobs run all iterations."""
        return Control()

    def allocate(
        self, jobs: Records, cluster: GpuCluster, now_s: float, speed: Speed, memory: Control
    ) -> Allocation:
        """By priority; under overload some jobs stop before."""
        told = seen_losses(jobs, speed)
        order = np.argsort(-self._priorities(jobs, now_s, speed, told), kind="stable")
        counts = given_in_order(jobs, cluster, order, may_pass=True)
        stopped: dict[int, str] = {}
        if self.allows != "nothing":
            held = counts.sum(axis=1)
            is_overloaded = bool((held == 0).any() or held.sum() > self.overload_frac * cluster.n_gpus)
            most = 1 if self.allows == "optstop" else 2
            memory.level = min(memory.level + 1, most) if is_overloaded else 0
            stopped = self._stopped(jobs, told, memory) if memory.level else {}
        if stopped:
            goes_on = ~np.isin(order, list(stopped))
            counts = given_in_order(jobs, cluster, order[goes_on], may_pass=True)
        return Allocation(counts=counts, stopped=stopped)

    def _priorities(self, jobs: Records, now_s: float, speed: Speed, told: list[Losses]) -> Floats:
        rate = speed.goodput(jobs, configs(jobs["gpus_requested"]))
        rate = np.where(rate > 0, rate, 1e-12)
        unit_s = max(float(np.mean(jobs["work_total"] / rate)), 1e-9)
        soon = np.maximum((jobs["deadline_s"] - now_s) / unit_s, _SOON)
        remaining = np.maximum(jobs["work_left"] / rate / unit_s, _SOON)
        waited = np.maximum(jobs["age_s"] - jobs["run_s"], 0.0) / unit_s
        by_time = self.gamma_deadline / soon + self.gamma_remaining / remaining + self.gamma_waiting * waited
        urgency = 1.0 + np.maximum(jobs["priority"], 0)
        by_loss = urgency * np.array([_by_loss(losses.loss) for losses in told])
        priority: Floats = self.alpha * by_loss + (1.0 - self.alpha) * by_time
        return priority

    def _stopped(self, jobs: Records, told: list[Losses], memory: Control) -> dict[int, str]:
        """Jobs that have learned enough for the present level, with the reason."""
        found = {}
        for row, job in enumerate(jobs["job_idx"].tolist()):
            losses = told[row]
            n = len(losses.work)
            if n < 3:
                continue
            curve = memory.curves.of(job, losses.loss)
            of_epoch = float(losses.work[-1]) / n
            ends = max(float(jobs["work_total"][row]) / of_epoch, n)
            start, now, last = curve.loss(np.array([0.0, n, ends])).tolist()
            if now - last <= self.tolerance * (start - last):
                found[row] = "its predicted loss is reached"
            elif memory.level > 1 and start - now >= self.required_frac * (start - last):
                found[row] = "its required accuracy is reached"
        return found


def _by_loss(loss: Floats) -> float:
    """1 / I · δl(I − 1) / Σ δl(j < I), of losses [I − 1]; 1 / I before the second reduction."""
    fall = np.maximum(-np.diff(np.append(1.0, loss)), 0.0)
    total = float(fall.sum())
    share = float(fall[-1]) / total if len(fall) > 1 and total > 0 else 1.0
    return share / (len(loss) + 1)
