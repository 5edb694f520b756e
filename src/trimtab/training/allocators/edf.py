"""Earliest deadline first, elastic: the most urgent job takes all the GPUs that it can use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from trimtab.domain.allocator import Allocation, Allocator, JobNeed, Speed
from trimtab.domain.training_jobs import GpuCluster, Records
from trimtab.training.levels import levels_within


@dataclass(frozen=True)
class EarliestDeadlineFirst(Allocator):
    """Jobs in order of their deadlines, each with as many GPUs as it can use and are free.

    Idea
        Sort by deadline. Each job takes its largest number of GPUs, or what is left; none is refused.
    Source
        The baseline "EDF" of Gu et al., ElasticFlow: An Elastic Serverless Training Platform for Distributed
        Deep Learning, ASPLOS 2023, §6, and its artifact.
    Reads
        deadline_s, gpus_max, the levels of the speed estimate.
    Cost
        O(jobs log jobs) a decision.
    When it wins / loses
        It wins while all deadlines can be met. Under overload it spends GPUs on jobs that come too late, and
        the many GPUs that it gives one job add little speed.
    Deviations from the source
        None. The artifact charges this baseline no restarts; that is the run's restart cost.
    """

    name: ClassVar[str] = "edf"
    needs: ClassVar[frozenset[JobNeed]] = frozenset({JobNeed.DEADLINES})
    keeps_gangs: ClassVar[bool] = False
    clock: ClassVar[str] = "events(slot_s=60)"
    placement: ClassVar[str] = "buddy"

    def allocate(
        self, jobs: Records, cluster: GpuCluster, now_s: float, speed: Speed, memory: Any
    ) -> Allocation:
        """The largest level that is free, in order of deadlines."""
        counts = np.zeros((len(jobs), len(cluster.type_names)), np.int64)
        t = int(np.argmax(cluster.type_gpus))
        free = int(cluster.type_gpus[t])
        for row in np.argsort(jobs["deadline_s"], kind="stable"):
            if free <= 0:
                break
            most = int(min(free, jobs["gpus_max"][row]))
            given = levels_within(speed, most) if jobs["scales"][row] else int(jobs["gpus_requested"][row])
            if jobs["gpus_min"][row] <= given <= free:
                counts[row, t] = given
                free -= given
        return Allocation(counts=counts)
