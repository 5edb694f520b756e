"""Tiresias with the Gittins index: the job likeliest to end soon for the service it takes goes first."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import numpy as np

from trimtab.domain.allocator import Allocation, Allocator, Speed
from trimtab.domain.parameters import Count, NumberList, Positive
from trimtab.domain.training_jobs import Floats, GpuCluster, Records
from trimtab.training.allocators.shared.in_order import given_in_order

SIZES = NumberList("/", may_be_empty=True)


@dataclass
class Sizes:
    """GPU seconds of jobs that ended, and of those that are still here."""

    ended: list[float] = field(default_factory=list)
    active: dict[int, float] = field(default_factory=dict)  # job_idx → GPU seconds when last seen
    rate: dict[int, int] = field(default_factory=dict)  # job_idx → GPUs held since then
    at_s: float = 0.0


@dataclass(frozen=True)
class TiresiasGittins(Allocator):
    """Least attained service, weighed by what is known of sizes: the 2D-Gittins index.

    Idea
        Sizes are GPU seconds. The index of a job that received a is the largest, over further service Δ, of
        P(S − a ≤ Δ | S > a) / E[min(S − a, Δ) | S > a]: chances to end for each GPU second spent. S is the
        distribution of the sizes of jobs that ended. Highest index first; service counts in whole quanta, so
        that jobs do not swap places all the time.
    Source
        Gu et al., Tiresias: A GPU Cluster Manager for Distributed Deep Learning, NSDI 2019, §3.2 and §3.3;
        the index after Gittins, Bandit Processes and Dynamic Allocation Indices, Journal of the Royal
        Statistical Society B 41(2), 1979.
    Reads
        attained_gpu_s, gpus_requested, submit_s.
    Cost
        O(jobs · ended jobs) a decision.
    When it wins / loses
        Lowest mean completion where sizes follow a distribution that stays. It has no use for deadlines.
    Deviations from the source
        The source reads a file of sizes; here they are `sizes` ("600/3600/…", GPU seconds), or, when that is
        empty, those of jobs that ended in this run; with fewer than `least_known` of them the order is least
        attained service. The best Δ is found exactly: it is one of the sizes. A quantum takes the place of
        the queues' thresholds, within one quantum jobs go by submission. Who does not fit is passed over.
    """

    name: ClassVar[str] = "tiresias-gittins"
    clock: ClassVar[str] = "events(slot_s=60)"
    sizes: Annotated[str, SIZES] = ""
    quantum_gpu_s: Positive = 3600.0
    least_known: Count = 10

    def init(self, cluster: GpuCluster, n_jobs: int) -> Sizes:
        """The sizes given."""
        return Sizes(SIZES.numbers(self.sizes))

    def allocate(
        self, jobs: Records, cluster: GpuCluster, now_s: float, speed: Speed, memory: Sizes
    ) -> Allocation:
        """Learn from those that ended, then serve by index."""
        self._learn(memory, jobs, now_s)
        attained = np.floor(jobs["attained_gpu_s"] / self.quantum_gpu_s) * self.quantum_gpu_s
        known = np.sort(memory.ended)
        if len(known) < (1 if self.sizes else self.least_known):
            key = attained
        else:
            key = -np.array([gittins_index(known, a) for a in attained.tolist()])
        order = np.argsort(key, kind="stable")
        counts = given_in_order(jobs, cluster, order, may_pass=True)
        given = counts.sum(axis=1)
        memory.rate = dict(zip(jobs["job_idx"].tolist(), given.tolist(), strict=True))
        left = attained + self.quantum_gpu_s - jobs["attained_gpu_s"]
        runs = given > 0
        wake_s = now_s + float((left[runs] / given[runs]).min()) if runs.any() else float("inf")
        return Allocation(counts=counts, wake_s=wake_s)

    def _learn(self, memory: Sizes, jobs: Records, now_s: float) -> None:
        now = dict(zip(jobs["job_idx"].tolist(), jobs["attained_gpu_s"].tolist(), strict=True))
        if not self.sizes:
            for job in memory.active.keys() - now.keys():
                memory.ended.append(memory.active[job] + memory.rate.get(job, 0) * (now_s - memory.at_s))
        memory.active, memory.at_s = now, now_s


def gittins_index(sizes: Any, attained: float) -> float:
    """Index after so much service, from equally likely sizes in ascending order; 0 beyond the largest."""
    left: Floats = np.asarray(sizes, np.float64) - attained
    left = left[left > 0]
    if not len(left):
        return 0.0
    n = len(left)
    ends = np.arange(1, n + 1)
    cost = np.cumsum(left) + (n - ends) * left
    return float((ends / cost).max())
