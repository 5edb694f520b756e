"""Shortest job first: the job with the least estimated run time goes first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from trimtab.domain.allocator import Allocation, Allocator, JobNeed, Speed
from trimtab.domain.training_jobs import GpuCluster, Records, configs
from trimtab.training.allocators.shared.in_order import given_in_order


@dataclass(frozen=True)
class ShortestJobFirst(Allocator):
    """Waiting jobs start in order of their estimated run times; running ones go on.

    Idea
        Of the waiting jobs, the one that would take the least time with the GPUs it asked for starts first.
    Source
        Textbook rule (Smith, Various optimizers for single-stage production, Naval Research Logistics
        Quarterly, 1956), as used for comparison by Gu et al., Tiresias, NSDI 2019.
    Reads
        work_total, gpus_requested, estimated speed.
    Cost
        O(jobs log jobs) a decision.
    When it wins / loses
        It wins on mean completion time without any restart. A long job that runs is never moved aside.
    Deviations from the source
        Several GPUs a job: one that does not fit is passed over.
    """

    name: ClassVar[str] = "sjf"
    needs: ClassVar[frozenset[JobNeed]] = frozenset({JobNeed.WORK_LEFT})

    def allocate(
        self, jobs: Records, cluster: GpuCluster, now_s: float, speed: Speed, memory: Any
    ) -> Allocation:
        """Running jobs first, then by run time."""
        rate = speed.goodput(jobs, configs(jobs["gpus_requested"]))
        run_s = jobs["work_total"] / np.maximum(rate, 1e-300)
        order = np.lexsort((run_s, ~cluster.runs))
        return Allocation(counts=given_in_order(jobs, cluster, order, may_pass=True))
