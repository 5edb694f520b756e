"""One decision of an allocator, as every host takes it: asked, held to the rules, placed.

Jobs that may not be preempted, and pinned ones, keep the GPUs that they hold until they end or a node of them
goes. Allocators that do not know this rule (`keeps_fixed`) are not shown such jobs: they decide about the
others, on what is left of the nodes and of the tenants' quotas. Where there are queues, the allocator is
asked leaf by leaf, on the GPUs that each leaf has.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import numpy as np

from trimtab.domain.allocator import Allocation, Allocator, Speed
from trimtab.domain.training_jobs import Flags, Floats, GpuCluster, Held, Ints, Records, configs
from trimtab.engine.policy_errors import line_of
from trimtab.errors import PolicyError, TrimtabError
from trimtab.training.allocation_check import AllocationCheck
from trimtab.training.gang_placement import PlacementRule
from trimtab.training.job_classes import (
    ClassKey,
    about_all,
    classes_of,
    cluster_for,
    counted_once,
    within_quotas,
    within_room,
)
from trimtab.training.queue_shares import QueueShares, shares_of_queues
from trimtab.training.shared_gpus import is_second, placed
from trimtab.training.truths.progress import Running

_LEAST_PLAN_S: Final = 60.0  # a job that does not end as estimated is looked at again after so long


@dataclass(frozen=True)
class Decision:
    """An allocator's decision about all jobs, with their nodes."""

    allocation: Allocation
    held: Held
    spent_s: float  # by the allocator
    shares: QueueShares | None = None  # of queues; None = there are none


