"""One decision of an allocator, as every host takes it: asked, held to the rules, placed.

Jobs that may not be preempted, and pinned ones, keep the GPUs that they hold until they end or a node of them
goes. Allocators that do not know this rule (`keeps_fixed`) are not shown such jobs: they decide about the
others, on what is left of the nodes and of the tenants' quotas.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from trimtab.domain.allocator import Allocation, Allocator, Speed
from trimtab.domain.training_jobs import Flags, Floats, GpuCluster, Held, Ints, Records, configs
from trimtab.engine.policy_errors import line_of
from trimtab.errors import PolicyError, TrimtabError
from trimtab.training.allocation_check import AllocationCheck
from trimtab.training.gang_placement import PlacementRule
from trimtab.training.progress import Running
from trimtab.training.quotas import within_quotas
from trimtab.training.shared_gpus import is_second, partners_of, placed

_LEAST_PLAN_S: Final = 60.0  # a job that does not end as estimated is looked at again after so long


@dataclass(frozen=True)
class Decision:
    """An allocator's decision about all jobs, with their nodes."""

    allocation: Allocation
    held: Held
    spent_s: float  # by the allocator


@dataclass(frozen=True)
class Decider:
    """An allocator with its memory, and how a host asks it."""

    allocator: Allocator
    memory: Any
    check: AllocationCheck
    placement: PlacementRule
    most_jobs: int  # of the run, for which there is memory

    @classmethod
    def of(
        cls,
        allocator: Allocator,
        cluster: GpuCluster,
        job_ids: tuple[str, ...],
        placement: PlacementRule,
        room: int = 0,
    ) -> Decider:
        """For a run of these jobs, and so many that may come.

        Raises PolicyError for an allocator that makes no memory.
        """
        most = len(job_ids) + room
        memory = _called(allocator, "begins", lambda: allocator.init(cluster, most))
        return cls(allocator, memory, AllocationCheck(allocator, job_ids), placement, most)

    def with_jobs(self, job_ids: tuple[str, ...], cluster: GpuCluster) -> Decider:
        """The same, where jobs have come. Beyond its room the allocator forgets what it learned."""
        if len(job_ids) > self.most_jobs:
            return Decider.of(self.allocator, cluster, job_ids, self.placement, len(job_ids))
        return replace(self, check=AllocationCheck(self.allocator, job_ids))

    def decide(
        self, jobs: Records, cluster: GpuCluster, now_s: float, speed: Speed, running: Running | None = None
    ) -> Decision:
        """Decide about all jobs. `running`: what they do now. Raises PolicyError for a broken rule."""
        fixed = fixed_jobs(jobs, cluster)
        if self.allocator.keeps_fixed or not fixed.any():
            found = self._asked(jobs, cluster, now_s, speed)
        else:
            found = self._beside(fixed, jobs, cluster, now_s, speed, running)
        partner = partners_of(found.allocation, len(jobs))
        self.check.placed(jobs, cluster, found.held, partner, now_s)
        return found

    def _beside(
        self,
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
        found = self._asked(jobs[rows], left, now_s, speed) if is_asked else nothing
        allocation = _about_all(found.allocation, rows, len(jobs))
        if running is not None and len(running):
            allocation = _with_present(allocation, fixed, partner, jobs, running)
        if not is_asked or allocation.planned_end_s is not None:
            ends_s = _expected_ends_s(jobs, cluster, fixed, now_s, speed)
            planned_s = np.inf if allocation.planned_end_s is None else allocation.planned_end_s
            allocation = replace(allocation, planned_end_s=np.where(fixed, ends_s, planned_s))
        return Decision(allocation, _all_held(found.held, rows, fixed, cluster), found.spent_s)

    def _asked(self, jobs: Records, cluster: GpuCluster, now_s: float, speed: Speed) -> Decision:
        begun_s = time.perf_counter()
        made = _called(
            self.allocator,
            f"at {now_s:g} s",
            lambda: self.allocator.allocate(jobs, cluster, now_s, speed, self.memory),
        )
        spent_s = time.perf_counter() - begun_s
        allocation = self.check.shape(jobs, cluster, made, now_s)
        if len(cluster.quota_gpus) and not self.allocator.keeps_quotas:
            allocation = within_quotas(allocation, jobs, cluster)
        return Decision(allocation, placed(allocation, self.placement, cluster), spent_s)


def fixed_jobs(jobs: Records, cluster: GpuCluster) -> Flags:
    """Which jobs keep what they hold, [jobs]. Online services have a rule of their own."""
    found = np.zeros(len(jobs), np.bool_)
    held = cluster.now_held
    found[held.rows] = ~(held.gpus[:, ~cluster.nodes["up"]] > 0).any(axis=1)
    found &= (jobs["pinned"] | ~jobs["preemptible"]) & ~jobs["service"]
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
    return GpuCluster(nodes, cluster.type_names, Held.of(kept), len(rows), quota_gpus, can_run)


def _all_held(found: Held, rows: Ints, fixed: Flags, cluster: GpuCluster) -> Held:
    gpus = np.where(fixed[:, None], cluster.gpus, 0)
    gpus[rows[found.rows]] = found.gpus
    return Held.of(gpus)


def _about_all(found: Allocation, rows: Ints, n_jobs: int) -> Allocation:
    """The decision about `rows` as one about all jobs; places and counts are not in it."""

    def spread(column: Any, default: float) -> Any:
        if column is None:
            return None
        given = np.asarray(column)
        every = np.full(n_jobs, default, given.dtype)
        every[rows] = given
        return every

    def named(values: Any) -> dict[int, str]:
        return {int(rows[row]): text for row, text in values.items()}

    partner = None
    if found.partner_row is not None:
        of_rows = np.asarray(found.partner_row, np.int64)
        partner = spread(np.where(of_rows >= 0, rows[of_rows], -1), -1)
    return Allocation(
        local_batch=spread(found.local_batch, 0.0),
        accumulation=spread(found.accumulation, 0),
        partner_row=partner,
        share_frac=spread(found.share_frac, 1.0),
        rejected=named(found.rejected),
        admitted=None if found.admitted is None else rows[found.admitted],
        reasons=named(found.reasons),
        planned_end_s=spread(found.planned_end_s, np.inf),
        planned_finish_s=spread(found.planned_finish_s, np.inf),
        wake_s=found.wake_s,
    )


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
