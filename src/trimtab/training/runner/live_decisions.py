"""Decisions of an allocator about real jobs: what it sees, when it is asked, and what it wants."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from trimtab.domain.job_places import NodeOffer, places_of
from trimtab.domain.queue_tree import QueueScheme
from trimtab.domain.training_jobs import Floats, GpuCluster, Held, Ints, JobQueues, Workload, gpu_nodes
from trimtab.training.clocks import Clock
from trimtab.training.decisions import Decision
from trimtab.training.job_records import JobRecords
from trimtab.training.job_states import JobStates
from trimtab.training.levels import no_services
from trimtab.training.queue_records import QueueBook
from trimtab.training.queue_shares import job_queues
from trimtab.training.runner.adaptive_speed import AdaptiveSpeed
from trimtab.training.runner.batch_plan import BatchPlan
from trimtab.training.runner.deciding import Question
from trimtab.training.runner.job_list import JobSpec, workload_of_jobs
from trimtab.training.runner.rank_protocol import Report
from trimtab.training.runner.run_ledger import GenerationEnd, KnownRun
from trimtab.training.truths.progress import Running

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

    def grow(self, workload: Workload) -> None:
        """There are further jobs, at the end."""
        self._total, self.work = workload.declared_work, _padded(self.work, len(workload), 0.0)

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

    def grow(self, jobs: int) -> None:
        """There are so many jobs, the new ones at the end."""
        self._sum_s, self._count = _padded(self._sum_s, jobs, 0.0), _padded(self._count, jobs, 0.0)

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
        active: job_idx of the jobs that were submitted and have not ended, by submission.
        end_s: [jobs] when each will end, as last forecast; nan = unknown.
        admission_end_s: [jobs] the same as it was forecast first.
    """

    def __init__(
        self,
        workload: Workload,
        slots: Ints,
        offers: Sequence[NodeOffer],
        speed: AdaptiveSpeed,
        clock: Clock,
        restarts: MeasuredRestarts,
        declared: JobQueues | None = None,
        scheme: QueueScheme = QueueScheme.NONE,
    ) -> None:
        self.declared = declared
        self.queues = None if declared is None else declared.under(scheme)
        self._book = None if declared is None else QueueBook(declared)
        self.workload, self.speed, self.restarts = workload, speed, restarts
        self.done = WorkDone(workload)
        self.states = JobStates(workload)
        self.nodes, self._offers = gpu_nodes(0, slots), tuple(offers)
        self.places = places_of(workload.asks, self._offers)
        self.wanted = np.zeros((len(workload), len(slots)), np.int64)
        self.active = np.zeros(0, np.int64)
        self.end_s, self.admission_end_s = np.full((2, len(workload)), np.nan)
        self.rejected: dict[int, str] = {}  # since it was last read
        self._clock = clock
        self._arrived = np.zeros(len(workload), np.bool_)  # whether each job was seen
        self._decided_s = -math.inf
        self._event_s = self._wake_s = math.inf

    def grow(self, jobs: Sequence[JobSpec]) -> None:
        """All jobs of the run, new ones at the end."""
        self.workload = workload_of_jobs(jobs, self.workload.name)
        self.places = places_of(self.workload.asks, self._offers)
        names = self.workload.tenant_names
        self._queues_are(lambda queues: replace(queues, leaf_of=queues.tree.leaf_of(names)))
        n = len(self.workload)
        self.speed, self.states = self.speed.grown(jobs), self.states.grown(self.workload)
        self.done.grow(self.workload)
        self.restarts.grow(n)
        self.wanted = np.pad(self.wanted, ((0, n - len(self.wanted)), (0, 0)))
        self.end_s, self.admission_end_s = (
            _padded(times, n, np.nan) for times in (self.end_s, self.admission_end_s)
        )
        self._arrived = _padded(self._arrived, n, fill=False)

    def add_node(self, slots: int, offer: NodeOffer) -> None:
        """A node has come; `node_changed` tells when it is up."""
        self.nodes, self._offers = np.append(self.nodes, gpu_nodes(0, [slots])), (*self._offers, offer)
        self.nodes["up"][-1] = False
        self.places = places_of(self.workload.asks, self._offers)
        self.wanted = self._on_all_nodes(self.wanted)
        self._queues_are(lambda queues: job_queues(queues.tree, self.workload.tenant_names, self._offers))

    def _queues_are(self, changed: Callable[[JobQueues], JobQueues]) -> None:
        """Jobs or nodes have come."""
        if self.declared is not None and self._book is not None:
            self.declared = self._book.declared = changed(self.declared)
        if self.queues is not None:
            since_s = self.queues.short_since_s
            self.queues = replace(changed(self.queues), short_since_s=since_s)

    def _on_all_nodes(self, gpus: Ints) -> Ints:
        """[jobs, nodes] GPUs of a time when there were fewer nodes."""
        return np.pad(gpus, ((0, 0), (0, len(self.nodes) - gpus.shape[1])))

    def prioritise(self, job_idx: int, priority: int, now_s: float) -> None:
        """A job has another priority."""
        self.workload.priority[job_idx] = self.states.jobs["priority"][job_idx] = priority
        self.happened(now_s)

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
            if state in ("failed", "rejected", "cancelled"):
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
        return float(self.workload.submit_s[~self._arrived].min(initial=math.inf))

    def admit(self, now_s: float) -> None:
        """Jobs whose time has come are active."""
        submit_s = self.workload.submit_s
        new = np.flatnonzero(~self._arrived & (submit_s <= now_s))
        if len(new):
            self._arrived[new] = True
            active = np.append(self.active, new[self.states.goes_on(new)])
            self.active = active[np.lexsort((active, submit_s[active]))]

    def question(self, now_s: float) -> Question | None:
        """What the allocator is to be asked now; None = there are no jobs."""
        self.admit(now_s)
        self._decided_s, self._event_s, self._wake_s = now_s, math.inf, math.inf
        return self._question(self.active, now_s) if len(self.active) else None

    def rehearsal(self) -> Question:
        """A question about all jobs, as if all were submitted and none had run."""
        jobs = np.arange(len(self.workload))
        return self._question(jobs, float(self.workload.submit_s.max()))

    def _question(self, job_idx: Ints, now_s: float) -> Question:
        jobs = self.states.view(job_idx, now_s, self.done, self.restarts)
        held = Held.of(self.wanted[job_idx])
        places = None if self.places is None else self.places.of(job_idx)
        cluster = GpuCluster(
            self.nodes.copy(), ONE_TYPE, held, len(job_idx), places=places, queues=self.queues
        )
        return Question(job_idx.copy(), jobs, cluster, now_s, self.speed, self.workload.job_ids)

    def decided(self, asked: Question, made: Decision) -> None:
        """The allocator has decided about what it was asked; what happened meanwhile holds."""
        allocation, now_s = made.allocation, asked.now_s
        self._wake_s = allocation.wake_s
        if allocation.planned_end_s is not None:
            later = allocation.planned_end_s[allocation.planned_end_s > now_s]
            self._wake_s = min(self._wake_s, float(later.min(initial=math.inf)))
        is_here = np.isin(asked.job_idx, self.active)
        gpus = self._on_all_nodes(made.held.gpus)
        stays = is_here[made.held.rows] & (gpus[:, ~self.nodes["up"]] == 0).all(axis=1)
        held = Held(made.held.rows[stays], gpus[stays])
        self.wanted[:] = 0
        self.wanted[asked.job_idx[held.rows]] = held.gpus
        if allocation.admitted is not None:
            self.states.admitted[asked.job_idx[allocation.admitted]] = True
        counts = held.counts(len(asked.job_idx))
        if self.queues is not None and made.shares is not None:
            self.queues = replace(self.queues, short_since_s=made.shares.short_since_s)
        if self._book is not None:
            self._book.decided(asked.jobs, asked.cluster, counts, now_s, made.shares)
        self.states.note_counts(asked.job_idx[is_here], counts[is_here])
        running = _running(asked.job_idx[held.rows], held.gpus)
        waiting = len(self.active) - len(held.rows)
        done_gpu_s = self.states.done_gpu_s(self.active, self.done)
        self.states.decided(now_s, made.spent_s, waiting, running, done_gpu_s)
        ends = {**allocation.rejected, **allocation.stopped}
        self.rejected |= {int(asked.job_idx[row]): why for row, why in ends.items()}

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

    def queue_of(self, job_idx: int) -> str:
        """The path of a job's leaf; empty = there are no queues."""
        if self.declared is None:
            return ""
        return self.declared.tree.leaf_paths[self.declared.leaf_of[self.workload.tenant_idx[job_idx]]]

    def records(self, now_s: float) -> JobRecords:
        """The records of the run."""
        records = self.states.records(int(self.nodes["gpus"].sum()), now_s)
        return records if self._book is None else replace(records, queues=self._book.records(now_s))


def _padded(values: Any, n: int, fill: Any) -> Any:
    made = np.full(n, fill, values.dtype)
    made[: len(values)] = values
    return made


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