@dataclass(frozen=True)
class Decider:
    """An allocator with its memory, and how a host asks it."""

    allocator: Allocator
    memory: Any
    check: AllocationCheck
    placement: PlacementRule
    most_jobs: int  # of the run, for which there is memory
    strict_priority: bool = False  # jobs of a higher priority are decided about before the others
    memories: dict[ClassKey, Any] = field(default_factory=dict)  # of each class of jobs

    @classmethod
    def of(
        cls,
        allocator: Allocator,
        cluster: GpuCluster,
        job_ids: tuple[str, ...],
        placement: PlacementRule,
        room: int = 0,
        *,
        strict_priority: bool = False,
    ) -> Decider:
        """For a run of these jobs, and so many that may come.

        Raises PolicyError for an allocator that makes no memory.
        """
        most = len(job_ids) + room
        memory = _called(allocator, "begins", lambda: allocator.init(cluster, most))
        check = AllocationCheck(allocator, job_ids)
        return cls(allocator, memory, check, placement, most, strict_priority)

    def with_jobs(self, job_ids: tuple[str, ...], cluster: GpuCluster) -> Decider:
        """The same, where jobs have come. Beyond its room the allocator forgets what it learned."""
        if len(job_ids) > self.most_jobs:
            room, strict = len(job_ids), self.strict_priority
            return Decider.of(self.allocator, cluster, job_ids, self.placement, room, strict_priority=strict)
        return replace(self, check=AllocationCheck(self.allocator, job_ids))

    def decide(
        self, jobs: Records, cluster: GpuCluster, now_s: float, speed: Speed, running: Running | None = None
    ) -> Decision:
        """Decide about all jobs. `running`: what they do now. Raises PolicyError for a broken rule."""
        shares = self._shares(jobs, cluster, now_s, running)
        classes: dict[ClassKey, Ints] = {}
        if shares is not None or self._divides(cluster):
            classes = classes_of(jobs, cluster, strict=self.strict_priority, shares=shares)
        is_partial = cluster.places is not None and not cluster.places.allowed.all()
        if len(classes) > 1 or is_partial or shares is not None:
            found = self._by_class(classes, jobs, cluster, now_s, speed, running, shares)
        else:
            key = next(iter(classes), None)
            memory = self.memory if key is None else self._memory_of(key, cluster)
            found = self._of_class(memory, jobs, cluster, now_s, speed, running)
        self.check.placed(jobs, cluster, found.held, found.allocation, now_s)
        return found

    def _shares(
        self, jobs: Records, cluster: GpuCluster, now_s: float, running: Running | None
    ) -> QueueShares | None:
        if cluster.queues is None:
            return None
        return shares_of_queues(
            jobs,
            cluster,
            cluster.queues,
            now_s,
            fixed=fixed_jobs(jobs, cluster),
            counted=counted_once(_present_partners(jobs, running)),
            scales=not self.allocator.keeps_gangs,
            whole_nodes=self.allocator.whole_nodes,
        )

    def _divides(self, cluster: GpuCluster) -> bool:
        return self.strict_priority or cluster.places is not None

    def _by_class(
        self,
        classes: Mapping[ClassKey, Ints],
        jobs: Records,
        cluster: GpuCluster,
        now_s: float,
        speed: Speed,
        running: Running | None,
        shares: QueueShares | None,
    ) -> Decision:
        """Decide about class after class, on what is left."""
        fixed, partner = fixed_jobs(jobs, cluster), _present_partners(jobs, running)
        given, waits = np.where(fixed[:, None], cluster.gpus, 0), np.ones(len(jobs), np.bool_)
        parts: list[tuple[Ints, Allocation]] = []
        spent_s = 0.0
        for key, rows in classes.items():
            given[rows], waits[rows] = 0, False
            counted = counted_once(partner)
            left = cluster_for(
                rows, cluster, jobs, given, counted, goes_first=fixed, waits=waits, shares=shares
            )
            theirs = (
                None
                if running is None
                else running.of(np.flatnonzero(np.isin(running.job_idx, jobs["job_idx"][rows])))
            )
            if shares is not None and left.n_gpus == 0:
                continue  # the queue has no GPUs now; its jobs wait, whatever the allocator would do of none
            memory = self._memory_of(key, left)
            found = self._of_class(memory, jobs[rows], left, now_s, speed, theirs)
            given[rows[found.held.rows]] = found.held.gpus
            partner[rows] = -1
            if found.allocation.partner_row is not None:
                of_rows = np.asarray(found.allocation.partner_row, np.int64)
                partner[rows] = np.where(of_rows >= 0, rows[of_rows], -1)
            parts.append((rows, found.allocation))
            spent_s += found.spent_s
        allocation = about_all(parts, len(jobs))
        if shares is not None:
            allocation = replace(allocation, wake_s=min(allocation.wake_s, shares.wake_s))
        return Decision(allocation, Held.of(given), spent_s, shares)

    def _memory_of(self, key: ClassKey, cluster: GpuCluster) -> Any:
        """The allocator's memory of a class of jobs: the first class has that of the run's beginning."""
        if not self.memories:
            self.memories[key] = self.memory
        if key not in self.memories:
            make = partial(self.allocator.init, cluster, self.most_jobs)
            self.memories[key] = _called(self.allocator, "begins", make)
        return self.memories[key]

    def _of_class(
        self,
        memory: Any,
        jobs: Records,
        cluster: GpuCluster,
        now_s: float,
        speed: Speed,
        running: Running | None,
    ) -> Decision:
        fixed = fixed_jobs(jobs, cluster)
        if self.allocator.keeps_fixed or not fixed.any():
            return self._asked(memory, jobs, cluster, now_s, speed)
        return self._beside(memory, fixed, jobs, cluster, now_s, speed, running)

    def _beside(
        self,
        memory: Any,
        fixed: Flags,
        jobs: Records,
        cluster: GpuCluster,
        now_s: float,
        speed: Speed,
        running: Running | None,
    ) -> Decision:
        """Decide about the other jobs, on what is left."""
        partner, rows = _present_partners(jobs, running), np.flatnonzero(~fixed)
        left = _without(fixed, partner, rows, jobs, cluster)
        if self.allocator.whole_nodes:
            left.nodes["up"] &= ~(cluster.gpus[fixed] > 0).any(axis=0)
        is_asked = len(rows) > 0 and left.n_gpus > 0
        nothing = Decision(Allocation(), Held(rows[:0], cluster.now_held.gpus[:0]), 0.0)
        found = self._asked(memory, jobs[rows], left, now_s, speed) if is_asked else nothing
        allocation = about_all([(rows, found.allocation)], len(jobs))
        if running is not None and len(running):
            allocation = _with_present(allocation, fixed, partner, jobs, running)
        if not is_asked or allocation.planned_end_s is not None:
            ends_s = _expected_ends_s(jobs, cluster, fixed, now_s, speed)
            planned_s = np.inf if allocation.planned_end_s is None else allocation.planned_end_s
            allocation = replace(allocation, planned_end_s=np.where(fixed, ends_s, planned_s))
        return Decision(allocation, _all_held(found.held, rows, fixed, cluster), found.spent_s)

    def _asked(self, memory: Any, jobs: Records, cluster: GpuCluster, now_s: float, speed: Speed) -> Decision:
        begun_s = time.perf_counter()
        made = _called(
            self.allocator,
            f"at {now_s:g} s",
            lambda: self.allocator.allocate(jobs, cluster, now_s, speed, memory),
        )
        spent_s = time.perf_counter() - begun_s
        allocation = self.check.shape(jobs, cluster, made, now_s)
        if len(cluster.quota_gpus) and not self.allocator.keeps_quotas:
            allocation = within_quotas(allocation, jobs, cluster)
        held = placed(allocation, self.placement, cluster)
        return Decision(*within_room(allocation, held, cluster), spent_s)


def fixed_jobs(jobs: Records, cluster: GpuCluster) -> Flags:
    """Which jobs keep what they hold, [jobs]. Online services have a rule of their own."""
    found: Flags = np.zeros(len(jobs), np.bool_)
    held = cluster.now_held
    may_be = (jobs["pinned"] | ~jobs["preemptible"]) & ~jobs["service"]
    if may_be.any():
        found[held.rows] = may_be[held.rows]
        if not cluster.is_all_up:
            found[held.rows] &= ~held.on_down(cluster.nodes)
    return found


