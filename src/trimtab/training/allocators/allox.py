"""AlloX: jobs to GPUs and places in their queues, by a matching with the least sum of completion times."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from trimtab.domain.parameters import NonNegative
from trimtab.domain.training_jobs import Floats
from trimtab.training.allocators.shared.gavel_mechanism import GavelAllocator, ShareState


@dataclass
class _Placed:
    """Shares given before, by job."""

    share: dict[int, Floats] = field(default_factory=dict)  # [types]


@dataclass(frozen=True)
class AlloX(GavelAllocator):
    """A matching of jobs to (GPU, place from the end of its queue) with the least mean completion time.

    Idea
        A job at place k from the end of a GPU's queue delays itself and those behind it: it costs k times its
        time. A matching of least cost is an optimal schedule of single-GPU jobs on unlike machines. The
        first job of a queue runs to its end.
    Source
        Le et al., AlloX: Compute Allocation in Hybrid Clusters, EuroSys 2020, as in the simulators of Gavel
        (OSDI 2020) and Shockwave (NSDI 2023).
    Reads
        gpus_requested, work_left, age_s, goodput.
    Cost
        O(jobs log jobs) for one type of GPU; for several a matching of jobs with jobs times GPUs places.
    When it wins / loses
        Short mean completion times when sizes are known. Long jobs wait to the end.
    Deviations from the source
        As in Shockwave's version, a job of several GPUs counts as one of a single GPU, with the share
        1 / GPUs. With one type of GPU the matching is in closed form: jobs from longest to shortest fill the
        last places of all queues, then the places before them. `alpha` is the share of the waiting jobs that
        the matching sees, longest in the system first, but as many as there are free GPUs: 1 here and in
        Gavel's simulator, 0.2 in Shockwave's.
    """

    name: ClassVar[str] = "allox"
    alpha: NonNegative = 1.0

    def policy_memory(self, n_jobs: int) -> Any:
        """No job is placed yet."""
        return _Placed()

    def time_shares(self, state: ShareState, memory: Any) -> Floats:
        """Jobs with a whole GPU keep it; the others are matched to the free ones."""
        index = [int(j) for j in state.jobs["job_idx"]]
        types = len(state.type_gpus)
        share = np.array([memory.share.get(job, np.zeros(types)) for job in index]).reshape(-1, types)
        keeps = share.sum(axis=1) == 1.0
        free = state.type_gpus - (share[keeps] == 1.0).sum(axis=0)
        waiting = np.flatnonzero(~keeps)
        oldest = np.argsort(-state.jobs["age_s"][waiting], kind="stable")
        waiting = waiting[oldest[: max(int(self.alpha * len(waiting)), int(free.sum()))]]
        first = _first_of_queues(state, waiting, free)
        for row, t in first:
            share[row, t] = 1.0 / state.gpus[row]
        memory.share = {job: share[row].copy() for row, job in enumerate(index)}
        return share


def _first_of_queues(state: ShareState, waiting: Any, free: Floats) -> list[tuple[int, int]]:
    """Row and type of the jobs that run first on a free GPU."""
    gpus = int(free.sum())
    if not gpus or not len(waiting):
        return []
    if len(free) == 1:
        needs_s = state.jobs["work_left"][waiting] / state.rate[waiting, 0]
        shortest = waiting[np.argsort(needs_s, kind="stable")]
        return [(int(row), 0) for row in shortest[:gpus]]
    return _matched(state, waiting, free)


def _matched(state: ShareState, waiting: Any, free: Floats) -> list[tuple[int, int]]:
    from scipy.optimize import linear_sum_assignment

    gpu_type = np.repeat(np.arange(len(free)), free.astype(np.int64))
    rate = np.maximum(state.rate[waiting][:, gpu_type], 1e-10)
    needs_s = state.jobs["work_left"][waiting][:, None] / rate
    places = -(-len(waiting) // len(gpu_type)) + 1
    cost = np.concatenate([k * needs_s for k in range(1, places + 1)], axis=1)
    rows, columns = linear_sum_assignment(cost)
    first: dict[int, tuple[int, int]] = {}  # GPU → place from the end, row
    for row, column in zip(rows, columns, strict=True):
        place, gpu = divmod(int(column), len(gpu_type))
        if place >= first.get(gpu, (-1, 0))[0]:
            first[gpu] = place, int(waiting[row])
    return [(row, int(gpu_type[gpu])) for gpu, (_, row) in first.items()]
