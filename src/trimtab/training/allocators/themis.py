"""Themis: the job that is treated worst against its fair share goes first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from trimtab.domain.allocator import Allocation, Allocator, JobNeed, Speed
from trimtab.domain.training_jobs import Floats, GpuCluster, Records, configs
from trimtab.training.allocators.shared.in_order import given_in_order

BISECTIONS = 60


@dataclass
class Isolated:
    """The progress of each job if it ran alone on its share: [jobs of the run] arrays."""

    elapsed: Floats  # time that the work done would have taken there
    left: Floats  # work left at the last decision; nan = not seen yet
    rate: Floats  # work per second there, at the last decision


@dataclass(frozen=True)
class Themis(Allocator):
    """Finish-time fairness: minimise the worst ratio of a job's finish time to that on its fair share.

    Idea
        The ratio rho of a job is its time in the shared cluster, so far and to come, over the time it would
        take alone on 1/n of the GPUs. Each decision finds the fractions of time x that make the largest rho
        least; jobs run in order of x, or of x over the share of time that they had.
    Source
        Mahajan et al., Themis: Fair and Efficient GPU Cluster Scheduling, NSDI 2020, §3, as the programme of
        Narayanan et al., Gavel, OSDI 2020, §4, and the version in ElasticFlow's artifact (ASPLOS 2023).
    Reads
        work_left, age_s, gpus_requested, estimated speed.
    Cost
        O(jobs) for each of 60 bisections on rho, instead of a conic programme.
    When it wins / loses
        It bounds how badly any job is treated. It ignores deadlines, and mean completion suffers.
    Deviations from the source
        The auction and its leases are left out: a central decision each round, as in Gavel. `isolated`
        "artifact" is ElasticFlow's version: the time alone is work over the fraction of the requested GPUs,
        without the job's speed. `received` False never counts the time that a job had, as that version does.
        GPUs are of one type.
    """

    name: ClassVar[str] = "themis"
    needs: ClassVar[frozenset[JobNeed]] = frozenset({JobNeed.WORK_LEFT})
    clock: ClassVar[str] = "rounds(period_s=60)"
    isolated: Literal["time", "artifact"] = "time"
    received: bool = True

    def init(self, cluster: GpuCluster, n_jobs: int) -> Isolated:
        """No job was seen."""
        return Isolated(np.zeros(n_jobs), np.full(n_jobs, np.nan), np.zeros(n_jobs))

    def allocate(
        self, jobs: Records, cluster: GpuCluster, now_s: float, speed: Speed, memory: Isolated
    ) -> Allocation:
        """Find x, then serve jobs in its order."""
        n, asked, idx = len(jobs), jobs["gpus_requested"], jobs["job_idx"]
        rate = np.maximum(speed.goodput(jobs, configs(asked)), 1e-300)
        share = np.minimum(np.ceil(cluster.n_gpus / n) / asked, 1.0)
        alone = share * rate if self.isolated == "time" else share
        left = np.maximum(jobs["work_left"], 1e-9)
        seen = ~np.isnan(memory.left[idx])
        done = np.where(seen, memory.left[idx] - left, 0.0)
        memory.elapsed[idx] += np.where(seen, done / np.maximum(memory.rate[idx], 1e-300), 0.0)
        memory.left[idx], memory.rate[idx] = left, alone
        x = fair_fractions(
            jobs["age_s"], left / rate, memory.elapsed[idx] + left / alone, asked, cluster.n_gpus
        )
        key = x
        if self.received:
            had = jobs["run_s"] / np.maximum(jobs["age_s"], 1e-9)
            key = np.where(had > 0, x / np.maximum(had, 1e-9), x * 1e9)
        order = np.argsort(-key, kind="stable")
        return Allocation(counts=given_in_order(jobs, cluster, order, may_pass=True))


def fair_fractions(age_s: Floats, run_s: Floats, isolated: Floats, gpus: Floats, n_gpus: int) -> Floats:
    """Fractions x ≤ 1 with Σ gpus · x ≤ n_gpus that minimise max (age + run / x) / isolated, by bisection.

    For a given ratio rho the least fraction of a job is run / (rho · isolated − age), or 1 where not even
    that is enough. Such a job keeps 1, and rho falls for the others: the solution is lexicographic.
    """
    low = float(((age_s + run_s) / isolated).min())
    if (gpus * _least(low, age_s, run_s, isolated)).sum() <= n_gpus:
        return _least(low, age_s, run_s, isolated)
    high = 2.0 * low
    while (gpus * _least(high, age_s, run_s, isolated)).sum() > n_gpus:
        high *= 2.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2.0
        fits = (gpus * _least(middle, age_s, run_s, isolated)).sum() <= n_gpus
        low, high = (low, middle) if fits else (middle, high)
    return _least(high, age_s, run_s, isolated)


def _least(rho: float, age_s: Floats, run_s: Floats, isolated: Floats) -> Floats:
    room = rho * isolated - age_s
    return np.where(room > run_s, run_s / np.maximum(room, 1e-300), 1.0)
