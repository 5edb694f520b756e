"""Gavel's finish-time fairness: the largest ratio of finish time shared to alone is as small as possible."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

from trimtab.domain.training_jobs import Floats
from trimtab.training.allocators.shared.gavel_mechanism import GavelAllocator, ShareState
from trimtab.training.allocators.shared.max_min_programme import (
    LEAST_WORK,
    central_shares,
    most_at_once,
)

_ROUNDS, _ENOUGH = 30, 1e-6  # of linear programmes; by how much the last one raises speeds at most


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
        with 1/n of the GPUs of each type for n jobs. For a given ρ each job's least speed is in closed form;
        the smallest ρ that fits is found by bisection for one type of GPU. For several, a linear programme
        raises all speeds over their least ones by the same factor, which gives a smaller ρ, until the factor
        is 1. Gavel's mechanism gives rounds.
    Source
        Mahajan et al., Themis: Fair and Efficient GPU Cluster Scheduling, NSDI 2020, §3, as the policy
        "finish_time_fairness" of Narayanan et al., Gavel, OSDI 2020, §4.2, and of the simulator of Zheng et
        al., Shockwave, NSDI 2023.
    Reads
        gpus_requested, age_s, work_left, goodput.
    Cost
        O(jobs) for each of 60 steps of the bisection; for several types up to 30 linear programmes of
        O(jobs · types) variables, mostly fewer than ten.
    When it wins / loses
        Few jobs finish much later than they would alone. Efficiency is no aim.
    Deviations from the source
        The paper's auctions of leases are replaced by the central programme, as in Gavel. The source solves
        it with a conic solver; where it leaves shares free, they are the analytic centre here (`tie`
        "centre") or the least ones (`tie` "least"); for several types, those with the largest sum.
    """

    name: ClassVar[str] = "finish-time-fairness"
    tie: Literal["centre", "least"] = "centre"

    def policy_memory(self, n_jobs: int) -> Any:
        """Nothing done yet."""
        return _Alone()

    def time_shares(self, state: ShareState, memory: Any) -> Floats:
        """Bisection on ρ."""
        left = np.maximum(state.jobs["work_left"], LEAST_WORK)
        alone_rate = _alone_rate(state)
        index = [int(j) for j in state.jobs["job_idx"]]
        for row, job in enumerate(index):
            if job in memory.before:
                was_left, was_rate = memory.before[job]
                memory.done_s[job] = memory.done_s.get(job, 0.0) + (was_left - left[row]) / was_rate
        memory.before = {job: (float(left[row]), float(alone_rate[row])) for row, job in enumerate(index)}
        alone_s = np.array([memory.done_s.get(job, 0.0) for job in index]) + left / alone_rate
        if len(state.type_gpus) > 1:
            return _over_types(state, left, alone_s, alone_rate)
        total = float(state.type_gpus[0])
        least = self._least_shares(state, left / state.rate[:, 0], alone_s, total)
        share = central_shares(least, state.gpus, total) if self.tie == "centre" else least
        return share[:, None]

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


def _alone_rate(state: ShareState) -> Floats:
    """Speed of each job with an equal part of the GPUs of each type, all of its time at most."""
    part = state.type_gpus / len(state.gpus) / state.gpus[:, None]
    rate: Floats = (state.rate * part).sum(axis=1) / np.maximum(part.sum(axis=1), 1.0)
    return np.maximum(rate, 1e-300)


def _over_types(state: ShareState, left: Floats, alone_s: Floats, alone_rate: Floats) -> Floats:
    """Shares [jobs, types] of the smallest ρ, from that of equal parts downwards."""
    age_s, speed = state.jobs["age_s"], alone_rate
    for _ in range(_ROUNDS):
        ratio = float(((age_s + left / speed) / alone_s).max())
        least = left / np.maximum(ratio * alone_s - age_s, 1e-9)
        share = most_at_once(state.rate / least[:, None], state.gpus, state.type_gpus)
        speed = np.maximum((state.rate * share).sum(axis=1), 1e-300)
        if float((speed / least).min()) <= 1.0 + _ENOUGH:
            break
    return share
