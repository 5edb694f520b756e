"""The loop: arrivals, decisions of an allocator, restarts, progress in closed form, and finishes.

Between two decisions nothing changes but progress, which the truth knows in closed form. The cost of a run is
linear in decisions times active jobs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from trimtab.compiled.kernel import kernel
from trimtab.domain.allocator import Allocation, Allocator, JobNeed, Speed
from trimtab.domain.job_places import JobPlaces
from trimtab.domain.training_jobs import (
    Flags,
    Floats,
    GpuCluster,
    Held,
    Ints,
    JobQueues,
    Records,
    Workload,
    configs,
)
from trimtab.errors import PolicyError, UsageError
from trimtab.training.allocator_catalogue import (
    AllocatorSpec,
    clock_of,
    find_allocator,
    placement_of,
    restart_cost_of,
)
from trimtab.training.clocks import Clock
from trimtab.training.decisions import Decider
from trimtab.training.gang_placement import PlacementRule
from trimtab.training.job_records import JobRecords
from trimtab.training.job_states import JobStates
from trimtab.training.node_outages import Checkpoints, FailingNode, NodeEvent, NodeEvents
from trimtab.training.queue_records import QueueBook
from trimtab.training.restart_costs import Change, Interval, RestartCost
from trimtab.training.shared_gpus import charged_s
from trimtab.training.truths.progress import Running, Truth
from trimtab.words import counted

_NO_FLOATS = np.zeros(0)
_STANDSTILL = 1000  # visits without an end, after which the run is looked at
_NODE_EVENTS = 10_000  # without an end of a job, after which the run is stopped


class Companion(Protocol):
    """Something that happens on the same nodes, such as requests. It is told of every decision."""

    def before(self, now_s: float, active: Ints) -> Flags:
        """A decision about these jobs is due: which nodes it may give, [nodes].

        Jobs on others are stopped in order.
        """

    def after(self, now_s: float, running: Running, waiting: int) -> None:
        """A decision was made: `running` runs from now on, and `waiting` jobs wait."""


@dataclass(frozen=True)
class Setup:
    """The conditions of a run: nodes, jobs and rules."""

    nodes: Records  # [nodes] NODES
    type_names: tuple[str, ...]
    truth: Truth
    clock: Clock
    placement: PlacementRule
    restart: RestartCost
    quota_gpus: Floats = field(default_factory=lambda: _NO_FLOATS)  # [tenants]; empty = no quotas
    queues: JobQueues | None = None  # that hold; None = there are none, or their scheme is none
    declared: JobQueues | None = None  # queues that records are about, whatever scheme holds
    node_events: tuple[NodeEvent, ...] = ()
    failing_nodes: tuple[FailingNode, ...] = ()
    checkpoint_s: float = 0.0  # progress of a job between two checkpoints; 0 = failures lose no work
    horizon_s: float = math.inf  # the run ends here, whatever is left
    places: JobPlaces | None = None  # where each job may run; None = on every node
    strict_priority: bool = False  # jobs of a higher priority are decided about before the others
    companion: Companion | None = None  # it says which nodes are up, in place of node events


def run_jobs(workload: Workload, allocator: Allocator, setup: Setup) -> JobRecords:
    """Run all jobs of a workload with an allocator. Raises PolicyError for one that breaks a rule."""
    return TrainingRun(workload, allocator, setup).to_the_end()


class TrainingRun:
    """One run of an allocator, decision by decision."""

    def __init__(self, workload: Workload, allocator: Allocator, setup: Setup) -> None:
        self.workload, self.allocator, self.setup = workload, allocator, setup
        self.speed: Speed = setup.truth.begin(workload)
        self.is_oracle = JobNeed.ORACLE in allocator.needs
        if self.is_oracle:
            self.speed = setup.truth.oracle()
        self.queues = setup.queues
        self.book = None if setup.declared is None else QueueBook(setup.declared)
        self.nodes = setup.nodes.copy()
        self.total_gpus = int(self.nodes["gpus"].sum())
        if workload.services is not None and not allocator.hosts_services:
            name = allocator.label
            raise PolicyError(f"allocator {name!r} knows no online services, which {workload.name!r} has")
        setup.restart.begin(workload, self.total_gpus)
        self.jobs = JobStates(workload)
        self.checkpoints = Checkpoints(setup.truth, setup.checkpoint_s, len(workload))
        self.events = NodeEvents(setup.node_events, setup.failing_nodes)
        self.n_events = 0  # since a job ended
        self.down = np.where(self.nodes["up"], 0, 1)  # [nodes] failures and drains under way
        self.now_s, self.arrived = 0.0, 0
        self.retired = 0  # jobs that have ended and are not active any more
        self.last_ended = 0, 0  # jobs that have ended, and the visits when one did or more were to come
        self.ran_s = 0.0  # when a job last ran that is no service
        self.visits = 0  # times at which the clock was due, with or without jobs
        self.active = np.zeros(0, np.int64)  # job_idx, ascending
        self.held = Held(np.zeros(0, np.int64), np.zeros((0, len(self.nodes)), np.int32))  # rows of `active`
        self.running = self._running_of(self.held, Allocation(), 0)
        self.wake_s = math.inf
        self.planned_end_s = np.full(len(workload), math.inf)
        self.planned_finish_s = np.full(len(workload), math.inf)
        strict = setup.strict_priority
        self.decider = Decider.of(
            allocator, self._cluster(), workload.job_ids, setup.placement, strict_priority=strict
        )
        if len(workload):
            self._go_to(setup.clock.first_s(float(workload.submit_s[0])))

    def to_the_end(self) -> JobRecords:
        """The rest of the run. Raises PolicyError for an allocator that breaks a rule."""
        while self.step():
            pass
        return self.records()

    def records(self) -> JobRecords:
        """What happened so far."""
        records = self.jobs.records(self.total_gpus, self.now_s)
        return records if self.book is None else replace(records, queues=self.book.records(self.now_s))

    def step(self) -> bool:
        """Let the allocator decide, and time pass until the clock is due again. False: the run is over.

        Raises PolicyError for an allocator that breaks a rule.
        """
        if self.now_s > self.setup.horizon_s:
            return False
        self._take_over()
        if len(self.active):
            self._decide()
        self.visits += 1
        self._refuse_standstill()
        next_s = self._next_s()
        if next_s == math.inf:
            return False
        self._go_to(next_s)
        return self.now_s <= self.setup.horizon_s

    def shown(self) -> tuple[Records, GpuCluster]:
        """The active jobs and the cluster as `step` shows them to the allocator next."""
        self._take_over()
        if self.setup.companion is not None:
            self.nodes["up"] = self.setup.companion.before(self.now_s, self.active)
        self._leave_drained()
        jobs = self.jobs.view(
            self.active, self.now_s, self.setup.truth, self.setup.restart, is_oracle=self.is_oracle
        )
        return jobs, self._cluster(jobs)

    def _next_s(self) -> float:
        arrival_s = self._arrival_s()
        if not len(self.active):
            return self.setup.clock.first_s(arrival_s, self.now_s) if arrival_s < math.inf else math.inf
        if arrival_s == math.inf and self._only_services():
            return math.inf
        finish_s = self._first_finish_s()
        if not len(self.running) and math.inf == arrival_s == self.wake_s and self._no_more_nodes():
            return math.inf  # the allocator leaves these jobs waiting for ever
        wake_s = min(self.wake_s, self.events.next_s)
        return self.setup.clock.next_s(self.now_s, arrival_s, finish_s, wake_s)

    def _refuse_standstill(self) -> None:
        """Stop a run whose jobs hold GPUs on which none of them makes progress, for ever."""
        ended = self.jobs.n_ended
        if ended != self.last_ended[0]:
            self.n_events = 0
        if self.n_events > _NODE_EVENTS:
            raise UsageError(
                f"no job has ended over {_NODE_EVENTS:,} failures and repairs",
                field="faults",
                value=f"at {self.now_s:g} s",
                expected="nodes that last until jobs end, or checkpoints more often (rules.checkpoint_s)",
            )
        if ended != self.last_ended[0] or self._arrival_s() < math.inf or not self._no_more_nodes():
            self.last_ended = ended, self.visits
        if (self.visits - self.last_ended[1]) % _STANDSTILL != _STANDSTILL - 1 or not len(self.running):
            return
        if self.workload.services is not None:
            return  # they never end; `_only_services` ends the run
        if np.isinf(self.setup.truth.time_to_finish_s(self.running)).all():
            job, gpus = self.running.job_idx[0], self.running.n_gpus[0]
            name = self.allocator.label
            held = f"{counted(gpus, 'GPU')} ({self.setup.type_names[self.running.type_idx[0]]})"
            raise PolicyError(
                f"allocator {name!r} at {self.now_s:g} s: no job makes progress; "
                f"job {self.workload.job_ids[job]!r} holds {held}, with which it has no speed"
            )

    def _only_services(self) -> bool:
        """Services never end: a run ends with its last job, or when none of them ran for a whole day."""
        services = self.workload.services
        if services is None:
            return False
        if len(self.running) and not services.is_service[self.running.job_idx].all():
            self.ran_s = self.now_s
        waited_s = self.now_s - self.ran_s
        return bool(services.is_service[self.active].all()) or waited_s > services.period_s

    def _arrival_s(self) -> float:
        submit_s = self.workload.submit_s
        return float(submit_s[self.arrived]) if self.arrived < len(submit_s) else math.inf

    def _no_more_nodes(self) -> bool:
        """Whether there will never be more nodes than now."""
        if self.nodes["up"].all():
            return True
        return self.events.next_s == math.inf and self.setup.companion is None

    def _first_finish_s(self) -> float:
        if not len(self.running) or not self.setup.clock.reads_finish:
            return math.inf
        needed_s = self.setup.truth.time_to_finish_s(self.running)
        if not self.setup.restart.is_forgiven:
            needed_s = needed_s + self.jobs.restart_left_s[self.running.job_idx]
        return float(self.now_s + needed_s.min())

    def _go_to(self, next_s: float) -> None:
        """Let time pass, with the failures of nodes on the way."""
        for event in self.events.until(next_s):
            self._advance(max(event.time_s, self.now_s))
            self.n_events += len(self.active) > 0
            self.down[event.node_idx] += -1 if event.up else 1
            self.nodes["up"][event.node_idx] = self.down[event.node_idx] <= 0
            if not event.up and not event.drains:
                self._fail(event.node_idx)
        self._advance(next_s)

    def _advance(self, next_s: float) -> None:
        elapsed_s = next_s - self.now_s
        running, jobs = self.running, self.jobs
        if len(running) and elapsed_s > 0:
            spent = self.setup.restart.spend(self._interval(next_s))
            after_s = spent.restart_s + self.checkpoints.advance(running, spent.progress_s)
            if self.workload.services is not None:
                jobs.served(running.job_idx, self.setup.truth.reports(running.job_idx)[1], elapsed_s)
            ends_s = self.now_s + after_s if spent.ends_s is None else spent.ends_s
            held_s = np.minimum(after_s, spent.restart_s + spent.progress_s)
            jobs.ran(running, spent.restart_s, held_s, *charged_s(running, held_s))
            is_finished = ends_s < math.inf
            jobs.finish(running.job_idx[is_finished], ends_s[is_finished])
            if is_finished.any():
                self.running = running.of(np.flatnonzero(~is_finished))
        self.now_s = next_s

    def _interval(self, next_s: float) -> Interval:
        rows = self.running.job_idx
        return Interval(
            self.now_s,
            next_s,
            self.jobs.restart_left_s[rows],
            lambda: self.setup.truth.time_to_finish_s(self.running),
            self.planned_end_s[rows],
            self.planned_finish_s[rows],
        )

    def _fail(self, node_idx: int) -> None:
        """Jobs on a failed node lose the work since their checkpoints."""
        lost = self._evict(self.held.gpus[:, node_idx] > 0)
        self.jobs.lost(lost.job_idx, lost.n_gpus * self.checkpoints.lose(lost.job_idx))

    def _leave_drained(self) -> None:
        """Jobs on nodes that are down at a decision were drained, not failed: they are stopped in order."""
        if not self.nodes["up"].all():
            leaves: Flags = np.any(self.held.gpus[:, ~self.nodes["up"]] > 0, axis=1)
            self.checkpoints.save(self._evict(leaves).job_idx)

    def _evict(self, leaves: Flags) -> Running:
        """Holders that lose all their GPUs and wait for the next decision. Returns those that ran."""
        lost = self.active[self.held.rows[leaves]]
        self.held = Held(self.held.rows[~leaves], self.held.gpus[~leaves])
        is_lost = np.isin(self.running.job_idx, lost)
        ran = self.running.of(np.flatnonzero(is_lost))
        self.running = self.running.of(np.flatnonzero(~is_lost))
        self.jobs.note_counts(ran.job_idx, np.zeros(len(ran), np.int64))
        return ran

    def _take_over(self) -> None:
        """Jobs that have ended are active no more, and those that have come are."""
        if self.jobs.n_ended > self.retired:
            self.retired = self.jobs.n_ended
            self._keep_active(self.jobs.goes_on(self.active))
        first = self.arrived
        self.arrived = int(np.searchsorted(self.workload.submit_s, self.now_s, side="right"))
        if self.arrived > first:
            self.active = np.append(self.active, np.arange(first, self.arrived))

    def _keep_active(self, stays: Any) -> None:
        if stays.all():
            return
        new_row = np.cumsum(stays) - 1
        kept = stays[self.held.rows]
        self.held = Held(new_row[self.held.rows[kept]], self.held.gpus[kept])
        self.active = self.active[stays]

    def _cluster(self, jobs: Records | None = None) -> GpuCluster:
        types, quota_gpus = self.setup.type_names, self.setup.quota_gpus
        can_run = None if jobs is None else runs_on(jobs, self.speed, len(types))
        places = None if self.setup.places is None else self.setup.places.of(self.active)
        n_jobs = len(self.active)
        return GpuCluster(
            self.nodes, types, self.held, n_jobs, quota_gpus, can_run, places, queues=self.queues
        )

    def _decide(self) -> None:
        jobs, cluster = self.shown()
        done_gpu_s = self.jobs.done_gpu_s(self.active, self.setup.truth)
        made = self.decider.decide(jobs, cluster, self.now_s, self.speed, self.running)
        if self.queues is not None and made.shares is not None:
            self.queues = replace(self.queues, short_since_s=made.shares.short_since_s)
        if self.book is not None:
            self.book.decided(jobs, cluster, made.held.counts(len(jobs)), self.now_s, made.shares)
        self._apply(made.allocation, made.held)
        waiting = len(self.active) - len(self.held.rows)
        self.jobs.decided(self.now_s, made.spent_s, waiting, self.running, done_gpu_s)
        self._note_plans(jobs, made.allocation)
        if self.setup.companion is not None:
            self.setup.companion.after(self.now_s, self.running, waiting)

    def _note_plans(self, jobs: Records, allocation: Allocation) -> None:
        """Keep what the allocator said of the ends of jobs, and when it wants to decide again."""
        rows = jobs["job_idx"]
        if allocation.planned_finish_s is not None:
            self.planned_finish_s[rows] = allocation.planned_finish_s
        self.wake_s = allocation.wake_s
        if allocation.planned_end_s is not None and len(self.running):
            self.planned_end_s[rows] = allocation.planned_end_s
            running = self.running.job_idx
            due_s = self.planned_end_s[running] + self.jobs.restart_left_s[running]
            self.wake_s = min(self.wake_s, float(due_s.min()))

    def _apply(self, allocation: Allocation, held: Held) -> None:
        before, jobs = self.held, self.jobs
        changed, started, stopped = changes(before.rows, _compact(before), held.rows, _compact(held))
        self.running = running = self._running_of(held, allocation, len(self.active))
        change = Change(
            number=self.visits,
            job_idx=running.job_idx,
            n_gpus=running.n_gpus,
            changed=changed,
            started=started,
            more_arrivals=self.arrived < len(self.workload),
            gpus=running.gpus,
            total_gpus=self.total_gpus,
        )
        if not self.setup.restart.carries:
            jobs.restart_left_s[running.job_idx] = 0.0
        jobs.restarted(change, self.setup.restart.charge_s(change), self.now_s)
        self.checkpoints.save(np.append(running.job_idx[changed], self.active[stopped]))
        if len(stopped):
            jobs.note_counts(self.active[stopped], np.zeros(len(stopped), np.int64))
        if allocation.admitted is not None:
            jobs.admitted[self.active[allocation.admitted]] = True
        self.held = held
        if allocation.rejected or allocation.stopped:
            self._end(allocation)

    def _end(self, allocation: Allocation) -> None:
        """Jobs that the allocator rejects or stops."""
        stays = np.ones(len(self.active), np.bool_)
        for row, reason in {**allocation.rejected, **allocation.stopped}.items():
            what = "stops" if row in allocation.stopped else "rejects"
            job = int(self.active[row])
            if (self.held.rows == row).any():
                name = self.workload.job_ids[job]
                raise PolicyError(f"allocator {self.allocator.label!r} {what} job {name!r} and gives it GPUs")
            if row in allocation.stopped:
                self.jobs.stop(job, self.now_s, self.jobs.work_done_gpu_s(np.array([job]), self.setup.truth))
            else:
                self.jobs.reject(job, reason)
            stays[row] = False
        self._keep_active(stays)

    def _types_of(self, held: Held) -> Ints:
        """Type of each job's GPUs, the slowest where it holds several."""
        if len(self.setup.type_names) == 1:
            return np.zeros(len(held.rows), np.int64)
        rows, counts = held.rows, self._cluster().by_type(held.gpus)
        types = counts.argmax(axis=1)
        mixed = np.flatnonzero((counts > 0).sum(axis=1) > 1)
        if len(mixed):
            jobs, n_gpus = self.active[rows[mixed]], counts[mixed].sum(axis=1)
            types[mixed] = self.setup.truth.slowest_type(jobs, n_gpus, counts[mixed] > 0)
        return types

    def _running_of(self, held: Held, allocation: Allocation, n_jobs: int) -> Running:
        rows = held.rows
        partner = _given(allocation.partner_row, -1, rows)
        if len(rows) and allocation.partner_row is not None:
            partner = np.where(partner >= 0, self.active[partner], -1)
        return Running(
            job_idx=self.active[rows],
            gpus=held.gpus,
            type_idx=self._types_of(held),
            n_nodes=held.n_nodes,
            n_gpus=held.n_gpus,
            local_batch=_given(allocation.local_batch, 0.0, rows),
            accumulation=_given(allocation.accumulation, 0, rows),
            partner_job_idx=partner,
            share_frac=_given(allocation.share_frac, 1.0, rows),
        )


