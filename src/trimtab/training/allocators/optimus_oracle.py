"""Optimus with an oracle: each further GPU goes to the job whose remaining time it shortens most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from trimtab.domain.allocator import Allocation, Allocator, JobNeed, Speed
from trimtab.domain.training_jobs import GpuCluster, Records, configs
from trimtab.training.allocators.shared.marginal_gains import gains_of, least_and_most, raised


@dataclass(frozen=True)
class OptimusOracle(Allocator):
    """Every job gets one GPU; each further one goes to the job whose remaining time it shortens most.

    Idea
        Remaining time is work left over speed, both known exactly. The gain of a GPU is the reduction of that
        time; GPUs are given one by one to the largest gain, until none is left or no gain is positive.
    Source
        Peng et al., Optimus: An Efficient Dynamic Resource Scheduler for Deep Learning Clusters, EuroSys
        2018, §4.1; the form for GPUs with exact remaining time is the baseline "Optimus+Oracle" of Qiao et
        al., Pollux, OSDI 2021, §5.2.
    Reads
        work_left and goodput, both true; gpus_max.
    Cost
        O(jobs · GPUs) for the estimates, O(GPUs log jobs) for the choice.
    When it wins / loses
        Short mean completion times where speeds are concave. It knows no cost of restarts, and so restarts
        jobs often; it stops at the first GPU without gain even if two more would bring one.
    Deviations from the source
        The paper's jobs have parameter servers and workers, and their remaining work is extrapolated from the
        loss curve; here, as in Pollux's artifact, GPUs only and an oracle. Jobs that can't be given a GPU
        wait, in order of arrival.
    """

    name: ClassVar[str] = "optimus-oracle"
    needs: ClassVar[frozenset[JobNeed]] = frozenset({JobNeed.ORACLE, JobNeed.SCALING})
    keeps_gangs: ClassVar[bool] = False
    clock: ClassVar[str] = "rounds(period_s=60)"
    placement: ClassVar[str] = "spread"

    def allocate(
        self, jobs: Records, cluster: GpuCluster, now_s: float, speed: Speed, memory: Any
    ) -> Allocation:
        """Grant GPUs one by one."""
        free = cluster.n_gpus
        least, most = least_and_most(jobs, free)
        counts = np.where(np.cumsum(least) <= free, least, 0)
        free -= int(counts.sum())
        if free > 0:
            gpus = np.arange(1, cluster.n_gpus + 1)
            ways = configs(gpus, nodes=-(-gpus // cluster.gpus_per_node))
            with np.errstate(divide="ignore", invalid="ignore"):
                seconds = 1.0 / speed.goodput(jobs[:, None], ways[None, :])
                gain = gains_of(seconds) * jobs["work_left"][:, None]
            counts = raised(counts, most, free, np.where(np.isfinite(gain), gain, -np.inf))
        return Allocation(counts=counts[:, None])
