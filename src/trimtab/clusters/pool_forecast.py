"""How many workers stages will need soon: a forecast of their arrivals, times what each takes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from trimtab.forecast import Forecaster
from trimtab.forecast.compilation import compile_mixture
from trimtab.live.stage_backend import StageDemand

STEPS: Final = 60  # of a season


class PoolForecast:
    """Counts what arrives in each step, and forecasts the next ones once it has seen a season.

    Args:
        stages: the names of their codes.
        season_s: after which arrivals repeat.
        start_s: what the start of a worker takes: so far ahead it looks.
    """

    def __init__(self, stages: Sequence[str], season_s: float, start_s: float) -> None:
        compile_mixture()
        self._stages, self._step_s = tuple(stages), season_s / STEPS
        horizon = min(STEPS, 1 + math.ceil(start_s / self._step_s))
        self._forecaster = Forecaster(len(self._stages), horizon=horizon, period=STEPS, least=0.0)
        self._arrived = np.zeros(len(self._stages))
        self._ends_s: float | None = None  # the step under way
        self._workers: dict[str, float] = {}

    def workers(self, now_s: float, demand: Mapping[str, StageDemand]) -> Mapping[str, float]:
        """Of each stage, so many that what arrives in one of the next steps is served within a step.

        Nothing in the first season.
        """
        if self._ends_s is None:
            self._arrived, self._ends_s = self._counts(demand), now_s + self._step_s
        while now_s >= self._ends_s:
            self._end_step(demand)
            self._ends_s += self._step_s
        return self._workers

    def _end_step(self, demand: Mapping[str, StageDemand]) -> None:
        arrived = self._counts(demand)
        self._forecaster.update(arrived - self._arrived)
        self._arrived = arrived
        if self._forecaster.steps >= STEPS:
            most = self._forecaster.forecast(levels=()).mean.max(axis=1)  # [stages]
            self._workers = {
                name: float(count) * demand[name].service_s / self._step_s
                for name, count in zip(self._stages, most, strict=True)
            }

    def _counts(self, demand: Mapping[str, StageDemand]) -> np.ndarray:
        return np.array([float(demand[name].arrived) for name in self._stages])