def runs_on(jobs: Records, speed: Speed, types: int) -> Flags | None:
    """Whether each job runs on each type with the GPUs that it asked for; None = there is one type."""
    if types == 1:
        return None
    asked = configs(jobs["gpus_requested"][:, None], type_idx=np.arange(types))
    return speed.goodput(jobs[:, None], asked) > 0


def _given(column: Any, default: float, rows: Ints) -> Any:
    """What an allocation says of these rows."""
    return np.full(len(rows), default) if column is None else np.asarray(column)[rows]


def _compact(held: Held) -> Any:
    return np.ascontiguousarray(held.gpus, np.int32)


@kernel
def changes(before_rows: Any, before_gpus: Any, after_rows: Any, after_gpus: Any) -> Any:
    """How a decision changes what jobs hold; rows ascend.

    Whether each holder after it has other GPUs than before, and whether it had none; and the rows of those
    that have none any more.
    """
    changed = np.zeros(len(after_rows), np.bool_)
    started = np.zeros(len(after_rows), np.bool_)
    goes_on = np.zeros(len(before_rows), np.bool_)
    at = 0
    for i in range(len(after_rows)):
        while at < len(before_rows) and before_rows[at] < after_rows[i]:
            at += 1
        if at < len(before_rows) and before_rows[at] == after_rows[i]:
            goes_on[at] = True
            differs = 0
            for j in range(after_gpus.shape[1]):  # without branches, so that it vectorises
                differs |= before_gpus[at, j] ^ after_gpus[i, j]
            changed[i] = differs != 0
        else:
            started[i] = changed[i] = True
    return changed, started, before_rows[~goes_on]


def begun(
    allocator: AllocatorSpec,
    workload: Workload,
    *,
    clock: str = "",
    placement: str = "",
    restart: RestartCost | str = "none",
    round_s: float | None = None,
    **setup: Any,
) -> TrainingRun:
    """A run of all jobs of a workload, before its first decision.

    `round_s`: length of rounds of allocators that count in them; None = theirs. `setup` has
    the other fields of `Setup`: nodes, type_names, truth, …

    Raises UsageError for names that there are not, and PolicyError for an allocator that breaks a rule.
    """
    made = find_allocator(allocator)
    made = made if round_s is None else made.in_rounds_of(round_s)
    chosen = Setup(
        clock=clock_of(clock or made.clock),
        placement=placement_of(placement or made.placement),
        restart=restart_cost_of(restart) if isinstance(restart, str) else restart,
        **setup,
    )
    return TrainingRun(workload, made, chosen)


def run_allocator(allocator: AllocatorSpec, workload: Workload, **conditions: Any) -> JobRecords:
    """Run all jobs of a workload, under the conditions that `begun` takes. Raises as it does."""
    return begun(allocator, workload, **conditions).to_the_end()
