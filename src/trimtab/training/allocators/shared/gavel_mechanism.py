"""Gavel's mechanism: from shares of time to who runs in a round.

Idea: a policy says which share of its time each job should run on each type of GPU. A job's priority on a
type is its share over the fraction of the type's time that it has had; in each round jobs run by priority
while they fit. Shares are computed anew when jobs came or went, but not more often than every `reset_s`
seconds; the time received is then counted anew. A job without shares waits for them.
Source: Narayanan et al., Gavel: Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads,
OSDI 2020, §5 and §6, and its simulator in the version of Zheng et al., Shockwave, NSDI 2023.
Deviations: time received is counted from what a job was given: whole steps of a round less the overhead of a
job that did not run in the round before, as in that simulator.

Gavel's mechanism with space sharing: shares of time of jobs alone and of pairs.

Idea: a policy gives shares of time to combinations: a job alone, or two jobs with as many GPUs each on the
same ones. In each round combinations run by priority, which is their share over the fraction of the type's
time that they have had, while they fit and none of their jobs runs already. When one of a pair has ended, the
other keeps the pair's share alone.
Source: Narayanan et al., Gavel: Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads,
OSDI 2020, §3.1 and §5, and its simulator.
Deviations: time received is counted from the seconds between two decisions. As in the source, shares are
computed anew when jobs came or went, but not more often than every `reset_s` seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, Literal, Self, TypeAlias

import numpy as np

from trimtab.domain.allocator import Allocation, Allocator, JobNeed, Speed
from trimtab.domain.parameters import NonNegative, Positive
from trimtab.domain.training_jobs import Floats, GpuCluster, Ints, Records, configs


@dataclass(frozen=True)
class ShareState:
    """The input of a policy of shares."""

    jobs: Records
    rate: Floats  # [jobs, types] steps per second with the GPUs asked for
    gpus: Floats  # [jobs] asked for
    type_gpus: Floats  # [types]
    now_s: float


@dataclass(frozen=True)
class GavelAllocator(Allocator):
    """Base of the policies of shares. A subclass writes `time_shares`.

    Attributes:
        round_s: length of a round, by which the time received is counted.
        reset_s: least time between two computations of shares.
        overhead_s: what a job loses that did not run in the round before.
        variant: "gavel", or "sia": shares are computed at each decision, the time received is never counted
            anew, whole rounds of it, and all types share one queue; so in the simulator of Sia, SOSP 2023.
    """

    needs: ClassVar[frozenset[JobNeed]] = frozenset({JobNeed.SCALING, JobNeed.WORK_LEFT})
    clock: ClassVar[str] = "step-rounds(period_s=120)"
    round_s: Positive = 120.0
    reset_s: NonNegative = 1000.0
    overhead_s: NonNegative = 20.0
    variant: Literal["gavel", "sia"] = "gavel"

    def time_shares(self, state: ShareState, memory: Any) -> Floats:
        """Share of its time that each job should run on each type, [jobs, types]."""
        raise NotImplementedError

    def policy_memory(self, n_jobs: int) -> Any:
        """Memory of the policy for one run."""
        return None

    def in_rounds_of(self, round_s: float) -> Self:
        """All times in the same ratio to a round."""
        scale = round_s / self.round_s
        return replace(
            self, round_s=round_s, reset_s=scale * self.reset_s, overhead_s=scale * self.overhead_s
        )

    def init(self, cluster: GpuCluster, n_jobs: int) -> Any:
        """Nothing received yet."""
        return _Received(n_jobs, len(cluster.type_names), self.round_s / 2), self.policy_memory(n_jobs)

    def allocate(
        self, jobs: Records, cluster: GpuCluster, now_s: float, speed: Speed, memory: Any
    ) -> Allocation:
        """Serve by priority."""
        received, own = memory
        types = configs(jobs["gpus_requested"][:, None], type_idx=np.arange(len(cluster.type_names)))
        rate = speed.goodput(jobs[:, None], types)
        is_sia = self.variant == "sia"
        received.count_round(self.round_s, self.overhead_s, whole=is_sia)
        gpus = jobs["gpus_requested"].astype(np.float64)
        state = ShareState(jobs, rate, gpus, cluster.type_gpus.astype(np.float64), now_s)
        received.update(state, math.inf if is_sia else self.reset_s, lambda: self.time_shares(state, own))
        counts = received.chosen(state, one_queue=is_sia)
        received.note(state, counts)
        return Allocation(counts=counts, wake_s=math.inf if is_sia else received.due_s(self.reset_s))


class _Received:
    """Time received by each job on each type since the last reset."""

    def __init__(self, n_jobs: int, types: int, start_s: float) -> None:
        self.share = np.full((n_jobs, types), np.nan)  # nan = not computed
        self.time_s = np.full((n_jobs, types), start_s)
        self.deficit_s = np.zeros((n_jobs, types))
        self.total_s = np.zeros(types)
        self._start_s, self._reset_s = start_s, 0.0
        self._active: Ints = np.zeros(0, np.int64)
        self._is_due = True
        self._gave: tuple[Ints, Ints, Floats, Floats] | None = None  # job, type, rate, steps left
        self._before: Ints = np.zeros(0, np.int64)
        self._rounds, self._begun_s = 0, 0.0

    def count_round(self, round_s: float, overhead_s: float, *, whole: bool) -> None:
        """Add the time of the round that has ended."""
        if self._gave is None:
            return
        job, type_idx, rate, left = self._gave
        took_s = (self._begun_s + np.minimum(np.floor(rate * round_s), left) / rate) - self._begun_s
        self._is_due |= bool((left <= 0).any())
        resumed = (
            ~np.isin(job, self._before) & (took_s > round_s - min(5.0, round_s / 24)) & (self._rounds > 1)
        )
        took_s = np.full(len(job), round_s) if whole else took_s - np.where(resumed, overhead_s, 0.0)
        self.time_s[job, type_idx] += took_s
        np.add.at(self.total_s, type_idx, took_s)
        self._before = job

    def update(self, state: ShareState, least_s: float, shares: Callable[[], Floats]) -> None:
        """Compute shares anew if jobs came or went and it is time; inf = always, without a reset."""
        active = state.jobs["job_idx"].astype(np.int64)
        self._is_due |= len(active) != len(self._active) or bool((active != self._active).any())
        self._active = active
        if least_s == math.inf:
            self.share[active] = shares()
            self.total_s = self.time_s.sum(axis=0) if not self.total_s.any() else self.total_s
            return
        since_s = state.now_s - self._reset_s
        if self._is_due and (since_s >= least_s or self._reset_s == 0):
            had_s = self.time_s[active] - self._start_s
            self.deficit_s[active] += np.nan_to_num(self.share[active]) * since_s - had_s
            self.time_s[active] = self._start_s
            self.total_s = self.time_s[active].sum(axis=0)
            self._reset_s = state.now_s
            self.share[active] = shares()
            self._is_due = False

    def due_s(self, least_s: float) -> float:
        """When jobs without shares get some; inf = nothing is due."""
        return self._reset_s + least_s if self._is_due else math.inf

    def chosen(self, state: ShareState, *, one_queue: bool) -> Ints:
        """Counts [jobs, types] in order of priority, type after type or all in one queue."""
        active, types = self._active, len(self.total_s)
        share = self.share[active]
        with np.errstate(divide="ignore", invalid="ignore"):
            fraction = np.where(self.total_s > 0, self.time_s[active] / self.total_s, 0.0)
            priority = np.where(fraction > 0, share / fraction, share * 1e9)
        priority = np.where(state.rate > 0, np.nan_to_num(priority), 0.0)
        known = ~np.isnan(share)
        free, counts = state.type_gpus.copy(), np.zeros((len(active), types), np.int64)
        taken = np.zeros(len(active), np.bool_)
        keys = (-np.nan_to_num(share), -self.deficit_s[active], -priority)
        if one_queue:
            queue = [divmod(int(k), types) for k in np.lexsort([key.ravel() for key in keys])]
        else:
            of_type = (np.lexsort([key[:, t] for key in keys]) for t in range(types))
            queue = [(int(row), t) for t, rows in enumerate(of_type) for row in rows]
        for row, t in queue:
            if free[t] == 0 or taken[row] or state.rate[row, t] <= 0 or state.gpus[row] > free[t]:
                continue
            free[t] -= state.gpus[row]
            taken[row] = True
            counts[row, t] = state.gpus[row] if known[row, t] else 0
        return counts

    def note(self, state: ShareState, counts: Ints) -> None:
        """Remember what was given."""
        row, type_idx = np.nonzero(counts)
        left = state.jobs["work_left"][row]
        self._gave = (self._active[row], type_idx, state.rate[row, type_idx], left)
        self._rounds += 1
        self._begun_s = state.now_s


_ROUND_S: Final = 120.0  # of the source, to which `reset_s` belongs
Combination: TypeAlias = tuple[int, ...]  # one or two rows, or job_idx; ascending


@dataclass(frozen=True)
class PackState:
    """The input of a policy of shares with pairs."""

    jobs: Records
    rate: Floats  # [jobs, types] alone, with the GPUs asked for
    gpus: Ints  # [jobs] asked for
    type_gpus: Ints  # [types]
    speed: Speed
    decision: int  # number of the decision, from 0

    def pair_rates(self, first: Ints, second: Ints) -> tuple[Floats, Floats]:
        """Work per second of rows beside each other, [pairs, types] each; nan = not known."""
        types = configs(self.gpus[first][:, None], type_idx=np.arange(len(self.type_gpus)))
        return self.speed.shared(self.jobs[first][:, None], self.jobs[second][:, None], types)


@dataclass
class PackMemory:
    """Shares in force, and the time received since they were computed; keys are job_idx."""

    share: dict[Combination, Floats] = field(default_factory=dict)  # [types]
    time_s: dict[Combination, Floats] = field(default_factory=dict)  # [types]
    ran: dict[Combination, int] = field(default_factory=dict)  # type
    known: frozenset[int] = frozenset()
    since_s: float = -np.inf
    last_s: float = 0.0
    decision: int = 0
    policy: Any = None


@dataclass(frozen=True)
class PackedGavelAllocator(Allocator):
    """Base of the policies with pairs. A subclass writes `combination_shares`.

    Attributes:
        reset_s: least time between two computations of shares, after which time received counts anew; 0 =
            shares are computed at each decision, and all time counts.
    """

    needs: ClassVar[frozenset[JobNeed]] = frozenset({JobNeed.SCALING, JobNeed.WORK_LEFT, JobNeed.SHARING})
    shares: ClassVar[bool] = True
    clock: ClassVar[str] = "step-rounds(period_s=120)"
    reset_s: float = 1000.0

    def combination_shares(self, state: PackState, memory: Any) -> dict[Combination, Floats]:
        """Share of time of each combination of rows on each type, [types]."""
        raise NotImplementedError

    def policy_memory(self, n_jobs: int) -> Any:
        """Memory of the policy for one run."""
        return None

    def in_rounds_of(self, round_s: float) -> Self:
        """The time between two computations in the same ratio to a round."""
        return replace(self, reset_s=self.reset_s * round_s / _ROUND_S)

    def init(self, cluster: GpuCluster, n_jobs: int) -> PackMemory:
        """Nothing received yet."""
        return PackMemory(policy=self.policy_memory(n_jobs))

    def allocate(
        self, jobs: Records, cluster: GpuCluster, now_s: float, speed: Speed, memory: PackMemory
    ) -> Allocation:
        """Serve combinations by priority."""
        gpus = jobs["gpus_requested"].astype(np.int64)
        types = configs(gpus[:, None], type_idx=np.arange(len(cluster.type_names)))
        rate = speed.goodput(jobs[:, None], types)
        state = PackState(jobs, rate, gpus, cluster.type_gpus, speed, memory.decision)
        memory.decision += 1
        self._count(memory, now_s)
        self._update(memory, state, now_s)
        row_of = {int(j): i for i, j in enumerate(jobs["job_idx"])}
        counts = np.zeros((len(jobs), len(cluster.type_names)), np.int64)
        partner = np.full(len(jobs), -1, np.int64)
        memory.ran = _chosen(memory, row_of, gpus, cluster.type_gpus)
        for combination, t in memory.ran.items():
            rows = [row_of[j] for j in combination]
            counts[rows, t] = gpus[rows]
            if len(rows) == 2:
                partner[rows] = rows[::-1]
        is_due = memory.known != row_of.keys()
        wake_s = memory.since_s + self.reset_s if is_due else math.inf
        return Allocation(counts=counts, partner_row=partner, wake_s=wake_s)

    def _count(self, memory: PackMemory, now_s: float) -> None:
        for combination, t in memory.ran.items():
            memory.time_s[combination][t] += now_s - memory.last_s
        memory.last_s = now_s

    def _update(self, memory: PackMemory, state: PackState, now_s: float) -> None:
        index = state.jobs["job_idx"]
        active = frozenset(int(j) for j in index)
        if active != memory.known:
            _forget(memory, active)
        elif self.reset_s > 0:
            return
        if now_s - memory.since_s < self.reset_s:
            return
        found = self.combination_shares(state, memory.policy)
        memory.share = {tuple(int(index[i]) for i in rows): share for rows, share in found.items()}
        had_s = memory.time_s if self.reset_s == 0 else {}
        nothing = np.zeros(len(state.type_gpus))
        memory.time_s = {c: had_s.get(c, nothing).copy() for c in memory.share}
        memory.known, memory.since_s = active, now_s


def _forget(memory: PackMemory, active: frozenset[int]) -> None:
    """Jobs that ended leave their combinations; what their partners had as pairs they keep alone."""
    for values in (memory.share, memory.time_s):
        for combination in [c for c in values if not active.issuperset(c)]:
            value = values.pop(combination)
            if left := tuple(j for j in combination if j in active):
                values[left] = values.get(left, 0.0) + value
    memory.ran = {}


def _chosen(
    memory: PackMemory, row_of: dict[int, int], gpus: Ints, type_gpus: Ints
) -> dict[Combination, int]:
    """Combination → type of those that run, by priority on each type."""
    total_s = np.sum(list(memory.time_s.values()), axis=0) if memory.time_s else np.zeros(len(type_gpus))
    ranked = []
    for combination, share in memory.share.items():
        with np.errstate(divide="ignore", invalid="ignore"):
            fraction = np.where(total_s > 0, memory.time_s[combination] / total_s, 0.0)
            priority = np.where(fraction > 0, share / fraction, share * 1e9)
        ranked += [(-priority[t], -share[t], t, combination) for t in np.flatnonzero(share > 1e-9)]
    free, taken, chosen = type_gpus.copy(), set[int](), dict[Combination, int]()
    for _, _, t, combination in sorted(ranked):
        needed = int(gpus[row_of[combination[0]]])
        if needed <= free[t] and taken.isdisjoint(combination):
            free[t] -= needed
            taken.update(combination)
            chosen[combination] = int(t)
    return chosen
