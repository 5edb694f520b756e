"""An allocator that gives each job GPUs by how far it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from trimtab.domain.allocator import Allocation, Allocator, Speed
from trimtab.domain.training_jobs import GpuCluster, Records


@dataclass(frozen=True)
class ByProgress(Allocator):
    """`script` 0:1/0.3:2 = one GPU from the begin, two from 30 % of the job's work on; looks often."""

    script: str = "0:1"

    def allocate(
        self, jobs: Records, cluster: GpuCluster, now_s: float, speed: Speed, memory: Any
    ) -> Allocation:
        phases = [tuple(map(float, part.split(":"))) for part in self.script.split("/")]
        done_frac = 1.0 - jobs["work_left"] / jobs["work_total"]
        counts = np.zeros((len(jobs), 1), np.int64)
        for from_frac, gpus in phases:
            counts[done_frac >= from_frac, 0] = int(gpus)
        counts[:, 0] = np.minimum(counts[:, 0], np.minimum(jobs["gpus_max"], cluster.n_gpus))
        free = np.cumsum(counts[:, 0]) <= cluster.n_gpus
        return Allocation(counts=counts * free[:, None], wake_s=now_s + 0.05)
