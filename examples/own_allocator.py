"""An allocator of one's own for training jobs: the job with the least work left goes first.

trimtab compare elastic-training --policy examples/own_allocator.py:ShortestFirst --policy fifo
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

import trimtab as tt
from trimtab.domain.allocator import Allocation, Allocator, JobNeed
from trimtab.domain.training_jobs import configs
from trimtab.training.allocators.shared.in_order import given_in_order


@dataclass(frozen=True)
class ShortestFirst(Allocator):
    """The job with the least seconds left, with the GPUs that it asked for, goes first."""

    name: ClassVar[str] = "shortest-first"
    needs: ClassVar[frozenset[JobNeed]] = frozenset({JobNeed.WORK_LEFT})
    clock: ClassVar[str] = "rounds(period_s=60)"  # a run may take another
    may_pass: bool = True  # a parameter: int, float, bool or str, with a default

    def allocate(self, jobs, cluster, now_s, speed, memory):
        rate = speed.goodput(jobs, configs(jobs["gpus_requested"]))  # 0: it does not run so
        left_s = jobs["work_left"] / np.maximum(rate, 1e-9)
        counts = given_in_order(jobs, cluster, np.argsort(left_s, kind="stable"), may_pass=self.may_pass)
        return Allocation(counts=counts)


if __name__ == "__main__":
    compared = tt.compare("elastic-training", [ShortestFirst(), "fifo"], seeds=1, jobs=1)
    for result in compared.ranked():
        print(f"{result.policy:14} {result.metrics['completion_mean_s'].mean:,.0f} s")
