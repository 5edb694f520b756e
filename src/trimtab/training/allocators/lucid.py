"""Lucid's packing: light jobs share GPUs, by how much of a GPU each keeps busy; nothing is preempted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from trimtab.domain.allocator import Allocation, Allocator, JobNeed, Speed
from trimtab.domain.parameters import Count, Fraction, Natural, NonNegative
from trimtab.domain.training_jobs import Flags, Floats, GpuCluster, Ints, Records, configs


@dataclass
class Packed:
    """Partners in force; keys are job_idx."""

    partner: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Lucid(Allocator):
    """Shortest service first without preemption; jobs that find no free GPUs join a light host.

    Idea
        Each job has a sharing score: 0 light, 1 medium, 2 heavy. A waiting job that finds no free GPUs may
        join a running one with as many GPUs if the scores sum to at most 2, the pair fits, the newcomer's
        service is at most twice that left of the host, both have at most 8 GPUs, and the host has no partner
        yet. Waiting jobs go by estimated duration times GPUs, least first.
    Source
        Hu et al., Lucid: A Non-intrusive, Scalable and Interpretable Scheduler for Deep Learning Training
        Jobs, ASPLOS 2023, §3, and its simulator; the packing part.
    Reads
        work_left, gpus_requested, goodput, speeds of pairs.
    Cost
        O(jobs · hosts) a decision.
    When it wins / loses
        Light jobs start at once and slow others little. A long job is never interrupted, so what comes later
        and is short may wait for it.
    Deviations from the source
        A score follows from the speed that a job keeps beside one of its own kind: 0 from `light`, 1 from
        `medium`, else 2; the source has a decision tree over profiled use of the GPU. A pair fits unless its
        estimated speed is 0; the source compares memory with 24 GB. The profiler's short first runs and the
        learned estimator of durations are left out: both are estimates of the run. Packing is never switched
        off by a forecast; it happens only where jobs find no free GPUs. Decisions are at events, not every
        second.
    """

    name: ClassVar[str] = "lucid"
    needs: ClassVar[frozenset[JobNeed]] = frozenset({JobNeed.WORK_LEFT, JobNeed.SCALING, JobNeed.SHARING})
    shares: ClassVar[bool] = True
    clock: ClassVar[str] = "events(slot_s=1)"
    light: Fraction = 0.95
    medium: Fraction = 0.8
    most_score: Natural = 2
    most_gpus: Count = 8
    patience: NonNegative = 2.0  # most service of a newcomer, over that left of its host

    def init(self, cluster: GpuCluster, n_jobs: int) -> Packed:
        """No job has a partner."""
        return Packed()

    def allocate(
        self, jobs: Records, cluster: GpuCluster, now_s: float, speed: Speed, memory: Packed
    ) -> Allocation:
        """Keep what runs; start what fits; pack the rest."""
        gpus = jobs["gpus_requested"].astype(np.int64)
        counts = cluster.held.copy()
        partner = _partner_rows(memory, jobs["job_idx"], counts.sum(axis=1) > 0)
        second = (partner >= 0) & (partner < np.arange(len(jobs)))
        free = cluster.type_gpus - counts[~second].sum(axis=0)
        types = configs(gpus[:, None], type_idx=np.arange(len(cluster.type_names)))
        rate = speed.goodput(jobs[:, None], types)
        service = jobs["work_left"] / np.maximum(rate.max(axis=1), 1e-300) * gpus
        for row in np.argsort(service, kind="stable"):
            if counts[row].any():
                continue
            fits = np.flatnonzero((free >= gpus[row]) & (rate[row] > 0))
            if len(fits):
                t = int(fits[np.argmax(rate[row, fits])])
                counts[row, t] = gpus[row]
                free[t] -= gpus[row]
            elif gpus[row] <= self.most_gpus:
                self._join(jobs, counts, partner, service, row, speed)
        index = jobs["job_idx"].tolist()
        memory.partner = {index[row]: index[partner[row]] for row in np.flatnonzero(partner >= 0)}
        return Allocation(counts=counts, partner_row=partner)

    def _join(
        self, jobs: Records, counts: Ints, partner: Ints, service: Floats, row: int, speed: Speed
    ) -> None:
        """Put a job beside the host with which both keep most of their speeds."""
        gpus = int(jobs["gpus_requested"][row])
        can: Flags = (counts.sum(axis=1) == gpus) & (partner < 0)
        can &= service[row] <= self.patience * service
        hosts = np.flatnonzero(can)
        if not len(hosts):
            return
        t = counts[hosts].argmax(axis=1)
        ways = configs(gpus, type_idx=t)
        own, other = speed.shared(np.repeat(jobs[row : row + 1], len(hosts)), jobs[hosts], ways)
        alone, others = (speed.goodput(each, ways) for each in (jobs[row : row + 1], jobs[hosts]))
        score = self._scores(jobs[row : row + 1], ways, speed) + self._scores(jobs[hosts], ways, speed)
        with np.errstate(divide="ignore", invalid="ignore"):
            kept = np.nan_to_num(own / alone + other / others, posinf=0.0)
        kept = np.where((score <= self.most_score) & (own > 0) & (other > 0), kept, 0.0)
        if kept.max() <= 0.0:
            return
        host = int(hosts[np.argmax(kept)])
        counts[row] = counts[host]
        partner[row], partner[host] = host, row

    def _scores(self, jobs: Records, ways: Records, speed: Speed) -> Ints:
        """0, 1 or 2 by the speed kept beside one of the same kind; 2 where it is not known."""
        own, alone = speed.shared(jobs, jobs, ways)[0], speed.goodput(jobs, ways)
        with np.errstate(divide="ignore", invalid="ignore"):
            kept = np.nan_to_num(own / alone)
        return np.where(kept >= self.light, 0, np.where(kept >= self.medium, 1, 2))


def _partner_rows(memory: Packed, job_idx: Ints, runs: Flags) -> Ints:
    """Row of each running job's partner; -1 = none, or it has ended or lost its GPUs."""
    row_of = {int(j): i for i, j in enumerate(job_idx)}
    partner = np.full(len(job_idx), -1, np.int64)
    for job, other in memory.partner.items():
        if job in row_of and other in row_of and runs[row_of[job]] and runs[row_of[other]]:
            partner[row_of[job]] = row_of[other]
    return partner
