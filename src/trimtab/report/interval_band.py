"""The edges of a band of 95 % intervals around means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from trimtab.metrics import Estimate

_LEAST_FRAC: Final = 0.01  # of the mean, where an interval is cut that reaches zero: a log axis has no zero


class Band(NamedTuple):
    """Means and the ends of their intervals, each [estimates]."""

    mean: npt.NDArray[np.float64]
    low: npt.NDArray[np.float64]
    high: npt.NDArray[np.float64]


def interval_band(estimates: Sequence[Estimate], unit: str, factor: float) -> Band:
    """The band of estimates times a factor, cut above zero, and at 100 % where the unit is a fraction."""
    mean = factor * np.array([e.mean for e in estimates])
    half = factor * np.array([e.ci95 or 0.0 for e in estimates])
    most = factor if unit == "frac" else np.inf
    return Band(mean, np.maximum(mean - half, _LEAST_FRAC * mean), np.minimum(mean + half, most))
