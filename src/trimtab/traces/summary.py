"""Summary of a trace: rate, burstiness, sizes and shares, as plain numbers.

Undefined values (a ratio of zeros, too few windows) are None, so that the summary is valid JSON.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from trimtab.errors import UsageError
from trimtab.traces.formats import COLUMNS

FloatArray: TypeAlias = npt.NDArray[np.float64]

WINDOWS_S: Final = (1.0, 10.0, 60.0)
TOKEN_COLUMNS: Final = ("prompt_tokens", "output_tokens")
SHARED_COLUMNS: Final = ("class", "tenant", "model", "adapter")
TOP: Final = 10


@dataclass(frozen=True, slots=True)
class CountSummary:
    """Arrivals counted in consecutive whole windows from the first arrival on.

    `dispersion` is the index of dispersion of counts, variance / mean: 1 if Poisson, more if bursty.
    """

    window_s: float
    windows: int
    peak_rate_per_s: float | None
    dispersion: float | None


@dataclass(frozen=True, slots=True)
class SizeSummary:
    """Sizes in the work units of the trace, or counts of tokens; quantiles interpolate linearly."""

    mean: float
    cv: float | None
    p50: float
    p90: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class Share:
    """How many rows have one value of a column; None is the value of rows without."""

    value: str | None
    rows: int
    share_frac: float


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """A trace in numbers.

    `span_s` reaches from the first to the last arrival and `rate_per_s` is (rows − 1) / span; `tokens`
    holds those of `TOKEN_COLUMNS` that the table has; `shares`
    holds the most frequent values of each of `SHARED_COLUMNS` that the table has; `missing_columns` are the
    canonical columns that it has not.
    """

    rows: int
    span_s: float
    rate_per_s: float | None
    interarrival_cv: float | None
    counts: tuple[CountSummary, ...]
    size: SizeSummary | None
    tokens: dict[str, SizeSummary]
    shares: dict[str, tuple[Share, ...]]
    missing_columns: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The same as nested dicts, lists and numbers."""
        return asdict(self)


def summarise(table: pl.DataFrame) -> TraceSummary:
    """Summary of a request table with at least one row."""
    arrival_s = table["arrival_s"].to_numpy()
    span_s = float(arrival_s[-1] - arrival_s[0])
    return TraceSummary(
        rows=table.height,
        span_s=span_s,
        rate_per_s=(table.height - 1) / span_s if span_s > 0 else None,
        interarrival_cv=_interarrival_cv(arrival_s),
        counts=tuple(count_arrivals(arrival_s, window_s) for window_s in WINDOWS_S),
        size=_sizes(table, "size"),
        tokens={name: found for name in TOKEN_COLUMNS if (found := _sizes(table, name)) is not None},
        shares={name: _shares(table[name]) for name in SHARED_COLUMNS if name in table.columns},
        missing_columns=tuple(name for name in COLUMNS if name not in table.columns),
    )


def rate_series(table: pl.DataFrame, bins: int) -> tuple[FloatArray, FloatArray]:
    """Arrival rate over time.

    Returns:
        Start of each bin in seconds [bins], and requests per second in it [bins]; the bins divide the time
        from the first to the last arrival evenly.

    Raises:
        UsageError: less than one bin, or no two different arrival times.
    """
    arrival_s = table["arrival_s"].to_numpy()
    if bins < 1:
        raise UsageError("too few bins", field="bins", value=bins, expected="at least 1")
    if arrival_s[0] == arrival_s[-1]:
        raise UsageError("a rate needs two different arrival times", value=float(arrival_s[0]))
    counts, edges_s = np.histogram(arrival_s, bins)
    return edges_s[:-1], counts / np.diff(edges_s)


def count_arrivals(arrival_s: FloatArray, window_s: float) -> CountSummary:
    """Counts of sorted arrivals [rows] in windows of one length; empty windows take no memory."""
    windows = int((arrival_s[-1] - arrival_s[0]) / window_s)
    window_idx = ((arrival_s - arrival_s[0]) / window_s).astype(np.int64)
    _, counts = np.unique(window_idx[window_idx < windows], return_counts=True)
    if windows < 2:
        return CountSummary(window_s, windows, None, None)
    mean = counts.sum() / windows
    variance = (counts.astype(float) ** 2).sum() / windows - mean**2
    return CountSummary(window_s, windows, float(counts.max() / window_s), float(variance / mean))


def _interarrival_cv(arrival_s: FloatArray) -> float | None:
    gaps_s = np.diff(arrival_s)
    return float(gaps_s.std() / gaps_s.mean()) if arrival_s[-1] > arrival_s[0] else None


def _sizes(table: pl.DataFrame, column: str) -> SizeSummary | None:
    """Of the rows that have a value; None where none does."""
    size = table[column].drop_nulls().to_numpy() if column in table.columns else np.empty(0)
    if not len(size):
        return None
    mean = float(size.mean())
    p50, p90, p99 = (float(value) for value in np.quantile(size, (0.5, 0.9, 0.99)))
    return SizeSummary(mean, float(size.std() / mean) if mean else None, p50, p90, p99, float(size.max()))


def _shares(values: pl.Series) -> tuple[Share, ...]:
    counts = values.alias("value").value_counts(name="rows").sort("rows", "value", descending=[True, False])
    return tuple(Share(value, rows, rows / len(values)) for value, rows in counts.head(TOP).rows())
