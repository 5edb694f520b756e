"""Profiled runs: short runs of the job itself at a few sizes, joined by straight lines of logarithms.

Source: the survey's first way; profiling at a few GPU counts as in Peng et al., Optimus, EuroSys 2018, §3.2,
and Gu et al., ElasticFlow, ASPLOS 2023.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from trimtab.compiled.elementwise import elementwise
from trimtab.domain.training_jobs import Floats


@dataclass(frozen=True)
class Samples:
    """Measured rows. Text columns are categories, the others are positive numbers."""

    columns: Mapping[str, NDArray[Any]]  # name → [rows]
    seconds: Floats  # [rows]; nan where nothing was measured

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.seconds)

    def of(self, rows: Any) -> Samples:
        """Some of the rows."""
        return Samples({name: column[rows] for name, column in self.columns.items()}, self.seconds[rows])

    def groups(self, *names: str) -> NDArray[np.int64]:
        """Number of the group of each row: equal where all these columns are."""
        parts = [np.unique(self.columns[name], return_inverse=True)[1] for name in names]
        return np.unique(np.stack(parts), axis=1, return_inverse=True)[1].ravel()

    def rows_of(self, *names: str) -> Iterator[tuple[object, ...]]:
        """The values of each row in these columns, as they come."""
        return zip(*(self.columns[name].tolist() for name in names), strict=True)

    def by_group(self, *names: str) -> Iterator[tuple[tuple[object, ...], Samples]]:
        """The rows of each group, with its values in these columns."""
        of, keys = self.groups(*names), list(self.rows_of(*names))
        for group in np.unique(of):
            rows = np.flatnonzero(of == group)
            yield keys[rows[0]], self.of(rows)


class Predictor(Protocol):
    """A fitted model."""

    def seconds(self, samples: Samples) -> Floats:
        """Predicted seconds of each row; nan where it can tell nothing."""


class PerformanceModel(Protocol):
    """A way to predict: from profiled runs, job meta-data, graph features, or composable operators."""

    name: ClassVar[str]

    def fit(self, samples: Samples) -> Predictor:
        """Learn from these rows."""


def percentage_error(predicted: Floats, measured: Floats) -> float:
    """Mean absolute percentage error, as a fraction of the measured; nan without a predicted row."""
    known = np.isfinite(predicted) & np.isfinite(measured)
    if not known.any():
        return float("nan")
    return float(np.mean(np.abs(predicted[known] - measured[known]) / measured[known]))


def held_back_error(model: PerformanceModel, samples: Samples, held_back: Any) -> float:
    """Error on the rows that are held back, fitted to the others."""
    test = samples.of(held_back)
    return percentage_error(model.fit(samples.of(~held_back)).seconds(test), test.seconds)


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
