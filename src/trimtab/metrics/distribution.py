"""Statistics of one sample: mean, variance and percentiles; nan for an empty sample."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab.metrics.run_records import FloatArray


def ratio(part: float, whole: float) -> float:
    """Part ÷ whole; nan unless the whole is positive."""
    return float(part / whole) if whole > 0 else math.nan


def mean(values: NDArray[Any]) -> float:
    """Arithmetic mean of numbers or flags [n]; nan for n = 0."""
    return float(values.mean()) if values.size else math.nan


def variance(values: FloatArray) -> float:
    """Population variance (divided by n, not n − 1) of values [n]; nan for n = 0."""
    return float(values.var()) if values.size else math.nan


def coefficient_of_variation(values: FloatArray) -> float:
    """Population standard deviation ÷ mean of values [n]; nan unless the mean is positive."""
    return ratio(math.sqrt(variance(values)), mean(values))


def percentiles(values: FloatArray, *ranks: int) -> list[float]:
    """Percentiles (0..100) of values [n], linear between order statistics (Hyndman & Fan 1996, type 7).

    One selection serves all ranks, O(n). Every rank is nan for n = 0.
    """
    if not values.size:
        return [math.nan] * len(ranks)
    return [float(value) for value in np.percentile(values, ranks)]
