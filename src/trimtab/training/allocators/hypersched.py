"""HyperSched-style: jobs that improve fast go on, the others pause; the best get the GPUs that are left."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

import numpy as np

from trimtab.compiled.elementwise import elementwise
from trimtab.domain.allocator import Allocation, Allocator, JobNeed, Losses, Speed
from trimtab.domain.parameters import Natural, Range
from trimtab.domain.training_jobs import Flags, Floats, GpuCluster, Ints, Records, configs
from trimtab.training.allocators.shared.in_order import of_one_type
from trimtab.training.allocators.shared.seen_losses import seen_losses

_WORTH = 1.1  # a change has to bring so many times the progress until the deadline


@dataclass
class Trials:
    """Metrics recorded at each milestone, and what each job has passed."""

    rng: np.random.Generator
    recorded: list[dict[int, float]] = field(default_factory=list)
    least: dict[int, float] = field(default_factory=dict)  # rung → quantile of what is recorded, if known
    passed: dict[int, int] = field(default_factory=dict)
    raised_at: dict[int, int] = field(default_factory=dict)  # job → epochs when it last got more GPUs


@dataclass(frozen=True)
class HyperSched(Allocator):
    """Each job is a trial with a deadline: slow improvers pause at rungs, GPUs left go to the best.

    Idea
        Successive halving: at shares r, r η, r η², … of its work a job's metric is recorded. A job below the
        (1 − 1/η) quantile of the last rung that it passed is paused: it gets GPUs after all others. Every
        other job gets its fewest GPUs, best first. What is left raises jobs to their next level, if the
        progress until the deadline, less the restart, grows by a tenth: all to the best job ("top"), in turns
        from the best on ("uniform"), by the softmax of accuracies ("softmax"), or at random ("random").
    Source
        Liaw et al., HyperSched: Dynamic Resource Reallocation for Model Development on a Deadline, SoCC 2019,
        §4, and the program published with it. "-style": as a scheduler of a cluster, as MLFS (CoNEXT 2020)
        compares with it.
    Reads
        losses, goodput, work_left, work_total, attained_gpu_s, run_s, deadline_s, restart_s, gpus_min,
        gpus_max.
    Cost
        O(jobs log jobs + GPUs · jobs) a decision.
    When it wins / loses
        Good where accuracy by a deadline counts more than finishing. Jobs near their end improve slowly, so
        they pause when others are new: completion times are long.
    Deviations from the source
        Accuracy is 1 − loss; of jobs that report no losses, 1 − 1 / (1 + 9 x) after the share x of the work.
        `metric` "accuracy" is the source's, for the trials of one application; "gain" is accuracy per GPU
        second, since accuracies of different models do not compare. A cluster's jobs have deadlines of their
        own; without one the time left is what the job needs with its fewest GPUs. Jobs past their deadline
        come last. With `stops`, as in the source, no trial is new or resumed when the latest deadline is
        nearer than both η times the longest run so far and a median trial's work on its fewest GPUs: paused
        and waiting jobs are then stopped. Restarts cost what the run says, not the 90th percentile of those
        observed.
    """

    name: ClassVar[str] = "hypersched"
    needs: ClassVar[frozenset[JobNeed]] = frozenset({JobNeed.SCALING, JobNeed.WORK_LEFT})
    keeps_gangs: ClassVar[bool] = False
    clock: ClassVar[str] = "rounds(period_s=60)"
    eta: Annotated[int, Range(2)] = 4
    first_frac: Annotated[float, Range(0.0, 1.0, excludes_least=True)] = (
        0.015625  # of the work: the first rung
    )
    metric: Literal["gain", "accuracy"] = "gain"
    rest: Literal["top", "uniform", "softmax", "random"] = "top"  # who gets the GPUs that are left
    recharge: Natural = 5  # epochs that a job ends before it gets more GPUs again
    stops: bool = False
    seed: Natural = 0

    def init(self, cluster: GpuCluster, n_jobs: int) -> Trials:
        """No rung has been reached."""
        return Trials(np.random.default_rng([self.seed, 17]))

    def allocate(
        self, jobs: Records, cluster: GpuCluster, now_s: float, speed: Speed, memory: Trials
    ) -> Allocation:
        """Fewest GPUs in order of merit, then the rest by the rule."""
        told = seen_losses(jobs, speed)
        done_frac = 1.0 - jobs["work_left"] / np.maximum(jobs["work_total"], 1e-12)
        accuracy = np.array([1.0 - losses.loss[-1] if len(losses.loss) else 0.0 for losses in told])
        gain = accuracy if self.metric == "accuracy" else accuracy / np.maximum(jobs["attained_gpu_s"], 1e-9)
        merit = np.where(jobs["attained_gpu_s"] <= 0, np.inf, gain)
        paused = self._paused(jobs, done_frac, merit, memory)
        late = jobs["deadline_s"] <= now_s
        order = np.lexsort((jobs["job_idx"], -merit, paused, late))
        least = np.where(jobs["scales"], np.maximum(jobs["gpus_min"], 1), jobs["gpus_requested"])
        over = self._over(jobs, paused, least, now_s, speed) if self.stops else np.zeros(len(jobs), np.bool_)
        free, chosen = cluster.n_gpus, np.zeros(len(jobs), np.int64)
        for row in order[~over[order]]:
            if least[row] <= free:
                chosen[row] = least[row]
                free -= int(least[row])
        held = cluster.held.sum(axis=1)
        self._raise(jobs, told, order, chosen, free, held, accuracy, now_s, speed, memory)
        stopped = {int(row): "no time is left for this trial" for row in np.flatnonzero(over)}
        return Allocation(counts=of_one_type(chosen, cluster), stopped=stopped)

    def _paused(self, jobs: Records, done_frac: Floats, merit: Floats, memory: Trials) -> Flags:
        """Whether each job is below the quantile of the last rung that it passed."""
        paused = np.zeros(len(jobs), np.bool_)
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

    def _over(self, jobs: Records, paused: Flags, least: Ints, now_s: float, speed: Speed) -> Flags:
        """Jobs that the end of exploration stops: paused ones, and those that never ran."""
        due_s = jobs["deadline_s"][np.isfinite(jobs["deadline_s"])]
        if not len(due_s):
            return np.zeros(len(jobs), np.bool_)
        rate = np.maximum(speed.goodput(jobs, configs(least)), 1e-300)
        longest_s = float((jobs["run_s"] - jobs["restart_s"]).max())
        whole_s = float(np.median(jobs["work_total"] / rate))
        is_over = due_s.max() - now_s < min(self.eta * longest_s, whole_s)
        over: Flags = is_over & (paused | (jobs["run_s"] <= 0))
        return over if not over.all() else np.zeros(len(jobs), np.bool_)

    def _raise(
        self,
        jobs: Records,
        told: list[Losses],
        order: Ints,
        chosen: Ints,
        free: int,
        held: Ints,
        accuracy: Floats,
        now_s: float,
        speed: Speed,
        memory: Trials,
    ) -> None:
        """Levels up by the rule while that is worth a restart, in place."""
        rows = order[jobs["scales"][order] & (chosen[order] > 0)]
        if free <= 0 or not len(rows):
            return
        begun = chosen.copy()
        doublings = np.arange(int((jobs["gpus_max"][rows] // chosen[rows]).max()).bit_length() + 1)
        levels = np.minimum(chosen[rows, None] << doublings, jobs["gpus_max"][rows, None])
        rates = dict(zip(rows.tolist(), speed.goodput(jobs[rows, None], configs(levels)), strict=True))

        def step(row: int) -> int:
            """GPUs that the job's next level needs more; 0 = it has none, or it is not worth it."""
            level, at = 2 * int(chosen[row]), int(chosen[row] // begun[row]).bit_length() - 1
            if level > jobs["gpus_max"][row]:
                return 0
            if level > held[row]:
                job = int(jobs["job_idx"][row])
                since = len(told[row].work) - memory.raised_at.get(job, -self.recharge)
                if since < self.recharge or not self._is_worth(jobs[row], rates[row][at : at + 2], now_s):
                    return 0
            return level - int(chosen[row])

        allotted = self._allotted(rows, chosen, free, accuracy)
        for row in self._turns(rows, step, memory):
            more = step(row)
            if 0 < more <= free and chosen[row] + more <= allotted[row]:
                chosen[row] += more
                free -= more
        for raised in np.flatnonzero((chosen > held) & (chosen > begun)).tolist():
            memory.raised_at[int(jobs["job_idx"][raised])] = len(told[raised].work)

    @staticmethod
    def _is_worth(job: Records, rates: Floats, now_s: float) -> bool:
        now, then = float(rates[0]), float(rates[1])
        needed_s = float(job["work_left"]) / max(now, 1e-12)
        left_s = min(max(float(job["deadline_s"]) - now_s, 0.0), needed_s)
        return then * (left_s - float(job["restart_s"])) > _WORTH * now * left_s

    def _allotted(self, rows: Ints, chosen: Ints, free: int, accuracy: Floats) -> Floats:
        """Most GPUs of each job by its part of what is left, [jobs]."""
        most = np.full(len(chosen), np.inf)
        if self.rest == "softmax":
            weight = elementwise(math.exp, accuracy[rows] - accuracy[rows].max())
            most[rows] = chosen[rows] + free * weight / weight.sum()
        return most

    def _turns(self, rows: Ints, step: Callable[[int], int], memory: Trials) -> list[int]:
        """Jobs in the order in which levels are offered to them; one that takes several is there as often."""
        often = 20  # doublings; more than any job can have
        if self.rest == "uniform":
            return rows.tolist() * often
        if self.rest == "random":
            open_rows = [row for row in rows.tolist() if step(row)]
            return [int(row) for row in memory.rng.permutation(open_rows * often)]
        return [row for row in rows.tolist() for _ in range(often)]
