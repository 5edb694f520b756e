"""Decisions of an allocator in a process of their own, so that no allocator holds up the run.

Before the run begins the process decides once about all of its jobs, for nothing: what has to be compiled
is compiled then, and kept in the cache.
"""

from __future__ import annotations

import contextlib
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass
from typing import Any, Final

from trimtab.domain.training_jobs import GpuCluster, Ints, Records
from trimtab.errors import PolicyError
from trimtab.training.allocator_catalogue import find_allocator, placement_of
from trimtab.training.compilation import compile_planning
from trimtab.training.decisions import Decider, Decision
from trimtab.training.runner.adaptive_speed import AdaptiveSpeed
from trimtab.training.runner.batch_plan import BatchPlan
from trimtab.training.runner.job_list import RunRules
from trimtab.training.runner.rank_protocol import Report
from trimtab.training.runner.work_process import WorkProcess

ROOM: Final = 1000  # jobs that may be added to a run before its allocator begins anew


@dataclass(frozen=True, slots=True)
class Question:
    """The state of a run that an allocator is asked about. Nothing of it changes."""

    job_idx: Ints  # [active jobs]
    jobs: Records  # JOBS
    cluster: GpuCluster
    now_s: float
    speed: AdaptiveSpeed
    job_ids: tuple[str, ...]  # of all jobs of the run


@dataclass(frozen=True, slots=True)
class AllocatorChoice:
    """An allocator, and how it is asked."""

    policy: str
    rules: RunRules

    def decider(self, first: Question) -> Decider:
        """It, at the beginning of a run. Raises UsageError and PolicyError."""
        allocator, rules = find_allocator(self.policy), self.rules
        allocator = allocator if rules.round_s is None else allocator.in_rounds_of(rules.round_s)
        placement = placement_of(rules.placement or allocator.placement)
        strict = rules.priorities == "strict"
        return Decider.of(allocator, first.cluster, first.job_ids, placement, ROOM, strict_priority=strict)


class Deciding:
    """An allocator in a process of its own."""

    def __init__(self, choice: AllocatorChoice) -> None:
        self._choice, self._process = choice, WorkProcess()

    async def open(self, first: Question) -> None:
        """Make the allocator, and have compiled what it needs. `first`: all jobs, none of which runs yet.

        Raises UsageError and PolicyError.
        """
        await self._call(_begin, self._choice, first)

    async def decide(self, question: Question) -> Decision:
        """The decision. Raises PolicyError for one that breaks a rule, and where the process ends."""
        decision: Decision = await self._call(_decide, question)
        return decision

    async def _call(self, *call: Any) -> Any:
        try:
            return await self._process.call(*call)
        except BrokenExecutor as error:
            name = self._choice.policy
            raise PolicyError(f"allocator {name!r}: the process in which it decides has ended") from error

    def close(self) -> None:
        """End the process, whatever it does."""
        self._process.close()


_decider: Decider  # in the process only
_made_for: tuple[AllocatorChoice, int]  # and of how many nodes it knows


def _begin(choice: AllocatorChoice, first: Question) -> None:
    global _decider, _made_for
    compile_planning()
    _decider, _made_for = choice.decider(first), (choice, len(first.cluster.nodes))
    _use_speed(first)
    with contextlib.suppress(Exception):  # an error of the allocator is told where it decides about the jobs
        choice.decider(first).decide(first.jobs, first.cluster, first.now_s, first.speed)


def _use_speed(first: Question) -> None:
    """Fit speeds to two made-up reports of each kind of job: the process has its own copy of the estimate."""
    speed = first.speed
    kinds = {bool(speed.adapts[k]): int(k) for k in first.job_idx}
    for job in kinds.values():
        for gpus in (1, 2):
            speed.report(job, 1, gpus, BatchPlan(8, 4), Report(1, 8, 1.0, 0.1, 1.0, 1.0, -1, ""))
        speed.work_per_s(job, 1, 3)
        speed.plan(job, 1, 2, 0, 0.0)


def _decide(question: Question) -> Decision:
    global _decider, _made_for
    choice, n_nodes = _made_for
    if len(question.cluster.nodes) != n_nodes:  # the allocator forgets what it learned
        _decider, _made_for = choice.decider(question), (choice, len(question.cluster.nodes))
    elif len(question.job_ids) != _decider.check.n_jobs:
        _decider = _decider.with_jobs(question.job_ids, question.cluster)
    return decided_by(_decider, question)


def decided_by(decider: Decider, asked: Question) -> Decision:
    """The decision of an allocator about real jobs. Raises PolicyError."""
    made = decider.decide(asked.jobs, asked.cluster, asked.now_s, asked.speed)
    partner, share_frac = made.allocation.partner_row, made.allocation.share_frac
    shares = partner is not None and (partner >= 0).any()
    if shares or (share_frac is not None and (share_frac < 1.0).any()):
        what = "shares slots; real jobs have theirs alone"
        raise PolicyError(f"allocator {decider.allocator.label!r} at {asked.now_s:g} s: {what}")
    return made
