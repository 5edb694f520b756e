"""Data frames of other libraries as tables of polars, without pyarrow where it is not installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from trimtab.errors import TraceError, UsageError
from trimtab.traces.formats import TimeUnit
from trimtab.traces.source import Progress, RawBlock, TraceSource, look_at, read_blocks
from trimtab.traces.values import EXPECTED_TIME, expected_value, parsed, parsed_ticks, seconds


def as_frame(given: Any) -> pl.DataFrame | None:
    """A data frame of polars, pandas or Arrow as one of polars; None for anything else, such as a path."""
    if isinstance(given, pl.DataFrame):
        return given
    if isinstance(given, pl.LazyFrame):
        return given.collect()
    if type(given).__module__.partition(".")[0] == "pandas" and hasattr(given, "columns"):
        return pl.DataFrame([_pandas_column(str(name), given[name]) for name in given.columns])
    return pl.DataFrame(given) if hasattr(given, "__arrow_c_stream__") else None


def _pandas_column(name: str, column: Any) -> pl.Series:
    """Numbers and times without zone as arrays, everything else value by value."""
    kind = column.dtype
    if getattr(kind, "kind", "O") in "iufbM" and getattr(kind, "tz", None) is None and not column.hasnans:
        return pl.Series(name, column.to_numpy())
    if getattr(kind, "tz", None) is not None:
        column = column.dt.tz_convert("UTC").dt.tz_localize(None)
    values = [None if missing else value for value, missing in zip(column, column.isna(), strict=True)]
    return pl.Series(name, values, strict=False)


FloatArray = npt.NDArray[np.float64]

MOST_WINDOWS: Final = 10_000_000


def read_numbers(path: Path, column: str, progress: Progress | None = None) -> FloatArray:
    """The numbers of a column [rows]. Raises TraceError, with the line of the first value that is none."""
    source = _with_column(path, column)
    blocks = [_numbers(source, block, column) for block in read_blocks(source, progress)]
    return np.concatenate(blocks) if blocks else np.zeros(0)


def read_counts(path: Path, column: str, window_s: float, progress: Progress | None = None) -> FloatArray:
    """How many times of a column fall into each whole window from the first on [windows].

    Times are seconds or dates, in any order. Raises TraceError, and UsageError where the window does not fit.
    """
    if not window_s > 0.0:
        raise UsageError("cannot be used", field="--window", value=window_s, expected="seconds above 0")
    source = _with_column(path, column)
    blocks = [_times_s(source, block, column) for block in read_blocks(source, progress)]
    times_s = np.concatenate(blocks) if blocks else np.zeros(0)
    if not len(times_s):
        raise TraceError("no times", file=str(path), field=column, expected="at least one row")
    span_s = float(times_s.max() - times_s.min())
    windows = int(min(span_s / window_s, 2.0 * MOST_WINDOWS))
    if not 1 <= windows <= MOST_WINDOWS:
        expected = f"from {span_s / MOST_WINDOWS:.3g} to {span_s:.6g} s, the span of the times"
        raise UsageError(
            "does not fit the times", file=str(path), field="--window", value=window_s, expected=expected
        )
    at = ((times_s - times_s.min()) / window_s).astype(np.int64)
    return np.bincount(at[at < windows], minlength=windows).astype(np.float64)


def _with_column(path: Path, column: str) -> TraceSource:
    source = look_at(path)
    if column not in source.columns:
        names = ", ".join(source.columns)
        raise TraceError(
            "no such column", file=str(path), field="--column", value=column, expected=f"one of {names}"
        )
    return source


def _numbers(source: TraceSource, block: RawBlock, column: str) -> FloatArray:
    values = parsed(block.table[column], pl.Float64())
    _refuse_null(source, block, column, values, expected_value(pl.Float64()))
    return values.to_numpy()


def _times_s(source: TraceSource, block: RawBlock, column: str) -> FloatArray:
    raw = block.table[column]
    is_date = raw.dtype.is_temporal() or parsed(raw, pl.Float64()).null_count() == len(raw)
    unit: TimeUnit = "datetime" if is_date else "s"
    ticks = parsed_ticks(raw, unit)
    _refuse_null(source, block, column, ticks, EXPECTED_TIME[unit])
    return seconds(ticks, unit).to_numpy()


def _refuse_null(source: TraceSource, block: RawBlock, column: str, values: pl.Series, expected: str) -> None:
    if values.null_count():
        row = int(values.is_null().arg_max() or 0)
        place = f"{source.place(block.first_row_idx + row)}, column {column}"
        problem, value = "unreadable value", block.table[column][row]
        raise TraceError(problem, file=str(source.path), field=place, value=value, expected=expected)
