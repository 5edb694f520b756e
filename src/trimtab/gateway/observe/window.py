"""The last two minutes by second, for percentiles and for the variance of completion times.

Percentiles come from buckets that grow by 5 %, so their error is at most 2.5 %.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import log, nan
from typing import Final

import numpy as np
import numpy.typing as npt

from trimtab.metrics.run_records import FloatArray

SECONDS_KEPT: Final = 120
_LEAST_S: Final = 1e-4
_GROWTH: Final = 1.05
_PER_LOG: Final = 1.0 / log(_GROWTH)

_SCALARS: Final = (
    "requests",
    "failed",
    "refused",
    "timed",
    "sum_s",
    "sum_s2",
    "queued",
    "queued_s",
    "queue_length",
)

Buckets = dict[int, int]


def buckets_of(durations_s: FloatArray) -> npt.NDArray[np.intp]:
    """The bucket of each duration."""
    places = np.log(np.maximum(durations_s, _LEAST_S) / _LEAST_S) * _PER_LOG
    return places.astype(np.intp)


def _middle_s(bucket: int) -> float:
    return float(_LEAST_S * _GROWTH ** (bucket + 0.5))


@dataclass(slots=True)
class Second:
    """Requests that ended within one second of the clock."""

    requests: int = 0
    failed: int = 0  # failed or expired
    refused: int = 0
    timed: int = 0  # number with a duration
    sum_s: float = 0.0
    sum_s2: float = 0.0
    queued: int = 0  # number with a queueing time
    queued_s: float = 0.0
    queue_length: int = 0  # at the start of the second
    durations: Buckets = field(default_factory=dict)
    first_bytes: Buckets = field(default_factory=dict)

    def add(self, other: Second) -> None:
        """Add another second's counts."""
        for name in _SCALARS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        _add_buckets(self.durations, other.durations)
        _add_buckets(self.first_bytes, other.first_bytes)


def _add_buckets(mine: Buckets, other: Buckets) -> None:
    for bucket, count in other.items():
        mine[bucket] = mine.get(bucket, 0) + count


def pooled(seconds: Iterable[Second]) -> Second:
    """The sum of several seconds."""
    total = Second()
    for second in seconds:
        total.add(second)
    return total


def percentiles_s(buckets: Buckets, *ranks: float) -> list[float]:
    """Percentiles (0..100) in seconds: the middle of the rank's bucket; nan = no data."""
    total = sum(buckets.values())
    if not total:
        return [nan] * len(ranks)
    ordered = sorted(buckets.items())
    return [_percentile_s(ordered, max(1.0, rank / 100.0 * total)) for rank in ranks]


def _percentile_s(ordered: list[tuple[int, int]], position: float) -> float:
    seen = 0
    for bucket, count in ordered:
        seen += count
        if seen >= position - 1e-9:
            return _middle_s(bucket)
    return _middle_s(ordered[-1][0])


def variance_s2(second: Second) -> float:
    """Population variance of the completion times of a (pooled) second; nan = no data."""
    if not second.timed:
        return nan
    mean_s = second.sum_s / second.timed
    return max(0.0, second.sum_s2 / second.timed - mean_s * mean_s)
