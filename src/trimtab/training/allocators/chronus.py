"""Chronus: leases; jobs with deadlines are admitted if all admitted ones can be packed into leases."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Final, Literal

import numpy as np

from trimtab.domain.allocator import Allocation, Allocator, JobNeed, Speed
from trimtab.domain.parameters import Count, Fraction, NumberList, Positive
from trimtab.domain.training_jobs import Flags, Floats, GpuCluster, Ints, Records, configs
from trimtab.training.allocators.shared.lease_programme import LeaseProblem, leases_of_jobs

LATER: Final = NumberList("/", may_be_empty=True)
_REFUSED: Final = -1


@dataclass
class Accepted:
    """The state of a run. Leases are counted from time 0."""

    promised: dict[int, int] = field(default_factory=dict)  # job → leases before its promise; -1 = refused
    plan: dict[int, set[int]] = field(default_factory=dict)  # job → leases; of the last programme


@dataclass(frozen=True)
class Chronus(Allocator):
    """Deadline jobs hold whole leases, packed as late as their deadlines allow; others fill what is spare.

    Idea
        Time is cut into leases. A job needs so many of them before its deadline. It is accepted if a greedy
        packer finds leases for all accepted jobs and it. Which accepted jobs hold a lease is an integer
        programme: the largest value of the deadlines met, then as much work in the next lease as possible
        ("maximize") or as little ("minimize"). Spare GPUs go to jobs that were not accepted or have no
        deadline, smallest remaining service first.
    Source
        Gao et al., Chronus: A Novel Deadline-aware Scheduler for Deep Learning Training Jobs, SoCC 2021, and
        its artifact; the copy in ElasticFlow's artifact uses leases of 240 s.
    Reads
        deadline_s, submit_s, work_left, gpus_requested, estimated speed.
    Cost
        O(jobs · leases) for each new job and each lease with the packer. A programme of O(jobs · deadlines)
        integers when accepted jobs came or went or are late, at most `time_limit_s`.
    When it wins / loses
        It keeps the promises that it makes, and rarely preempts. GPU counts never change, so deadlines
        shorter than the run time with the requested GPUs are out of reach.
    Deviations from the source
        The programme counts leases between two deadlines, since these are alike, in place of one binary for
        each job and lease, and is solved by HiGHS, not Gurobi; its plan holds until accepted jobs come or go
        or one lacks leases. Where HiGHS finds nothing in time, and with `select` "greedy", the packer of the
        admission selects. `objective` "adaptive" maximises unless a deadline job was not accepted. Soft
        deadlines: with `later` "1.5/2" every job still has value at 1.5 and 2 times the time that it was
        given, each time `later_value` of the value before; the source reads such a list for each job.
        `extends`: a job that fits before none of its deadlines is promised the first later one that does, as
        by the source's server. Where GPUs lie is the run's placement rule; the artifact chooses among shapes
        by their speed.
    """

    name: ClassVar[str] = "chronus"
    needs: ClassVar[frozenset[JobNeed]] = frozenset({JobNeed.DEADLINES, JobNeed.WORK_LEFT})
    clock: ClassVar[str] = "leases(term_s=240)"
    term_s: Positive = 240.0
    margin: Positive = 1.1  # of estimated run times
    objective: Literal["adaptive", "maximize", "minimize"] = "adaptive"
    horizon_leases: Count = 4000  # deadlines further away count as this far
    select: Literal["programme", "greedy"] = "programme"
    time_limit_s: Positive = 5.0  # of a programme
    later: Annotated[str, LATER] = ""  # times of the time given: further deadlines, of less value
    later_value: Fraction = 0.5  # of the value before, that each of them has
    extends: bool = False

    def init(self, cluster: GpuCluster, n_jobs: int) -> Accepted:
        """No job was accepted."""
        return Accepted()

    def allocate(
        self, jobs: Records, cluster: GpuCluster, now_s: float, speed: Speed, memory: Accepted
    ) -> Allocation:
        """Accept new jobs, then give the next lease."""
        gpus = jobs["gpus_requested"].astype(np.int64)
        now = math.floor(now_s / self.term_s)
        need, last = self._leases(jobs, speed, now)
        self._accept(jobs, gpus, need, last, cluster.n_gpus, memory, now)
        promised = np.array([memory.promised.get(j, _REFUSED) for j in jobs["job_idx"].tolist()], np.int64)
        until = np.clip(promised - now, 0, self.horizon_leases)
        accepted: Flags = promised != _REFUSED
        is_refused = np.isfinite(jobs["deadline_s"]) & ~accepted
        saves = self.objective == "minimize" or (self.objective == "adaptive" and is_refused.any())
        rows = np.flatnonzero(accepted)
        must = np.zeros(len(jobs), np.bool_)

        def programme() -> list[Ints] | None:
            ends = np.maximum(last[rows], until[rows, None])
            ends[:, 0] = np.where(last[rows, 0] > 0, last[rows, 0], until[rows])
            steps = np.cumprod([1.0] + [self.later_value] * (ends.shape[1] - 1))
            value = np.broadcast_to(steps, ends.shape)
            problem = LeaseProblem(
                gpus[rows], need[rows], np.maximum.accumulate(ends, axis=1), value, cluster.n_gpus,
                -1 if saves else 1,
            )  # fmt: skip
            return leases_of_jobs(problem, self.time_limit_s)

        if len(rows) and self.select == "programme" and self._plan(jobs, rows, need, memory, now, programme):
            must[rows] = [now in memory.plan[j] for j in jobs["job_idx"][rows].tolist()]
        else:
            _, must[rows] = packed(gpus[rows], need[rows], until[rows], cluster.n_gpus)
        left_gpu_s = need * gpus
        waits = accepted & ~must & (need <= until)
        group = np.where(must, 0, np.where(waits, 3 if saves else 1, 2))
        key = np.where(waits, until - need, left_gpu_s)
        order = np.lexsort((~cluster.runs, key, group))
        counts = np.zeros((len(jobs), len(cluster.type_names)), np.int64)
        free = cluster.n_gpus
        for row in order:
            if group[row] < 3 and gpus[row] <= free:
                counts[row, 0] = gpus[row]
                free -= int(gpus[row])
        return Allocation(counts=counts, admitted=rows)

    def _plan(
        self,
        jobs: Records,
        rows: Ints,
        need: Ints,
        memory: Accepted,
        now: int,
        programme: Callable[[], list[Ints] | None],
    ) -> bool:
        """Have a plan of the accepted jobs [rows], anew if the last one does not do."""
        index = jobs["job_idx"][rows].tolist()
        left = [sum(lease >= now for lease in memory.plan.get(j, ())) for j in index]
        if memory.plan.keys() == set(index) and (np.array(left) >= need[rows]).all():
            return True
        found = programme()
        memory.plan = {}
        if found is None:
            return False
        memory.plan = {j: set((now + held).tolist()) for j, held in zip(index, found, strict=True)}
        return True

    def _leases(self, jobs: Records, speed: Speed, now: int) -> tuple[Ints, Ints]:
        """Leases that each job needs, [jobs], and those before each of its deadlines, [jobs, deadlines]."""
        gpus = jobs["gpus_requested"]
        rate = np.maximum(speed.goodput(jobs, configs(gpus)), 1e-300)
        widths = np.array([math.log2(g) for g in gpus.tolist()])
        switch = 1.0 + (1.0 + widths) * 0.5 / self.term_s
        need = np.ceil(jobs["work_left"] / rate * switch * self.margin / self.term_s)
        times = np.array([1.0, *LATER.numbers(self.later)])
        given_s = (jobs["deadline_s"] - jobs["submit_s"])[:, None] * times
        until: Floats = np.floor((jobs["submit_s"][:, None] + given_s) / self.term_s) - now
        return need.astype(np.int64), np.clip(until, 0, self.horizon_leases).astype(np.int64)

    def _accept(
        self,
        jobs: Records,
        gpus: Ints,
        need: Ints,
        last: Ints,
        n_gpus: int,
        memory: Accepted,
        now: int,
    ) -> None:
        """Promise each new job the first of its deadlines before which it fits beside those accepted."""
        idx = jobs["job_idx"].tolist()
        kept = [row for row, j in enumerate(idx) if memory.promised.get(j, _REFUSED) != _REFUSED]
        until = np.array([memory.promised.get(j, now) for j in idx], np.int64) - now
        for row, j in enumerate(idx):
            if j in memory.promised:
                continue
            memory.promised[j] = _REFUSED
            rows = np.array([*kept, row], np.int64)

            def fits(before: int, row: int = row, rows: Ints = rows) -> bool:
                until[row] = before
                limits = np.clip(until[rows], 0, self.horizon_leases)
                return bool(need[row] <= before and packed(gpus[rows], need[rows], limits, n_gpus)[0][-1])

            if not math.isfinite(jobs["deadline_s"][row]) or gpus[row] > n_gpus:
                continue
            before = next((int(m) for m in last[row] if fits(int(m))), -1)
            if before < 0 and self.extends:
                before = _first_fit(fits, int(last[row, -1]), self.horizon_leases)
            if before >= 0:
                memory.promised[j], until[row] = now + before, before
                kept.append(row)


def _first_fit(fits: Callable[[int], bool], low: int, high: int) -> int:
    """The least number of leases above `low` that fits, by bisection; -1 = not even the most."""
    if not fits(high):
        return -1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def packed(gpus: Ints, need: Ints, last: Ints, n_gpus: int) -> tuple[Flags, Flags]:
    """Pack jobs into leases as late as possible; returns who fits entirely, and who holds the first lease.

    Widest first, then least slack, then latest deadline. The last job of the arrays is on trial: it fits only
    if all do.
    """
    free = np.full(max(int(last.max(initial=0)), 1), n_gpus, np.int64)
    fits, first = np.zeros(len(gpus), np.bool_), np.zeros(len(gpus), np.bool_)
    for i in np.lexsort((-last, last - need, -gpus)):
        room = np.flatnonzero(free[: last[i]] >= gpus[i])
        taken = room[max(len(room) - int(need[i]), 0) :]
        free[taken] -= gpus[i]
        fits[i] = len(taken) >= need[i]
        first[i] = bool(len(taken)) and taken[0] == 0
    if len(gpus) and not fits.all():
        fits[-1] = False
    return fits, first
