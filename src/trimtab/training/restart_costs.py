"""The cost of a change of a job's allocation: seconds in which it holds GPUs and makes no progress.

flat(seconds_s=30)      the same for all (Pollux)
per-model               seconds of each model (Sia), from the workload's column `restart_s`
none                    nothing
elasticflow             ElasticFlow's formula of the number of GPUs
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from trimtab.compiled.elementwise import elementwise
from trimtab.domain.parameters import Count, NonNegative
from trimtab.domain.training_jobs import Flags, Floats, Ints, Workload


@dataclass(frozen=True, slots=True)
class Change:
    """One decision, as the cost of restarts sees it: the jobs that hold GPUs after it."""

    number: int  # of the decision, from 0
    job_idx: Ints  # [rows]
    n_gpus: Ints  # [rows]
    changed: Flags  # [rows] in count, type or nodes; True for a job that starts or resumes
    started: Flags  # [rows] had no GPUs before
    more_arrivals: bool  # whether jobs are still to come
    gpus: Ints  # [rows, nodes] on each node
    total_gpus: int  # of the cluster


class RestartCost(Protocol):
    """Charges a decision."""

    name: ClassVar[str]

    @property
    def carries(self) -> bool:
        """Whether what is left of a restart goes on after the next decision; else it is forgotten there."""

    @property
    def is_forgiven(self) -> bool:
        """Whether a job that ends before the next decision is spared the restart last charged."""

    def begin(self, workload: Workload, total_gpus: int) -> None:
        """Prepare a run."""

    def expected_s(self, job_idx: Ints, n_gpus: Ints) -> Floats:
        """The cost of a restart of each job with so many GPUs, for JOBS records."""

    def charge_s(self, change: Change) -> Floats:
        """Seconds charged to each row, [rows]; nan = nothing new: what is left of an old restart goes on."""

    def spend(self, interval: Interval) -> Spent:
        """How jobs spend the time between two decisions."""


@dataclass(frozen=True, slots=True)
class Interval:
    """The time between two decisions, for each job that holds GPUs."""

    begin_s: float
    end_s: float
    restart_left_s: Floats  # [rows]
    needed_s: Callable[[], Floats]  # [rows] seconds of progress that finish each
    planned_end_s: Floats  # [rows] as the allocator said; inf = it said nothing
    planned_finish_s: Floats  # [rows]


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds of each job in an interval, [rows]."""

    restart_s: Floats
    progress_s: Floats
    ends_s: Floats | None = None  # time at which it ends whatever its progress; inf = it goes on


class _Charges:
    """The common part of most costs: nothing is forgotten or forgiven, and nothing to prepare."""

    carries: ClassVar[bool] = True
    is_forgiven: bool = False

    def begin(self, workload: Workload, total_gpus: int) -> None:
        """Nothing to prepare."""

    def spend(self, interval: Interval) -> Spent:
        """First what is left of the restart, then progress."""
        elapsed_s, left_s = interval.end_s - interval.begin_s, interval.restart_left_s
        if self.is_forgiven:
            left_s = np.where(interval.needed_s() <= elapsed_s, 0.0, left_s)
        restart_s = np.minimum(left_s, elapsed_s)
        return Spent(restart_s, elapsed_s - restart_s)


class NoRestartCost(_Charges):
    """Restarts are free."""

    name: ClassVar[str] = "none"

    def expected_s(self, job_idx: Ints, n_gpus: Ints) -> Floats:
        """Zeros."""
        return np.zeros(len(job_idx))

    def charge_s(self, change: Change) -> Floats:
        """Zeros."""
        return np.zeros(len(change.job_idx))


@dataclass
class FlatRestart(_Charges):
    """The same seconds for each change."""

    name: ClassVar[str] = "flat"
    seconds_s: NonNegative = 30.0

    def expected_s(self, job_idx: Ints, n_gpus: Ints) -> Floats:
        """The flat cost."""
        return np.full(len(job_idx), self.seconds_s)

    def charge_s(self, change: Change) -> Floats:
        """The flat cost where something changed."""
        return np.where(change.changed, self.seconds_s, np.nan)


class PerModelRestart(_Charges):
    """Seconds of each job's model: the workload's column `restart_s` [models]."""

    name: ClassVar[str] = "per-model"

    def begin(self, workload: Workload, total_gpus: int) -> None:
        """Look the seconds of each job up."""
        self._restart_s = np.asarray(workload.columns["restart_s"], np.float64)[workload.model_idx]

    def expected_s(self, job_idx: Ints, n_gpus: Ints) -> Floats:
        """The model's cost."""
        return self._restart_s[job_idx]

    def charge_s(self, change: Change) -> Floats:
        """The model's cost where something changed."""
        return np.where(change.changed, self._restart_s[change.job_idx], np.nan)


