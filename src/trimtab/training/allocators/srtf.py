"""Shortest remaining time first, preemptive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from trimtab.domain.allocator import Allocation, Allocator, JobNeed, Speed
from trimtab.domain.training_jobs import GpuCluster, Records, configs
from trimtab.training.allocators.shared.in_order import given_in_order


@dataclass(frozen=True)
class ShortestRemainingTimeFirst(Allocator):
    """The job with the least estimated time left goes first, and preempts others.

    Idea
        Sort all jobs by the time that they still need with the GPUs they asked for. With `service` the key is
        that time times the GPUs: shortest remaining service first.
    Source
        Schrage, A proof of the optimality of the shortest remaining processing time discipline, Operations
        Research 16(3), 1968; SRSF: Gu et al., Tiresias, NSDI 2019, §2.
    Reads
        work_left, gpus_requested, estimated speed.
    Cost
        O(jobs log jobs) a decision.
    When it wins / loses
        It wins on mean completion time; on one GPU without restart costs it is optimal. Long jobs can starve.
    Deviations from the source
        Several GPUs a job: one that does not fit is passed over. The time left is an estimate.
    """

    name: ClassVar[str] = "srtf"
    needs: ClassVar[frozenset[JobNeed]] = frozenset({JobNeed.WORK_LEFT})
    service: bool = False

    def allocate(
        self, jobs: Records, cluster: GpuCluster, now_s: float, speed: Speed, memory: Any
    ) -> Allocation:
        """All jobs by time left; among equals the one that runs goes on."""
        rate = speed.goodput(jobs, configs(jobs["gpus_requested"]))
        left_s = jobs["work_left"] / np.maximum(rate, 1e-300)
        key = left_s * jobs["gpus_requested"] if self.service else left_s
        order = np.lexsort((~cluster.runs, key))
        return Allocation(counts=given_in_order(jobs, cluster, order, may_pass=True))
