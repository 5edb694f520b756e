"""Chronus: leases; jobs with deadlines are admitted if all admitted ones can be packed into leases."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np

from trimtab.domain.allocator import Allocation, Allocator, JobNeed, Speed
from trimtab.domain.parameters import Count, Positive
from trimtab.domain.training_jobs import Flags, Floats, GpuCluster, Ints, Records, configs


@dataclass
class Accepted:
    """The state of a run."""

    jobs: dict[int, bool] = field(default_factory=dict)  # job → whether it was accepted


@dataclass(frozen=True)
class Chronus(Allocator):
    """Deadline jobs hold whole leases, packed as late as their deadlines allow; others fill what is spare.

    Idea
        Time is cut into leases. A job needs so many of them before its deadline. It is accepted if a greedy
        packer finds leases for all accepted jobs and it. At each lease, accepted jobs that can wait no longer
        run; then further ones ("maximize") or none ("minimize"); spare GPUs go to jobs that were not accepted
        or have no deadline, smallest remaining service first.
    Source
        Gao et al., Chronus: A Novel Deadline-aware Scheduler for Deep Learning Training Jobs, SoCC 2021, and
        its artifact; the copy in ElasticFlow's artifact uses leases of 240 s.
    Reads
        deadline_s, work_left, gpus_requested, estimated speed.
    Cost
        O(jobs · leases) for each new job and each lease.
    When it wins / loses
        It keeps the promises that it makes, and rarely preempts. GPU counts never change, so deadlines
        shorter than the run time with the requested GPUs are out of reach.
    Deviations from the source
        The greedy packer of the admission also selects leases, in place of the mixed-integer programme, which
        the artifact solves with Gurobi within 5 s. `objective` "adaptive" maximises unless a deadline job was
        not accepted. Soft deadlines and the extension of a deadline by the server are left out. Where GPUs
        lie is the run's placement rule; the artifact chooses among shapes by their speed.
    """

    name: ClassVar[str] = "chronus"
    needs: ClassVar[frozenset[JobNeed]] = frozenset({JobNeed.DEADLINES, JobNeed.WORK_LEFT})
    clock: ClassVar[str] = "leases(term_s=240)"
    term_s: Positive = 240.0
    margin: Positive = 1.1  # of estimated run times
    objective: Literal["adaptive", "maximize", "minimize"] = "adaptive"
    horizon_leases: Count = 4000  # deadlines further away count as this far

    def init(self, cluster: GpuCluster, n_jobs: int) -> Accepted:
        """No job was accepted."""
        return Accepted()

    def allocate(
        self, jobs: Records, cluster: GpuCluster, now_s: float, speed: Speed, memory: Accepted
    ) -> Allocation:
        """Accept new jobs, then give the next lease."""
        gpus = jobs["gpus_requested"].astype(np.int64)
        need, last = self._leases(jobs, speed, now_s)
        self._accept(jobs, gpus, need, last, cluster.n_gpus, memory)
        idx = jobs["job_idx"].tolist()
        accepted: Flags = np.array([memory.jobs.get(j, False) for j in idx], np.bool_)
        must = np.zeros(len(jobs), np.bool_)
        rows = np.flatnonzero(accepted)
        _, starts_now = packed(gpus[rows], need[rows], last[rows], cluster.n_gpus)
        must[rows] = starts_now
        left_gpu_s = need * gpus
        is_refused = np.isfinite(jobs["deadline_s"]) & ~accepted
        later = accepted & ~must
        waits_last = self.objective == "minimize" or (self.objective == "adaptive" and is_refused.any())
        group = np.where(must, 0, np.where(later, 3 if waits_last else 1, 2))
        runs = cluster.runs
        key = np.where(later, last - need, left_gpu_s)
        order = np.lexsort((~runs, key, group))
        counts = np.zeros((len(jobs), len(cluster.type_names)), np.int64)
        free = cluster.n_gpus
        for row in order:
            if group[row] < 3 and gpus[row] <= free:
                counts[row, 0] = gpus[row]
                free -= int(gpus[row])
        return Allocation(counts=counts, admitted=rows)

    def _leases(self, jobs: Records, speed: Speed, now_s: float) -> tuple[Ints, Ints]:
        """Leases that each job needs, and those that there are before its deadline."""
        gpus = jobs["gpus_requested"]
        rate = np.maximum(speed.goodput(jobs, configs(gpus)), 1e-300)
        widths = np.array([math.log2(g) for g in gpus.tolist()])
        switch = 1.0 + (1.0 + widths) * 0.5 / self.term_s
        need = np.ceil(jobs["work_left"] / rate * switch * self.margin / self.term_s)
        until: Floats = np.floor(jobs["deadline_s"] / self.term_s) - math.floor(now_s / self.term_s)
        return need.astype(np.int64), np.clip(until, 0, self.horizon_leases).astype(np.int64)

    def _accept(
        self, jobs: Records, gpus: Ints, need: Ints, last: Ints, n_gpus: int, memory: Accepted
    ) -> None:
        idx = jobs["job_idx"].tolist()
        kept = [row for row, j in enumerate(idx) if memory.jobs.get(j)]
        for row, j in enumerate(idx):
            if j in memory.jobs:
                continue
            memory.jobs[j] = False
            if math.isfinite(jobs["deadline_s"][row]) and need[row] <= last[row]:
                rows = np.array([*kept, row], np.int64)
                fits, _ = packed(gpus[rows], need[rows], last[rows], n_gpus)
                if fits[-1]:
                    memory.jobs[j] = True
                    kept.append(row)


def packed(gpus: Ints, need: Ints, last: Ints, n_gpus: int) -> tuple[Flags, Flags]:
    """Pack jobs into leases as late as possible; returns who fits entirely, and who holds the first lease.

    Widest first, then least slack, then latest deadline. The last job of the arrays is on trial: it fits only
    if all do.
    """
    free = np.full(max(int(last.max(initial=0)), 1), n_gpus, np.int64)
    fits, first = np.zeros(len(gpus), np.bool_), np.zeros(len(gpus), np.bool_)
    for i in np.lexsort((-last, last - need, -gpus)):
        room = np.flatnonzero(free[: last[i]] >= gpus[i])
        taken = room[max(len(room) - int(need[i]), 0) :]
        free[taken] -= gpus[i]
        fits[i] = len(taken) >= need[i]
        first[i] = bool(len(taken)) and taken[0] == 0
    if len(gpus) and not fits.all():
        fits[-1] = False
    return fits, first
