"""Data frames of other libraries as tables of polars, without pyarrow where it is not installed."""

from __future__ import annotations

from typing import Any

import polars as pl


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
