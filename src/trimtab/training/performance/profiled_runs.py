"""Profiled runs: short runs of the job itself at a few sizes, joined by straight lines of logarithms.

Source: the survey's first way; profiling at a few GPU counts as in Peng et al., Optimus, EuroSys 2018, §3.2,
and Gu et al., ElasticFlow, ASPLOS 2023.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from trimtab.compiled.elementwise import elementwise
from trimtab.domain.training_jobs import Floats
from trimtab.training.performance.samples import Samples


@dataclass(frozen=True)
class ProfiledRuns:
    """One curve for each group of rows, against one number; beyond its ends the last piece goes on."""

    name: ClassVar[str] = "profiled-runs"
    along: str = "gpus"
    groups: tuple[str, ...] = ("curve",)

    def fit(self, samples: Samples) -> Curves:
        """Sort the points of each curve; equal sizes are averaged."""
        keys = samples.rows_of(*self.groups)
        points: dict[tuple[object, ...], dict[float, list[float]]] = {}
        for key, size, seconds in zip(
            keys, samples.columns[self.along].tolist(), samples.seconds.tolist(), strict=True
        ):
            points.setdefault(key, {}).setdefault(math.log(size), []).append(math.log(seconds))
        curves = {
            key: (np.array(sorted(curve)), np.array([float(np.mean(curve[x])) for x in sorted(curve)]))
            for key, curve in points.items()
        }
        return Curves(self, curves)


@dataclass(frozen=True)
class Curves:
    """Fitted curves."""

    model: ProfiledRuns
    points: dict[tuple[object, ...], tuple[Floats, Floats]]  # group → logarithms of sizes and seconds

    def seconds(self, samples: Samples) -> Floats:
        """On the curve of each row's group; nan for a group that was never profiled."""
        keys = samples.rows_of(*self.model.groups)
        sizes = samples.columns[self.model.along].tolist()
        return elementwise(
            math.exp, np.array([self._log_s(key, math.log(n)) for key, n in zip(keys, sizes, strict=True)])
        )

    def _log_s(self, key: tuple[object, ...], x: float) -> float:
        if key not in self.points:
            return math.nan
        at, values = self.points[key]
        if len(at) == 1:
            return float(values[0])
        high = int(np.clip(np.searchsorted(at, x), 1, len(at) - 1))
        part = (x - at[high - 1]) / (at[high] - at[high - 1])
        return float(values[high - 1] + part * (values[high] - values[high - 1]))
