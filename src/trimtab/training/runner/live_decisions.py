"""Decisions of an allocator about real jobs: what it sees, when it is asked, and what it wants."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from trimtab.domain.allocator import Allocation, Allocator
from trimtab.domain.training_jobs import Floats, GpuCluster, Held, Ints, Workload, gpu_nodes
from trimtab.errors import PolicyError
from trimtab.training.allocator_catalogue import refuse_unmet
from trimtab.training.clocks import Clock
from trimtab.training.decisions import Decider
from trimtab.training.gang_placement import PlacementRule
from trimtab.training.job_records import JobRecords
from trimtab.training.job_states import JobStates
from trimtab.training.plain_estimates import no_services
from trimtab.training.progress import Running
from trimtab.training.runner.adaptive_speed import AdaptiveSpeed
from trimtab.training.runner.batch_plan import BatchPlan
from trimtab.training.runner.rank_protocol import Report
from trimtab.training.runner.run_ledger import GenerationEnd, KnownRun

WORTH_IT: Final = 1.05  # times the goodput, for which a job restarts with another batch
ONE_TYPE: Final = ("gpu",)


@dataclass(frozen=True, slots=True)
class SlotTime:
    """How long a job held its GPUs since the last time it was asked after."""

    job_idx: int
    gpus: Ints  # [nodes]
    seconds_s: float
    restart_s: float  # of them without progress


class WorkDone:
    """Work that jobs have done, as reported: samples, at the least batch of each."""

    def __init__(self, workload: Workload) -> None:
        self._total, self.work = workload.declared_work, np.zeros(len(workload))

    def work_left(self, job_idx: Ints) -> Floats:
        """Declared samples less those done."""
        return np.maximum(self._total[job_idx] - self.work[job_idx], 0.0)

    def reports(self, job_idx: Ints) -> tuple[Floats, Floats]:
        """Real jobs are no services."""
        return no_services(job_idx)

    def true_work_left(self, job_idx: Ints) -> Floats:
        """The estimate: a live run knows no more."""
        return self.work_left(job_idx)


class MeasuredRestarts:
    """Restarts cost what they cost so far: the mean of the job's own, else of all, else as stated."""

    def __init__(self, jobs: int, stated_s: float) -> None:
        self._sum_s, self._count, self._stated_s = np.zeros(jobs), np.zeros(jobs), stated_s

    def add(self, job_idx: int, seconds_s: float) -> None:
        """A job restarted."""
        self._sum_s[job_idx] += seconds_s
        self._count[job_idx] += 1

    @property
    def mean_s(self) -> float:
        """Of all restarts."""
        count = float(self._count.sum())
        return float(self._sum_s.sum()) / count if count else self._stated_s

    def expected_s(self, job_idx: Ints, n_gpus: Ints) -> Floats:
        """Of each job."""
        own_s = self._sum_s[job_idx] / np.maximum(self._count[job_idx], 1)
        return np.where(self._count[job_idx] > 0, own_s, self.mean_s)


