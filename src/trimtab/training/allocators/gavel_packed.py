"""Gavel's max-min fairness with space sharing: jobs run alone or in pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from trimtab.domain.parameters import Count, Natural, NonNegative
from trimtab.domain.training_jobs import Floats, Ints
from trimtab.training.allocators.gavel_water_filling import effective
from trimtab.training.allocators.shared.gavel_mechanism import Combination, PackedGavelAllocator, PackState
from trimtab.training.allocators.shared.max_min_programme import ShareProblem, water_filled


@dataclass(frozen=True)
class GavelPacked(PackedGavelAllocator):
    """Max-min fair shares of time of jobs alone and of pairs on the same GPUs.

    Idea
        As max-min fairness, with a row of shares for each job and for each pair of jobs with as many GPUs.
        A job's effective speed sums what it does alone and beside each partner; it may run all the time at
        most. Gavel's mechanism, with pairs, gives rounds.
    Source
        Narayanan et al., Gavel, OSDI 2020, §3.1 and §4.1 ("max_min_fairness_packed" of its simulator).
    Reads
        gpus_requested, work_left, goodput by type, speeds of pairs.
    Cost
        A linear programme of O(jobs · partners · types) variables for each computation of shares.
    When it wins / loses
        Jobs that leave GPUs idle run side by side, so all finish sooner. It takes measured pairs.
    Deviations from the source
        Of all partners a job is offered the `partners` with which the sum of both speeds, each over its
        speed alone, is largest, and only where that is above `least_sum`; the source takes all above it.
        Pairs without an estimate are left out.
    """

    name: ClassVar[str] = "gavel-packed"
    partners: Natural = 6
    least_sum: NonNegative = 1.1
    levels: Count = 1

    def combination_shares(self, state: PackState, memory: Any) -> dict[Combination, Floats]:
        """One linear programme over jobs and pairs."""
        n = len(state.gpus)
        gain = effective(state.rate, state.gpus, state.type_gpus)
        members: list[Combination] = [(row,) for row in range(n)]
        gains = list(gain[:, None, :])
        first, second, kept = self._pairs(state)
        for k, pair in enumerate(zip(first.tolist(), second.tolist(), strict=True)):
            members.append(pair)
            gains.append(kept[k] * gain[list(pair)])
        gpus = state.gpus[[rows[0] for rows in members]]
        share = water_filled(ShareProblem(members, gains, gpus, state.type_gpus, n), self.levels)
        return dict(zip(members, share, strict=True))

    def _pairs(self, state: PackState) -> tuple[Ints, Ints, Floats]:
        """Rows of pairs that pay on a type, and what each keeps of its speed, [pairs, 2, types]."""
        first, second = np.triu_indices(len(state.gpus), 1)
        alike = state.gpus[first] == state.gpus[second]
        first, second = first[alike], second[alike]
        own, other = state.pair_rates(first, second)
        with np.errstate(divide="ignore", invalid="ignore"):
            kept = np.stack([own / state.rate[first], other / state.rate[second]], axis=1)
        kept = np.nan_to_num(kept, posinf=0.0)
        total = kept.sum(axis=1).max(axis=1, initial=0.0)
        order = np.argsort(-total, kind="stable")
        offered, chosen = np.zeros(len(state.gpus), np.int64), []
        for k in order[total[order] >= self.least_sum]:
            if min(offered[first[k]], offered[second[k]]) < self.partners:
                offered[[first[k], second[k]]] += 1
                chosen.append(k)
        at = np.array(chosen, np.int64)
        return first[at], second[at], kept[at]