def _called(allocator: Allocator, when: str, call: Callable[[], Any]) -> Any:
    """What the allocator returns. Raises PolicyError for any error of its own."""
    try:
        return call()
    except TrimtabError:
        raise
    except Exception as error:
        line, what = line_of(error), f"{type(error).__name__}: {error}"
        where = f"\n  {line}" if line else ""
        raise PolicyError(f"allocator {allocator.label!r} {when}: {what}{where}") from error


def _present_partners(jobs: Records, running: Running | None) -> Ints:
    """Row of each job's present partner, [jobs]; -1 = none."""
    partner = np.full(len(jobs), -1, np.int64)
    if running is not None and len(running):
        shares = running.partner_job_idx >= 0
        rows = np.searchsorted(jobs["job_idx"], running.job_idx[shares])
        others = np.searchsorted(jobs["job_idx"], running.partner_job_idx[shares])
        others = np.minimum(others, len(jobs) - 1)
        is_here = jobs["job_idx"][others] == running.partner_job_idx[shares]
        partner[rows] = np.where(is_here, others, -1)
    return partner


def _without(fixed: Flags, partner: Ints, rows: Ints, jobs: Records, cluster: GpuCluster) -> GpuCluster:
    """The room that fixed jobs leave to the jobs in `rows`. Partners of fixed jobs hold nothing there."""
    pair = np.where((partner >= 0) & fixed[partner], partner, -1)
    counted = fixed & ~(is_second(pair) & fixed)
    nodes = cluster.nodes.copy()
    nodes["gpus"] -= cluster.gpus[counted].sum(axis=0).astype(nodes["gpus"].dtype)
    quota_gpus = cluster.quota_gpus
    if len(quota_gpus):
        held = cluster.gpus[fixed].sum(axis=1)
        quota_gpus = quota_gpus - np.bincount(jobs["tenant_idx"][fixed], held, len(quota_gpus))
    kept = np.where(((pair[rows] >= 0) | fixed[rows])[:, None], 0, cluster.gpus[rows])
    can_run = None if cluster.can_run is None else cluster.can_run[rows]
    places = cluster.places
    if places is not None:
        fixed_gpus = np.where(fixed[:, None], cluster.gpus, 0)
        places = replace(places.of(rows), room=places.left(fixed_gpus))
    held, types = Held.of(kept), cluster.type_names
    return GpuCluster(nodes, types, held, len(rows), quota_gpus, can_run, places, cluster.later)


def _all_held(found: Held, rows: Ints, fixed: Flags, cluster: GpuCluster) -> Held:
    gpus = np.where(fixed[:, None], cluster.gpus, 0)
    gpus[rows[found.rows]] = found.gpus
    return Held.of(gpus)


def _with_present(
    made: Allocation, fixed: Flags, partner: Ints, jobs: Records, running: Running
) -> Allocation:
    """Fixed jobs keep their batches; two of them that share GPUs go on to do so."""
    at = np.flatnonzero(np.isin(running.job_idx, jobs["job_idx"][fixed]))
    rows = np.searchsorted(jobs["job_idx"], running.job_idx[at])
    both = (partner[rows] >= 0) & fixed[partner[rows]]

    def kept(column: Any, default: float, present: Any) -> Any:
        every = np.full(len(jobs), default, present.dtype) if column is None else np.array(column)
        every[rows] = present
        return every

    return replace(
        made,
        local_batch=kept(made.local_batch, 0.0, running.local_batch[at]),
        accumulation=kept(made.accumulation, 0, running.accumulation[at]),
        partner_row=kept(made.partner_row, -1, np.where(both, partner[rows], -1)),
        share_frac=kept(made.share_frac, 1.0, np.where(both, running.share_frac[at], 1.0)),
    )


def _expected_ends_s(jobs: Records, cluster: GpuCluster, fixed: Flags, now_s: float, speed: Speed) -> Floats:
    """When each fixed job should end by its estimate, [jobs]; inf = others, or unknown."""
    rows = np.flatnonzero(fixed)
    gpus = cluster.gpus[rows]
    type_idx = cluster.held[rows].argmax(axis=1)
    ways = configs(gpus.sum(axis=1), nodes=(gpus > 0).sum(axis=1), type_idx=type_idx)
    with np.errstate(divide="ignore", invalid="ignore"):
        needs_s = jobs["restart_left_s"][rows] + jobs["work_left"][rows] / speed.goodput(jobs[rows], ways)
    ends_s = np.full(len(jobs), np.inf)
    ends_s[rows] = now_s + np.maximum(np.nan_to_num(needs_s, nan=np.inf, posinf=np.inf), _LEAST_PLAN_S)
    return ends_s
