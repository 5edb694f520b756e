"""Gavel's max-min fairness: the least share, counted in GPUs, as large as possible."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from trimtab.domain.training_jobs import Floats
from trimtab.training.allocators.shared.gavel_mechanism import GavelAllocator, ShareState
from trimtab.training.allocators.shared.max_min_programme import central_shares


@dataclass(frozen=True)
class GavelMaxMin(GavelAllocator):
    """Shares such that the least GPU time of a job is as large as possible.

    Idea
        Maximise the minimum over the jobs of GPUs times share (least attained service). Gavel's mechanism
        gives rounds.
    Source
        Narayanan et al., Gavel, OSDI 2020, §4.1, the version that does not know speeds ("max_min_fairness").
    Reads
        gpus_requested, work_left, goodput (for the length of rounds).
    Cost
        O(jobs) for the shares, O(jobs log jobs) a round.
    When it wins / loses
        Wide jobs get less time than narrow ones, so each job has the same GPU time. It knows neither speeds
        nor sizes.
    Deviations from the source
        Where some shares are free, the source takes what ECOS returns; here the analytic centre
        (`tie` "centre"), or the least shares (`tie` "least"). With several types of GPU each job's time is
        spread over them in proportion to their GPUs.
    """

    name: ClassVar[str] = "gavel-max-min"
    tie: Literal["centre", "least"] = "centre"

    def time_shares(self, state: ShareState, memory: Any) -> Floats:
        """In closed form, where speeds are not known."""
        total = float(state.type_gpus.sum())
        level = min(total / len(state.gpus), float(state.gpus.min()))
        least = np.minimum(level / state.gpus, 1.0)
        share = central_shares(least, state.gpus, total) if self.tie == "centre" else least
        spread: Floats = share[:, None] * (state.type_gpus / total)
        return spread
