"""Gavel's mechanism with space sharing: shares of time of jobs alone and of pairs.

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
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, Self, TypeAlias

import numpy as np

from trimtab.domain.allocator import Allocation, Allocator, JobNeed, Speed
from trimtab.domain.training_jobs import Floats, GpuCluster, Ints, Records, configs

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