@dataclass
class ElasticFlowRestart(_Charges):
    """ElasticFlow's formula: `base + 2 (log2 gpus + 1)` seconds, where base is 2, or 7 from 256 GPUs up.

    Each `slot` decisions all trainers restart. That costs every running job the formula and 27 s more, or
    47 s from 256 GPUs up.
    """

    name: ClassVar[str] = "elasticflow"
    slot: Count = 60

    def begin(self, workload: Workload, total_gpus: int) -> None:
        """Choose the constants by the size of the cluster."""
        self.base_s, self.all_s = (7.0, 47.0) if total_gpus >= 256 else (2.0, 27.0)

    def expected_s(self, job_idx: Ints, n_gpus: Ints) -> Floats:
        """The formula without the restart of all trainers."""
        return self.base_s + 2.0 * (elementwise(math.log2, np.maximum(n_gpus, 1)) + 1.0)

    def charge_s(self, change: Change) -> Floats:
        """The formula for the jobs that changed, or for all."""
        cost_s = self.expected_s(change.job_idx, change.n_gpus)
        if self.is_for_all(change):
            return cost_s + self.all_s
        return np.where(change.changed, cost_s, np.nan)

    def is_for_all(self, change: Change) -> bool:
        """Whether all trainers restart at this decision."""
        return change.number > 0 and change.number % self.slot == 0


@dataclass
class ElasticFlowTiresiasRestart(ElasticFlowRestart):
    """As ElasticFlow's simulator charges Tiresias: jobs that start or resume pay, those that move do not.

    A restart is forgotten at the next decision, and forgiven to a job that ends before it, except where all
    trainers restart.
    """

    name: ClassVar[str] = "elasticflow-tiresias"
    carries: ClassVar[bool] = False

    def charge_s(self, change: Change) -> Floats:
        """The formula for the jobs that start or resume, or for all."""
        self.is_forgiven = not self.is_for_all(change)
        cost_s = self.expected_s(change.job_idx, change.n_gpus)
        return cost_s + self.all_s if not self.is_forgiven else np.where(change.started, cost_s, np.nan)


@dataclass
class ElasticFlowEveryRestart(ElasticFlowRestart):
    """As ElasticFlow's simulator charges itself: every running job pays at every decision.

    A worker group that ran before on the same GPUs pays the base alone. When all trainers restart, the groups
    are forgotten. A restart is forgotten at the next decision. A job ends when its plan says so, though the
    restart delayed it. If it is not yet to end, it makes no progress after the finish that was promised.
    """

    name: ClassVar[str] = "elasticflow-every"
    carries: ClassVar[bool] = False

    def begin(self, workload: Workload, total_gpus: int) -> None:
        """Forget the worker groups."""
        super().begin(workload, total_gpus)
        self._groups: set[tuple[int, int]] = set()

    def charge_s(self, change: Change) -> Floats:
        """The formula, or the base for groups that ran before. Groups lie side by side, largest first."""
        order = np.argsort(-change.n_gpus, kind="stable")
        first = np.cumsum(change.n_gpus[order]) - change.n_gpus[order]
        groups = list(zip(first.tolist(), change.n_gpus[order].tolist(), strict=True))
        ran = np.zeros(len(order), np.bool_)
        ran[order] = [group in self._groups for group in groups]
        self._groups.update(groups)
        cost_s = self.expected_s(change.job_idx, change.n_gpus)
        if self.is_for_all(change):
            self._groups.clear()
            cost_s = cost_s + self.all_s
        return np.where(ran, self.base_s, cost_s)

    def spend(self, interval: Interval) -> Spent:
        """By plan: see above."""
        until_s = np.minimum(interval.planned_finish_s, interval.end_s)
        run_s = np.maximum(until_s - interval.begin_s, 0.0)
        restart_s = np.minimum(interval.restart_left_s, run_s)
        due_s = interval.planned_end_s + interval.restart_left_s
        ends_s = np.where(due_s <= interval.end_s, interval.planned_finish_s, np.inf)
        progress_s = run_s - restart_s
        early = (interval.needed_s() <= progress_s) & (ends_s == np.inf)
        ends_s = np.where(early, interval.planned_finish_s, ends_s)
        return Spent(restart_s, progress_s, ends_s)


@dataclass
class ElasticFlowGandivaRestart(ElasticFlowRestart):
    """As ElasticFlow's simulator charges Gandiva: every job at every decision while jobs still arrive.

    After the last arrival, a job pays what it was last charged when it next runs, once.
    """

    name: ClassVar[str] = "elasticflow-gandiva"
    carries: ClassVar[bool] = False

    def begin(self, workload: Workload, total_gpus: int) -> None:
        """Forget what jobs owe."""
        super().begin(workload, total_gpus)
        self._owed_s = np.zeros(len(workload))
        self._each_s = self.expected_s(np.arange(len(workload)), workload.gpus_requested)

    def charge_s(self, change: Change) -> Floats:
        """The restart seconds that each job owes."""
        if change.more_arrivals:
            self._owed_s[:] = self._each_s + (self.all_s if self.is_for_all(change) else 0.0)
        owed_s = self._owed_s[change.job_idx]
        self._owed_s[change.job_idx] = 0.0
        return owed_s


RESTART_COSTS: dict[str, type] = {
    c.name: c
    for c in (
        NoRestartCost,
        FlatRestart,
        PerModelRestart,
        ElasticFlowRestart,
        ElasticFlowEveryRestart,
        ElasticFlowTiresiasRestart,
        ElasticFlowGandivaRestart,
    )
}
