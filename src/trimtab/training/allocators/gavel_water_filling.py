"""Gavel's max-min fairness that knows speeds, by water filling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from trimtab.domain.parameters import Count
from trimtab.domain.training_jobs import Floats
from trimtab.training.allocators.shared.gavel_mechanism import GavelAllocator, ShareState
from trimtab.training.allocators.shared.max_min_programme import ShareProblem, water_filled


@dataclass(frozen=True)
class GavelWaterFilling(GavelAllocator):
    """Shares such that the least effective speed is as large as possible, then the next one, and so on.

    Idea
        A job's effective speed is GPUs · Σ speed · share over its speed with equal shares of all types. The
        least one is maximised by a linear programme; jobs that hold it there keep it, and the least of the
        others is raised. Gavel's mechanism gives rounds.
    Source
        Narayanan et al., Gavel, OSDI 2020, §4.1 and §4.3 ("max_min_fairness_water_filling_perf" of its
        simulator). `levels` 1 is "max_min_fairness_perf".
    Reads
        gpus_requested, priority, work_left, goodput by type.
    Cost
        At most `levels` linear programmes of O(jobs · types) variables for each computation of shares.
    When it wins / loses
        Every job gains from the type that suits it, and none is left behind. Sizes of jobs are no concern.
    Deviations from the source
        Which jobs hold a level follows from dual values, in place of a mixed-integer programme. After
        `levels` levels the rest is a plain max-min. Weights are 1. Fairness among entities, each with jobs
        of its own, is left out.
    """

    name: ClassVar[str] = "gavel-water-filling"
    levels: Count = 8

    def time_shares(self, state: ShareState, memory: Any) -> Floats:
        """Water filling over jobs alone."""
        gain = effective(state.rate, state.gpus, state.type_gpus)
        n = len(state.gpus)
        alone = [(row,) for row in range(n)]
        gpus = state.gpus.astype(np.int64)
        problem = ShareProblem(alone, list(gain[:, None, :]), gpus, state.type_gpus.astype(np.int64), n)
        return water_filled(problem, self.levels)


def effective(rate: Floats, gpus: Any, type_gpus: Any) -> Floats:
    """Effective speed of jobs with all their time on each type, [jobs, types]."""
    equal = (rate * (np.asarray(type_gpus, np.float64) / max(float(np.sum(type_gpus)), 1.0))).sum(axis=1)
    gain: Floats = np.asarray(gpus)[:, None] * rate / np.maximum(equal, 1e-300)[:, None]
    return gain