class LiveDecisions:
    """The jobs of a run as an allocator sees them, and the GPUs that it wants each to have.

    Attributes:
        wanted: [jobs, nodes] GPUs, as last decided.
        active: job_idx of the jobs that were submitted and have not ended, ascending.
        end_s: [jobs] when each will end, as last forecast; nan = unknown.
        admission_end_s: [jobs] the same as it was forecast first.
    """

    def __init__(
        self,
        workload: Workload,
        slots: Ints,
        allocator: Allocator,
        speed: AdaptiveSpeed,
        clock: Clock,
        placement: PlacementRule,
        restarts: MeasuredRestarts,
    ) -> None:
        """Raises UsageError for an allocator that needs what real jobs do not tell."""
        refuse_unmet(allocator, speed.provides, "real jobs", "")
        self.workload, self.speed, self.restarts = workload, speed, restarts
        self.done = WorkDone(workload)
        self.states = JobStates(workload)
        self.nodes = gpu_nodes(0, slots)
        self.wanted = np.zeros((len(workload), len(slots)), np.int64)
        self.active = np.zeros(0, np.int64)
        self.end_s, self.admission_end_s = np.full((2, len(workload)), np.nan)
        self.rejected: dict[int, str] = {}  # since it was last read
        self._allocator, self._clock = allocator, clock
        self._decider = Decider.of(allocator, self._cluster(), workload.job_ids, placement)
        self._arrived = 0
        self._decided_s = -math.inf
        self._event_s = self._wake_s = math.inf

    def _cluster(self) -> GpuCluster:
        return GpuCluster(self.nodes, ONE_TYPE, Held.of(self.wanted[self.active]), len(self.active))

    # What happens.

    def happened(self, now_s: float) -> None:
        """GPUs became free, or fewer: the clock hears of it as of a finish."""
        self._event_s = min(self._event_s, now_s)

    def finished(self, job_idx: int, now_s: float) -> None:
        """A job is done."""
        self._leave(job_idx)
        self.states.finish(np.array([job_idx]), np.array([now_s]))
        self.happened(now_s)

    def failed(self, job_idx: int, why: str, now_s: float) -> None:
        """A job ends without being done."""
        self._leave(job_idx)
        self.states.reject(job_idx, why)
        self.states.note_counts(np.array([job_idx]), np.zeros(1, np.int64))
        self.happened(now_s)

    def _leave(self, job_idx: int) -> None:
        self.active = self.active[self.active != job_idx]
        self.wanted[job_idx] = 0

    def node_changed(self, node_idx: int, up: bool, now_s: float) -> None:
        """A node is there again, or is gone: then jobs on it want nothing until the next decision."""
        self.nodes["up"][node_idx] = up
        if not up:
            self.wanted[self.wanted[:, node_idx] > 0] = 0
        self.happened(now_s)

    def held(self, times: list[SlotTime]) -> None:
        """Jobs held GPUs."""
        if times:
            gpus = np.stack([t.gpus for t in times])
            running = _running(np.array([t.job_idx for t in times]), gpus)
            restart_s = np.array([t.restart_s for t in times])
            seconds_s = np.array([t.seconds_s for t in times])
            self.states.ran(running, restart_s, seconds_s, seconds_s, np.zeros(len(times)))

    def started(self, job_idx: int, now_s: float) -> None:
        """A generation of a job begins."""
        if math.isnan(self.states.start_s[job_idx]):
            self.states.start_s[job_idx] = now_s
        else:
            self.states.jobs["restarts"][job_idx] += 1

    def restore(self, run: KnownRun, states: Sequence[str]) -> None:
        """Take over the jobs as earlier processes of the run have recorded them."""
        jobs, now = self.states.jobs, self.states
        for end in run.ended:
            jobs["run_s"][end.job] += end.seconds_s
            jobs["attained_gpu_s"][end.job] += end.seconds_s * end.gpus
            jobs["progress_s"][end.job] += max(end.seconds_s - end.restart_s, 0.0)
            now.restart_s[end.job] += end.restart_s
            if end.step_s > 0:
                self._report_again(end)
                self.restarts.add(end.job, end.restart_s)
            if math.isnan(self.admission_end_s[end.job]):
                self.admission_end_s[end.job] = end.predicted_end_s
            if end.ending == "finished":
                now.finish(np.array([end.job]), np.array([end.ended_s]))
        for job, _, begun_s in run.begun:
            self.started(job, begun_s)
        for job, state in enumerate(states):
            if state in ("failed", "rejected"):
                now.reject(job, run.states[job][1])

    def _report_again(self, end: GenerationEnd) -> None:
        plan = self.speed.plan(end.job, end.nodes, end.gpus, 0, 0.0)
        if end.batch:
            plan = BatchPlan(end.batch, end.local_batch, end.accumulation)
        numbers = end.step_s, end.sync_s, end.grad_sqr, end.grad_var
        self.speed.report(end.job, end.nodes, end.gpus, plan, Report(-1, -1, *numbers, -1, ""))

    # Decisions.

    @property
    def due_s(self) -> float:
        """When the next decision is due; inf = when something happens."""
        arrival_s = self._arrival_s()
        if not len(self.active):
            return self._clock.first_s(arrival_s, self._decided_s) if arrival_s < math.inf else math.inf
        if self._decided_s == -math.inf:
            return self._event_s
        return self._clock.next_s(self._decided_s, arrival_s, self._event_s, self._wake_s)

    def _arrival_s(self) -> float:
        submit_s = self.workload.submit_s
        return float(submit_s[self._arrived]) if self._arrived < len(submit_s) else math.inf

    def admit(self, now_s: float) -> None:
        """Jobs whose time has come are active."""
        first = self._arrived
        self._arrived = int(np.searchsorted(self.workload.submit_s, now_s, side="right"))
        if self._arrived > first:
            new = np.arange(first, self._arrived)
            self.active = np.append(self.active, new[~self.states.has_ended[new]])

    def decide(self, now_s: float) -> None:
        """Ask the allocator. Raises PolicyError for one that breaks a rule."""
        self.admit(now_s)
        self._decided_s, self._event_s, self._wake_s = now_s, math.inf, math.inf
        if not len(self.active):
            return
        jobs = self.states.view(self.active, now_s, self.done, self.restarts)
        cluster = self._cluster()
        made = self._decider.decide(jobs, cluster, now_s, self.speed)
        allocation = made.allocation
        self._refuse_sharing(allocation, now_s)
        self._wake_s = allocation.wake_s
        if allocation.planned_end_s is not None:
            later = allocation.planned_end_s[allocation.planned_end_s > now_s]
            self._wake_s = min(self._wake_s, float(later.min(initial=math.inf)))
        self._apply(allocation, made.held, now_s, made.spent_s)

    def _apply(self, allocation: Allocation, held: Held, now_s: float, spent_s: float) -> None:
        self.wanted[:] = 0
        self.wanted[self.active[held.rows]] = held.gpus
        if allocation.admitted is not None:
            self.states.admitted[self.active[allocation.admitted]] = True
        self.states.note_counts(self.active, held.counts(len(self.active)))
        running = _running(self.active[held.rows], held.gpus)
        waiting = len(self.active) - len(held.rows)
        rejected = {int(self.active[row]): why for row, why in allocation.rejected.items()}
        done_gpu_s = self.states.done_gpu_s(self.active, self.done)
        self.states.decided(now_s, spent_s, waiting, running, done_gpu_s)
        self.rejected |= rejected

    def _refuse_sharing(self, allocation: Allocation, now_s: float) -> None:
        shared = allocation.partner_row is not None and (allocation.partner_row >= 0).any()
        if shared or (allocation.share_frac is not None and (allocation.share_frac < 1.0).any()):
            name = self._allocator.label
            raise PolicyError(f"allocator {name!r} at {now_s:g} s: shares slots; real jobs have theirs alone")

    def expected_end_s(self, job_idx: int, now_s: float) -> float:
        """When a job will end, as forecast, else if it keeps what it has; inf = unknown."""
        if self.end_s[job_idx] > now_s:
            return float(self.end_s[job_idx])
        gpus = self.wanted[job_idx]
        if not gpus.any() or not self.speed.is_known(job_idx):
            return math.inf
        rate = self.speed.work_per_s(job_idx, int((gpus > 0).sum()), int(gpus.sum()))
        return now_s + self._work_left(job_idx) / rate

    def _work_left(self, job_idx: int) -> float:
        return float(self.done.work_left(np.array([job_idx]))[0])

    def better_batch(self, job_idx: int, n_nodes: int, plan: BatchPlan, n_gpus: int) -> bool:
        """Whether a job ends earlier with another batch, though it restarts for it."""
        best = self.speed.plan(job_idx, n_nodes, n_gpus, 0, 0.0)
        if best.batch == plan.batch:
            return False
        now, then = (self.speed.work_per_s(job_idx, n_nodes, n_gpus, p) for p in (plan, best))
        left, index = self._work_left(job_idx), np.array([job_idx])
        restart_s = float(self.restarts.expected_s(index, np.array([n_gpus]))[0])
        return then > WORTH_IT * now and left / then + restart_s < left / now

    def curve(self, job_idx: int, gpus_max: int) -> dict[int, float]:
        """GPUs → work per second of a job, over as many nodes as it had then, else over the fewest."""
        largest = int(self.nodes["gpus"].max())
        nodes = [self.speed.nodes_seen(job_idx, n) or -(-n // largest) for n in range(1, gpus_max + 1)]
        return {n: self.speed.work_per_s(job_idx, on, n) for n, on in enumerate(nodes, 1)}

    def records(self, now_s: float) -> JobRecords:
        """The records of the run."""
        return self.states.records(int(self.nodes["gpus"].sum()), now_s)


def _running(job_idx: Ints, gpus: Ints) -> Running:
    n = len(job_idx)
    zeros, counts = np.zeros(n, np.int64), gpus.sum(axis=1, dtype=np.int64)
    return Running(
        job_idx=job_idx,
        gpus=gpus,
        type_idx=zeros,
        n_nodes=(gpus > 0).sum(axis=1),
        n_gpus=counts,
        local_batch=np.zeros(n),
        accumulation=zeros,
        partner_job_idx=np.full(n, -1),
        share_frac=np.ones(n),
    )
