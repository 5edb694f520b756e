"""Gavel's finish-time fairness: the largest ratio of finish time shared to alone is as small as possible."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

from trimtab.domain.training_jobs import Floats
from trimtab.training.allocators.shared.gavel_mechanism import GavelAllocator, ShareState
from trimtab.training.allocators.shared.max_min_programme import central_shares

_LEAST_WORK = 1e-9  # left of a job that goes on longer than it declared


@dataclass
class _Alone:
    """Seconds that jobs would have run alone for what they have done so far."""

    done_s: dict[int, float] = field(default_factory=dict)
    before: dict[int, tuple[float, float]] = field(default_factory=dict)  # work left, speed alone


@dataclass(frozen=True)
class FinishTimeFairness(GavelAllocator):
    """Shares with the smallest possible largest ratio ρ of finish times.

    Idea
        ρ = (age + work left / (speed · share)) / (time alone so far + work left / speed alone). Alone means
        with 1/n of the cluster for n jobs. For a given ρ each job's least share is in closed form, so the
        smallest ρ that fits is found by bisection. Gavel's mechanism gives rounds.
    Source
        Mahajan et al., Themis: Fair and Efficient GPU Cluster Scheduling, NSDI 2020, §3, as the policy
        "finish_time_fairness" of Narayanan et al., Gavel, OSDI 2020, §4.2, and of the simulator of Zheng et
        al., Shockwave, NSDI 2023.
    Reads
        gpus_requested, age_s, work_left, goodput.
    Cost
        O(jobs) for each of 60 steps of the bisection.
    When it wins / loses
        Few jobs finish much later than they would alone. Efficiency is no aim.
    Deviations from the source
        The paper's auctions of leases are replaced by the central programme, as in Gavel. The source solves
        it with a conic solver; where it leaves shares free, they are the analytic centre here (`tie`
        "centre") or the least ones (`tie` "least"). Of several types of GPU the fastest one counts for a job.
    """

    name: ClassVar[str] = "finish-time-fairness"
    tie: Literal["centre", "least"] = "centre"

    def policy_memory(self, n_jobs: int) -> Any:
        """Nothing done yet."""
        return _Alone()

    def time_shares(self, state: ShareState, memory: Any) -> Floats:
        """Bisection on ρ."""
        total, n = float(state.type_gpus.sum()), len(state.gpus)
        rate = state.rate.max(axis=1)
        left = np.maximum(state.jobs["work_left"], _LEAST_WORK)
        alone_rate = rate * np.minimum(total / n / state.gpus, 1.0)
        index = [int(j) for j in state.jobs["job_idx"]]
        for row, job in enumerate(index):
            if job in memory.before:
                was_left, was_rate = memory.before[job]
                memory.done_s[job] = memory.done_s.get(job, 0.0) + (was_left - left[row]) / was_rate
        memory.before = {job: (float(left[row]), float(alone_rate[row])) for row, job in enumerate(index)}
        alone_s = np.array([memory.done_s.get(job, 0.0) for job in index]) + left / alone_rate
        least = self._least_shares(state, left / rate, alone_s, total)
        share = central_shares(least, state.gpus, total) if self.tie == "centre" else least
        spread: Floats = share[:, None] * (state.type_gpus / total)
        return spread

    def _least_shares(self, state: ShareState, needs_s: Floats, alone_s: Floats, total: float) -> Floats:
        age_s = state.jobs["age_s"]
        low = float(np.max((age_s + needs_s) / alone_s))  # each job runs all the time
        if float((state.gpus).sum()) <= total:
            return np.minimum(needs_s / np.maximum(low * alone_s - age_s, 1e-9), 1.0)
        high = low
        while not self._fits(high, needs_s, alone_s, age_s, state.gpus, total):
            high *= 2.0
        for _ in range(60):
            middle = 0.5 * (low + high)
            if self._fits(middle, needs_s, alone_s, age_s, state.gpus, total):
                high = middle
            else:
                low = middle
        return np.minimum(needs_s / (high * alone_s - age_s), 1.0)

    @staticmethod
    def _fits(
        ratio: float, needs_s: Floats, alone_s: Floats, age_s: Floats, gpus: Floats, total: float
    ) -> bool:
        free_s = ratio * alone_s - age_s
        return bool((free_s >= needs_s * (1 - 1e-12)).all() and (gpus * needs_s / free_s).sum() <= total)
