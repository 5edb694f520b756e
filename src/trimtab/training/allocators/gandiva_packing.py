"""Gandiva's packing: jobs share GPUs in pairs found by trial, and part when sharing does not pay."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from trimtab.domain.parameters import Natural, NonNegative
from trimtab.domain.training_jobs import Floats
from trimtab.training.allocators.shared.gavel_mechanism import Combination, PackedGavelAllocator, PackState


@dataclass
class _Pairs:
    """Pairs in force, and those that did not pay; keys are job_idx."""

    partner: dict[int, int] = field(default_factory=dict)
    refused: set[Combination] = field(default_factory=set)


@dataclass(frozen=True)
class GandivaPacking(PackedGavelAllocator):
    """Random pairs of jobs share GPUs when there are too few; a pair that is slower than turns is undone.

    Idea
        While all jobs fit, each has its own GPUs. Otherwise jobs without a partner are paired at random with
        others of as many GPUs. A pair whose speeds, each over its speed alone, sum to less than 1 is undone.
        Time is divided equally among pairs and jobs alone. Gavel's mechanism gives rounds.
    Source
        Xiao et al., Gandiva: Introspective Cluster Scheduling for Deep Learning, OSDI 2018, §3.2 and §3.3, as
        the policy "gandiva_packed" of Narayanan et al., Gavel, OSDI 2020.
    Reads
        gpus_requested, estimated speed alone and of pairs that ran.
    Cost
        O(jobs log jobs) a round.
    When it wins / loses
        Small jobs leave much of a GPU idle, and two of them finish sooner side by side. Large ones lose a
        round to each trial.
    Deviations from the source
        A pair is judged after it ran, and never drawn again once undone; the simulator of Gavel reads its
        measured speed at once, and may draw it again. Pairs are tried as often as there are jobs without a
        partner, as there. Migration is what the mechanism's rounds and the placement rule do; growing jobs is
        not part of it. Shares are computed at every round.
    """

    name: ClassVar[str] = "gandiva-packing"
    reset_s: NonNegative = 0.0
    least_sum: NonNegative = 1.0  # of both speeds, each over its speed alone
    seed: Natural = 0

    def policy_memory(self, n_jobs: int) -> _Pairs:
        """No job has a partner."""
        return _Pairs()

    def combination_shares(self, state: PackState, memory: _Pairs) -> dict[Combination, Floats]:
        """Undo, pair, and divide."""
        index = [int(j) for j in state.jobs["job_idx"]]
        row_of = {j: i for i, j in enumerate(index)}
        self._undo(state, memory, row_of)
        total = int(state.type_gpus.sum())
        packs = int(state.gpus.sum()) > total
        if packs:
            self._pair(state, memory, index)
        chosen: list[Combination] = []
        for row, job in enumerate(index):
            other = row_of.get(memory.partner.get(job, -1), -1) if packs else -1
            if other < 0 or other > row:
                chosen.append((row,) if other < 0 else (row, other))
        shares: dict[Combination, Floats] = {}
        for rows in chosen:
            share = state.type_gpus / len(chosen) / state.gpus[rows[0]]
            shares[rows] = share / max(float(share.sum()), 1.0)
        return shares

    def _undo(self, state: PackState, memory: _Pairs, row_of: dict[int, int]) -> None:
        for job, other in list(memory.partner.items()):
            both = job in row_of and other in row_of
            if both and (job > other or self._pays(state, row_of[job], row_of[other])):
                continue
            memory.partner.pop(job, None)
            memory.partner.pop(other, None)
            memory.refused.add((min(job, other), max(job, other)))

    def _pays(self, state: PackState, row: int, other: int) -> bool:
        own, others = state.pair_rates(np.array([row]), np.array([other]))
        with np.errstate(divide="ignore", invalid="ignore"):
            total = own[0] / state.rate[row] + others[0] / state.rate[other]
        known = total[~np.isnan(total)]
        return not len(known) or float(known.max()) >= self.least_sum

    def _pair(self, state: PackState, memory: _Pairs, index: list[int]) -> None:
        single = [row for row, job in enumerate(index) if job not in memory.partner]
        draws = np.random.default_rng([self.seed, state.decision])
        for _ in range(len(single)):
            if len(single) < 2:
                return
            row, other = sorted(int(single[k]) for k in draws.choice(len(single), 2, replace=False))
            pair = (index[row], index[other])
            if state.gpus[row] != state.gpus[other] or pair in memory.refused:
                continue
            memory.partner[pair[0]], memory.partner[pair[1]] = pair[1], pair[0]
            single = [each for each in single if each not in (row, other)]
