"""OSSP: all jobs finish as early as possible, at the same time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from trimtab.domain.parameters import Range
from trimtab.domain.training_jobs import Floats
from trimtab.training.allocators.shared.gavel_mechanism import GavelAllocator, ShareState
from trimtab.training.allocators.shared.max_min_programme import (
    LEAST_WORK,
    central_shares,
    most_at_once,
)

_FIRST_S, _LAST_S = 100.0, 1e6


@dataclass(frozen=True)
class Ossp(GavelAllocator):
    """Shares with which the last job finishes as early as possible.

    Idea
        The smallest time T for which every job can have its work done, Σ speed · share ≥ work / T over the
        types of GPU: by bisection for one type, else by a linear programme in 1 / T. Gavel's mechanism gives
        rounds.
    Source
        Open shop scheduling with preemption, Gonzalez and Sahni, Journal of the ACM 23(4), 1976; as the
        policy "min_total_duration" of Narayanan et al., Gavel, OSDI 2020, §4.2.
    Reads
        gpus_requested, work_left, goodput.
    Cost
        O(jobs) for each of about 20 steps of the bisection; one linear programme of O(jobs · types) variables
        for several types.
    When it wins / loses
        Short makespans. Short jobs run as slowly as long ones, so mean completion times are long.
    Deviations from the source
        The source takes the shares that ECOS returns for the last feasible T, within 5 % of the smallest;
        here the analytic centre (`tie` "centre"), or the least shares (`tie` "least"). With several types T
        is the smallest one itself, and of shares that are free the largest sum is taken.
    """

    name: ClassVar[str] = "ossp"
    tie: Literal["centre", "least"] = "centre"
    precision: Annotated[float, Range(1.0, excludes_least=True)] = 1.05  # of the bisection

    def time_shares(self, state: ShareState, memory: Any) -> Floats:
        """Bisection, then a point within the bounds."""
        if len(state.type_gpus) > 1:
            work = np.maximum(state.jobs["work_left"], LEAST_WORK)
            return most_at_once(state.rate / work[:, None], state.gpus, state.type_gpus)
        total = float(state.type_gpus[0])
        alone_s = state.jobs["work_left"] / state.rate[:, 0]
        low_s, high_s, found_s = _FIRST_S, _LAST_S, 0.0
        while found_s == 0.0:
            begun_s = high_s
            while self.precision * low_s < high_s:
                middle_s = (low_s + high_s) / 2.0
                least = alone_s / middle_s
                if (least <= 1.0).all() and float((state.gpus * least).sum()) <= total:
                    high_s = found_s = middle_s
                else:
                    low_s = middle_s
            low_s, high_s = begun_s, 10.0 * begun_s
        least = alone_s / found_s
        share = central_shares(least, state.gpus, total) if self.tie == "centre" else np.minimum(least, 1.0)
        return share[:, None]
