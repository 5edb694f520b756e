"""How fast jobs are, for whole runs: from profiles to the truth of a run, and to what no schedule can beat.

A model of jobs makes the `Truth` of each run. It knows what its estimates tell, which clock its truth asks
for, and the least time and service of every job.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from trimtab.domain.allocator import JobNeed, Speed
from trimtab.domain.service_loads import PairSpeeds
from trimtab.domain.training_jobs import Floats, Ints, Workload
from trimtab.domain.training_profiles import ScalingTable
from trimtab.training.truths.least_service import least_of_replayed, least_of_stepped, least_of_table
from trimtab.training.truths.progress import Truth
from trimtab.training.truths.replay_truth import ReplayTruth
from trimtab.training.truths.replay_workloads import alone_seconds
from trimtab.training.truths.stepped_truth import SteppedJob, SteppedTruth, StepRates
from trimtab.training.truths.table_model import TableTruth

_ALWAYS = frozenset({JobNeed.SCALING, JobNeed.WORK_LEFT, JobNeed.DEADLINES, JobNeed.ORACLE})


class JobModel(Protocol):
    """A maker of the truth of runs."""

    @property
    def provides(self) -> frozenset[JobNeed]:
        """The needs of allocators that its estimates meet."""

    def clock(self, own: str) -> str:
        """The clock for an allocator whose own one is this."""

    def truth(self) -> Truth:
        """A truth for one run."""

    def least(self, workload: Workload) -> tuple[Floats, Floats]:
        """Least seconds [jobs], and least GPU seconds [jobs, types]; inf = never. No schedule needs less."""

    def alone_s(self, workload: Workload, gpus: Floats) -> Floats:
        """Seconds of each job alone on so many GPUs, which may be less than one; nan = not known."""

    def resumed(self, workload: Workload, work_left: Floats | None, seen_gpus: Ints) -> tuple[Truth, Speed]:
        """The truth and the estimate of jobs under way.

        `work_left` as in JOBS records, None = all of it; `seen_gpus`: most GPUs with which each has run.
        """


@dataclass(frozen=True)
class TableJobs:
    """Work per second by model, batch, type and number of GPUs."""

    table: ScalingTable
    finish_rounding: str = "exact"
    estimate: ScalingTable | None = None  # what allocators see; None = the table
    pairs: PairSpeeds | None = None  # speeds of two jobs on the same GPUs; None = as of unknown models
    pair_estimate: PairSpeeds | None = None  # what allocators see of them; None = the true ones

    @property
    def provides(self) -> frozenset[JobNeed]:
        """Scaling, pairs, losses, and types where the table has several."""
        return (
            _ALWAYS
            | {JobNeed.SHARING, JobNeed.LOSSES}
            | ({JobNeed.TYPES} if len(self.table.rate_per_s) > 1 else set())
        )

    def clock(self, own: str) -> str:
        """Its own."""
        return own

    def truth(self) -> Truth:
        """The table."""
        return TableTruth(
            self.table,
            finish_rounding=self.finish_rounding,
            estimate=self.estimate,
            pairs=self.pairs,
            pair_estimate=self.pair_estimate,
        )

    def least(self, workload: Workload) -> tuple[Floats, Floats]:
        """Over all counts that a job may have."""
        return least_of_table(workload, self.table)

    def alone_s(self, workload: Workload, gpus: Floats) -> Floats:
        """On the first type; jobs that do not scale take turns on what they ask for."""
        whole = _whole_gpus(workload, gpus)
        curve = self.table.curves_of(workload.model_idx, workload.batch)
        rate = self.table.rates(curve, np.zeros_like(curve), whole)
        with np.errstate(divide="ignore"):
            alone_s = np.where(rate > 0, workload.work / rate, np.nan)
        return alone_s * np.maximum(whole / gpus, 1.0)

    def resumed(self, workload: Workload, work_left: Floats | None, seen_gpus: Ints) -> tuple[Truth, Speed]:
        """Jobs whose work is what is left."""
        if work_left is not None:
            workload = replace(workload, work=work_left, declared_work=work_left)
        truth = self.truth()
        return truth, truth.begin(workload)


@dataclass(frozen=True)
class ReplayJobs:
    """Measured steps and gradient noise."""

    replay: ReplayTruth
    type_share: Sequence[float] = (1.0,)  # of the cluster's GPUs

    @property
    def provides(self) -> frozenset[JobNeed]:
        """Goodput, losses, and types where there are several."""
        types = {JobNeed.TYPES} if len(self.replay.profiles[0].steps) > 1 else set()
        return _ALWAYS | {JobNeed.GOODPUT, JobNeed.LOSSES} | types

    def clock(self, own: str) -> str:
        """Rounds of 60 s, as in the published simulators, where its own one follows finishes."""
        if own.startswith(("rounds", "leases", "plans")):
            return own
        return own.removeprefix("step-") if own.startswith("step-rounds") else "rounds(period_s=60)"

    def truth(self) -> Truth:
        """The replay: each run starts it anew."""
        return self.replay

    def least(self, workload: Workload) -> tuple[Floats, Floats]:
        """From the fastest measured steps."""
        return least_of_replayed(workload, self.replay.profiles)

    def alone_s(self, workload: Workload, gpus: Floats) -> Floats:
        """At the batch that each job asked for."""
        whole = _whole_gpus(workload, gpus)
        place = {profile.name: i for i, profile in enumerate(self.replay.profiles)}
        app = np.array([place[workload.model_names[m]] for m in workload.model_idx], np.int64)
        alone_s = alone_seconds(self.replay.profiles, app, workload.batch, whole, self.type_share)
        return alone_s * np.maximum(whole / gpus, 1.0)

    def resumed(self, workload: Workload, work_left: Floats | None, seen_gpus: Ints) -> tuple[Truth, Speed]:
        """Jobs that have reported the measurements with so many GPUs as they ran with."""
        speed = self.replay.begin(workload)
        self.replay.resume(work_left, seen_gpus)
        return self.replay, speed


@dataclass(frozen=True)
class SteppedJobs:
    """Whole steps in rounds, with a batch that changes."""

    rates: StepRates
    jobs: Sequence[SteppedJob]
    period_s: float = 120.0

    @property
    def provides(self) -> frozenset[JobNeed]:
        """Speeds, types where there are several, and pairs where they were measured."""
        pairs = {JobNeed.SHARING} if self.rates.pairs is not None else set()
        return _ALWAYS | pairs | ({JobNeed.TYPES} if len(self.rates.by_type) > 1 else set())

    def clock(self, own: str) -> str:
        """Rounds of whole steps."""
        return f"step-rounds(period_s={self.period_s:g})"

    def truth(self) -> SteppedTruth:
        """The jobs at their start."""
        return SteppedTruth(self.rates, self.jobs, period_s=self.period_s)

    def least(self, workload: Workload) -> tuple[Floats, Floats]:
        """All samples at the fastest batch."""
        return least_of_stepped(workload, self.rates, self.jobs)

    def alone_s(self, workload: Workload, gpus: Floats) -> Floats:
        """Their numbers of GPUs are fixed: they take turns where they have fewer."""
        return workload.duration_s * np.maximum(workload.gpus_requested / gpus, 1.0)

    def resumed(self, workload: Workload, work_left: Floats | None, seen_gpus: Ints) -> tuple[Truth, Speed]:
        """Jobs at their first batch, with fewer steps left."""
        truth = self.truth()
        speed = truth.begin(workload)
        if work_left is not None:
            truth.resume(work_left)
        return truth, speed


def _whole_gpus(workload: Workload, gpus: Floats) -> Ints:
    """Whole GPUs of jobs that have so many: none more than they can use; fixed ones have all."""
    least = np.where(workload.scales, workload.gpus_min, workload.gpus_requested)
    most = np.where(workload.scales, workload.gpus_max, workload.gpus_requested)
    return np.clip(np.floor(gpus).astype(np.int64), np.maximum(least, 1), most)


def restart_seconds(names: Sequence[str], known: Mapping[str, float], other_s: float = 30.0) -> list[float]:
    """The cost of a restart of each model, for the workload's column `restart_s`."""
    return [known.get(name, other_s) for name in names]
