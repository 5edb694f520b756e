"""First in, first out: each job gets what it asked for, in order of arrival."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from trimtab.domain.allocator import Allocation, Allocator, Speed
from trimtab.domain.training_jobs import GpuCluster, Ints, Records
from trimtab.training.allocators.shared.in_order import given_in_order


@dataclass(frozen=True)
class Fifo(Allocator):
    """Each job gets the GPUs that it asked for, in order of arrival, and keeps them to its end.

    Idea
        A queue. The first job that does not fit holds up those behind it, unless they may pass.
    Source
        No single one; the baseline of Gu et al., Tiresias: A GPU Cluster Manager for Distributed Deep
        Learning, NSDI 2019, §2, and of YARN's capacity scheduler.
    Reads
        submit_s, gpus_requested.
    Cost
        O(jobs) a decision.
    When it wins / loses
        Wins nothing but simplicity: no job starves, none is preempted. Short jobs wait behind long ones.
    Deviations from the source
        `backfill` lets later jobs pass one that does not fit, without reserving GPUs for it.
    """

    name: ClassVar[str] = "fifo"
    backfill: bool = False

    def allocate(
        self, jobs: Records, cluster: GpuCluster, now_s: float, speed: Speed, memory: Any
    ) -> Allocation:
        """Running jobs go on; waiting ones start while they fit."""
        runs = cluster.runs
        order = np.argsort(~runs, kind="stable")
        counts: Ints = given_in_order(jobs, cluster, order, may_pass=self.backfill)
        return Allocation(counts=counts)
