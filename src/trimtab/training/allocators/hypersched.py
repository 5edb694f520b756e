"""HyperSched-style: jobs that improve fast go on, the others pause; the best get the GPUs that are left."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import numpy as np

from trimtab.domain.allocator import Allocation, Allocator, JobNeed, Speed
from trimtab.domain.parameters import Range
from trimtab.domain.training_jobs import Floats, GpuCluster, Ints, Records, configs
from trimtab.training.allocators.shared.in_order import of_one_type

_WORTH = 1.1  # a change has to bring so many times the progress until the deadline
_CURVE = 9.0  # of the assumed learning curve: half of the way to the end it is at 0.82 of 0.9


@dataclass
class _Rungs:
    """Metrics recorded at each milestone, and the rung that each job has passed."""

    recorded: list[dict[int, float]] = field(default_factory=list)
    least: dict[int, float] = field(default_factory=dict)  # rung → quantile of what is recorded, if known
    passed: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class HyperSched(Allocator):
    """Each job is a trial with a deadline: slow improvers pause at rungs, GPUs left go to the best.

    Idea
        Successive halving: at shares r, r η, r η², … of its work a job's gain of accuracy per GPU second is
        recorded. A job below the (1 − 1/η) quantile of the last rung that it passed is paused: it gets GPUs
        after all others. Every other job gets its fewest GPUs, best first; what is left raises jobs to their
        next level, best job first, if the progress until its deadline, less the restart, grows by a tenth.
    Source
        Liaw et al., HyperSched: Dynamic Resource Reallocation for Model Development on a Deadline, SoCC 2019,
        §4, and the program published with it. "-style": as a scheduler of a cluster, as MLFS (CoNEXT 2020)
        compares with it.
    Reads
        goodput, work_left, work_total, attained_gpu_s, deadline_s, restart_s, gpus_min, gpus_max.
    Cost
        O(jobs log jobs + GPUs · jobs) a decision.
    When it wins / loses
        Good where accuracy by a deadline counts more than finishing. Jobs near their end improve slowly, so
        they pause when others are new: completion times are long.
    Deviations from the source
        One application becomes a cluster: each job has its own deadline; without one the time left is what
        the job needs with its fewest GPUs. Accuracy is not recorded: it is taken as 1 − 1 / (1 + 9 x) with x
        the share of work done. Jobs are paused, never stopped; jobs past their deadline come last. Of the
        policies for GPUs that are left only "all to the best" is built. Restarts cost what the run says, not
        the 90th percentile of those observed.
    """

    name: ClassVar[str] = "hypersched"
    needs: ClassVar[frozenset[JobNeed]] = frozenset({JobNeed.SCALING, JobNeed.WORK_LEFT})
    keeps_gangs: ClassVar[bool] = False
    clock: ClassVar[str] = "rounds(period_s=60)"
    eta: Annotated[int, Range(2)] = 4
    first_frac: Annotated[float, Range(0.0, 1.0, excludes_least=True)] = (
        0.015625  # of the work: the first rung
    )

    def init(self, cluster: GpuCluster, n_jobs: int) -> Any:
        """No rung has been reached."""
        return _Rungs()

    def allocate(
        self, jobs: Records, cluster: GpuCluster, now_s: float, speed: Speed, memory: Any
    ) -> Allocation:
        """Fewest GPUs in order of merit, then the rest to the best."""
        done_frac = 1.0 - jobs["work_left"] / np.maximum(jobs["work_total"], 1e-12)
        gain = 1.0 - 1.0 / (1.0 + _CURVE * np.maximum(done_frac, 0.0))
        new = jobs["attained_gpu_s"] <= 0
        merit = np.where(new, np.inf, gain / np.maximum(jobs["attained_gpu_s"], 1e-9))
        paused = self._paused(jobs, done_frac, merit, memory)
        late = jobs["deadline_s"] <= now_s
        order = np.lexsort((jobs["job_idx"], -merit, paused, late))
        least = np.where(jobs["scales"], np.maximum(jobs["gpus_min"], 1), jobs["gpus_requested"])
        free, chosen = cluster.n_gpus, np.zeros(len(jobs), np.int64)
        for row in order:
            if least[row] <= free:
                chosen[row] = least[row]
                free -= int(least[row])
        self._raise(jobs, order, chosen, free, now_s, speed)
        return Allocation(counts=of_one_type(chosen, cluster))

    def _paused(self, jobs: Records, done_frac: Floats, merit: Floats, memory: _Rungs) -> Ints:
        """1 for jobs below the quantile of the last rung that they passed."""
        paused = np.zeros(len(jobs), np.int64)
        for row, job in enumerate(jobs["job_idx"].tolist()):
            rung = memory.passed.get(job, -1)
            while done_frac[row] >= self.first_frac * self.eta ** (rung + 1):
                rung += 1
                if len(memory.recorded) <= rung:
                    memory.recorded.append({})
                memory.recorded[rung][job] = float(merit[row])
                memory.least.pop(rung, None)
            memory.passed[job] = rung
            if rung >= 0:
                known = memory.recorded[rung]
                if rung not in memory.least:
                    memory.least[rung] = float(np.quantile(list(known.values()), 1.0 - 1.0 / self.eta))
                paused[row] = known[job] < memory.least[rung]
        return paused

    def _raise(self, jobs: Records, order: Ints, chosen: Ints, free: int, now_s: float, speed: Speed) -> None:
        """Levels up for the best jobs while that is worth a restart, in place."""
        rows = order[jobs["scales"][order] & (chosen[order] > 0)]
        if free <= 0 or not len(rows):
            return
        least, most = chosen[rows], jobs["gpus_max"][rows]
        doublings = np.arange(int((most // least).max()).bit_length() + 1)
        levels = np.minimum(least[:, None] << doublings, most[:, None])
        rates = speed.goodput(jobs[rows, None], configs(levels)).tolist()
        for row, rate in zip(rows.tolist(), rates, strict=True):
            job = jobs[row]
            for now, then in itertools.pairwise(rate):
                level = 2 * int(chosen[row])
                if level > job["gpus_max"] or level - chosen[row] > free:
                    break
                needed_s = float(job["work_left"]) / max(now, 1e-12)
                left_s = min(max(float(job["deadline_s"]) - now_s, 0.0), needed_s)
                if then * (left_s - float(job["restart_s"])) <= _WORTH * now * left_s:
                    break
                free -= level - int(chosen[row])
                chosen[row] = level
