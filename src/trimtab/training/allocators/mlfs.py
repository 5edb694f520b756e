"""MLFS-style: jobs in order of a priority that joins progress of the loss with deadlines and waiting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from trimtab.domain.allocator import Allocation, Allocator, JobNeed, Speed
from trimtab.domain.parameters import NonNegative
from trimtab.domain.training_jobs import Floats, GpuCluster, Records, configs
from trimtab.training.allocators.shared.in_order import given_in_order

_SOON = 1e-3  # mean job lengths: a deadline or a finish that is nearer, or past, counts as so near


@dataclass(frozen=True)
class Mlfs(Allocator):
    """Jobs whose loss still falls, whose deadline or finish is near, or that wait long, come first.

    Idea
        The heuristic MLF-H. Priority = α · ML + (1 − α) · C. ML = urgency / I · (loss reduction of the last
        iteration) / (all reductions so far), I being the present iteration: early iterations matter most.
        C = γd / (time to the deadline) + γr / (remaining run time) + γw · (waiting time). Jobs get the GPUs
        that they asked for in this order; a job that does not fit is passed over.
    Source
        Wang, Liu and Shen, Job Scheduling for Large-scale Machine Learning Clusters, CoNEXT 2020, §3.
        "-style": the parts below are left out or chosen.
    Reads
        work_left, work_total, goodput, deadline_s, priority, age_s, run_s, gpus_requested.
    Cost
        O(jobs log jobs) a round.
    When it wins / loses
        Meets deadlines of short jobs and finishes them early. Long jobs near their end lose GPUs to new ones;
        it restarts jobs often.
    Deviations from the source
        A job is one task: no parts of models, hence no dependents, no parameter servers, no migration between
        overloaded servers; placement is the run's. Loss curves are not recorded: loss is taken as 1 / I, with
        a hundred iterations in each job. Times are in units of the mean run time of the active jobs, since
        the paper names no unit; past deadlines count as very near. Urgency is 1 + the job's priority. The
        reinforcement learning MLF-RL and the load control MLF-C (stopping jobs early) are not built.
    """

    name: ClassVar[str] = "mlfs"
    needs: ClassVar[frozenset[JobNeed]] = frozenset({JobNeed.SCALING, JobNeed.WORK_LEFT})
    clock: ClassVar[str] = "rounds(period_s=60)"
    alpha: NonNegative = 0.3
    gamma_deadline: NonNegative = 0.3
    gamma_remaining: NonNegative = 0.3
    gamma_waiting: NonNegative = 0.35

    def allocate(
        self, jobs: Records, cluster: GpuCluster, now_s: float, speed: Speed, memory: Any
    ) -> Allocation:
        """By priority."""
        order = np.argsort(-self._priorities(jobs, now_s, speed), kind="stable")
        return Allocation(counts=given_in_order(jobs, cluster, order, may_pass=True))

    def _priorities(self, jobs: Records, now_s: float, speed: Speed) -> Floats:
        rate = speed.goodput(jobs, configs(jobs["gpus_requested"]))
        rate = np.where(rate > 0, rate, 1e-12)
        unit_s = max(float(np.mean(jobs["work_total"] / rate)), 1e-9)
        soon = np.maximum((jobs["deadline_s"] - now_s) / unit_s, _SOON)
        remaining = np.maximum(jobs["work_left"] / rate / unit_s, _SOON)
        waited = np.maximum(jobs["age_s"] - jobs["run_s"], 0.0) / unit_s
        by_time = self.gamma_deadline / soon + self.gamma_remaining / remaining + self.gamma_waiting * waited
        priority: Floats = self.alpha * _by_loss(jobs) + (1.0 - self.alpha) * by_time
        return priority


def _by_loss(jobs: Records) -> Floats:
    """Urgency / I · δl(I − 1) / Σ δl(j < I), for a loss of 1 / I; 1 in the first two iterations."""
    total = np.maximum(jobs["work_total"], 1e-12)
    iteration = np.maximum(np.floor(100.0 * (1.0 - jobs["work_left"] / total)) + 1.0, 1.0)
    last = 1.0 / np.maximum(iteration - 1.0, 1.0) - 1.0 / np.maximum(iteration, 2.0)
    share = last / (1.0 - 1.0 / np.maximum(iteration, 2.0))
    urgency: Floats = (1.0 + np.maximum(jobs["priority"], 0)) / iteration * share
    return urgency
