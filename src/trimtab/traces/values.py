"""Converts values of a file to typed columns, a whole column at a time; null if a value does not parse."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from trimtab.traces.formats import TimeUnit

TICKS_PER_S: Final[dict[TimeUnit, float]] = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9, "datetime": 1e9}

EXPECTED_TIME: Final[dict[TimeUnit, str]] = {
    "s": "a number of seconds",
    "ms": "a number of milliseconds",
    "us": "a number of microseconds",
    "ns": "a whole number of nanoseconds",
    "datetime": "a date and time such as 2026-01-31 12:00:00.5",
}

_DATE_TIME = r"^(\d{4}-\d{2}-\d{2}[ T]\d{2}:\d{2}:\d{2}(?:\.\d{1,9})?)(?:Z|[+-]\d{2}(?::?\d{2})?)?$"
_OFFSET = r"([+-])(\d{2}):?(\d{2})?$"  # PostgreSQL leaves out minutes that are 0
UTC: Final = "UTC"
_WHOLE_NUMBERS = r"^\[\s*(?:-?\d+(?:\s*,\s*-?\d+)*)?\s*\]$"
_NS_PER_MINUTE = 60 * 10**9


_FLAGS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def parsed(values: pl.Series, dtype: pl.DataType, decimal: str = ".") -> pl.Series:
    """Values [rows] as `dtype`; null where they are missing, no such value, or not finite."""
    if dtype == pl.String:
        return as_text(values)
    text = values.str.strip_chars() if values.dtype == pl.String else values
    if decimal != "." and text.dtype == pl.String:
        text = text.str.replace(decimal, ".", literal=True)
    if dtype == pl.Float64:
        return _number(text)
    if dtype == pl.Int64:
        return _whole_number(text)
    if dtype == pl.Boolean:
        lower = text.cast(pl.String).str.to_lowercase()
        return lower.replace_strict(_FLAGS, default=None, return_dtype=dtype)
    return _whole_numbers(text) if text.dtype == pl.String else text.cast(dtype, strict=False)


def as_text(values: pl.Series) -> pl.Series:
    """Values [rows] of any type as text: bytes in hexadecimal digits, lists and objects as Python shows."""
    if values.dtype == pl.Binary:
        return values.bin.encode("hex")
    if values.dtype.is_nested():
        texts = [None if value is None else str(value) for value in values.to_list()]
        return pl.Series(values.name, texts, dtype=pl.String)
    return values.cast(pl.String)


def expected_value(dtype: pl.DataType) -> str:
    """The look of a value of this type, for messages."""
    if isinstance(dtype, pl.List):
        return "a list of whole numbers"
    if dtype == pl.Boolean:
        return "true or false"
    if dtype.is_numeric():
        return "a whole number" if dtype.is_integer() else "a finite number"
    return "text"


def parsed_ticks(
    values: pl.Series, unit: TimeUnit, layout: str | None = None, zone: str = UTC, decimal: str = "."
) -> pl.Series:
    """Arrivals [rows] in ticks of the unit; dates as nanoseconds since 1970, exact to the last digit.

    `layout` is how a date is written (as for `strftime`; None: ISO 8601), `zone` that of dates without an
    offset. The hour that a clock change repeats counts as its first; one that it skips is no time.
    """
    if values.dtype.is_temporal():
        return values.cast(pl.Datetime("ns")).dt.timestamp("ns")
    if unit == "datetime":
        text = values.cast(pl.String).str.strip_chars()
        return _utc_ns(text, zone) if layout is None else _laid_out_ns(text, layout, zone)
    return parsed(values, pl.Int64() if unit == "ns" else pl.Float64(), decimal)


def _laid_out_ns(text: pl.Series, layout: str, zone: str) -> pl.Series:
    has_offset = "%z" in layout
    time = text.str.to_datetime(layout, time_unit="ns", strict=False, time_zone=UTC if has_offset else None)
    return (time if has_offset else _in_zone(time, zone)).dt.timestamp("ns")


def _in_zone(local: pl.Series, zone: str) -> pl.Series:
    if zone == UTC:
        return local
    return local.dt.replace_time_zone(zone, ambiguous="earliest", non_existent="null")


def seconds(ticks: pl.Series, unit: TimeUnit) -> pl.Series:
    """Ticks [rows] of a unit as seconds, correctly rounded."""
    # Divided by numpy: polars multiplies by the reciprocal, which is off in the last digit.
    return pl.Series(ticks.cast(pl.Float64).to_numpy() / TICKS_PER_S[unit], nan_to_null=True)


def recorded_time(arrival_s: float, origin_ticks: float, unit: TimeUnit) -> str:
    """Seconds after an origin as the time that was recorded, for messages."""
    if unit != "datetime":
        return f"{origin_ticks / TICKS_PER_S[unit] + arrival_s:.12g} s"
    time = np.datetime64(int(origin_ticks) + round(arrival_s * TICKS_PER_S[unit]), "ns")
    return str(time).replace("T", " ").rstrip("0").rstrip(".")


def unit_of(values: pl.Series, unit: TimeUnit) -> TimeUnit:
    """The unit that holds for these values: a column typed as date and time says so itself."""
    return "datetime" if values.dtype.is_temporal() else unit


def _number(values: pl.Series) -> pl.Series:
    number = values.cast(pl.Float64, strict=False)
    return number.to_frame("x").select(pl.when(pl.col("x").is_finite()).then("x")).to_series()


def _whole_number(values: pl.Series) -> pl.Series:
    # Straight to integers first: a float would round nanoseconds. Then "30.0", which some files write for 30.
    whole = values.cast(pl.Int64, strict=False) if not values.dtype.is_float() else None
    if whole is not None and whole.null_count() == values.null_count():
        return whole
    number = pl.col("x")
    is_whole = number == number.round()
    return _number(values).to_frame("x").select(pl.when(is_whole).then(number.cast(pl.Int64))).to_series()


def _whole_numbers(text: pl.Series) -> pl.Series:
    is_list = pl.col("x").str.contains(_WHOLE_NUMBERS)
    numbers = pl.col("x").str.extract_all(r"-?\d+").cast(pl.List(pl.Int64), strict=False)
    return text.to_frame("x").select(pl.when(is_list).then(numbers)).to_series()


def _utc_ns(text: pl.Series, zone: str) -> pl.Series:
    table = text.to_frame("t").lazy()
    local = pl.col("t").str.extract(_DATE_TIME).str.replace("T", " ", literal=True)
    time = local.str.to_datetime("%Y-%m-%d %H:%M:%S%.f", time_unit="ns", strict=False)
    utc_ns = (time.dt.timestamp("ns") - _offset_ns(pl.col("t"))).alias("ns")
    if zone == UTC:
        return table.select(utc_ns).collect().to_series()
    zoned = time.dt.replace_time_zone(zone, ambiguous="earliest", non_existent="null").dt.timestamp("ns")
    has_offset = pl.col("t").str.slice(19).str.contains(r"(?:Z|[+-]\d{2}(?::?\d{2})?)$")
    return table.select(pl.when(has_offset).then(utc_ns).otherwise(zoned)).collect().to_series()


def _offset_ns(text: pl.Expr) -> pl.Expr:
    zone = text.str.slice(19)  # past the seconds, so that the day is not taken for an offset
    hours, rest = (zone.str.extract(_OFFSET, group).cast(pl.Int64) for group in (2, 3))
    minutes = hours * 60 + rest.fill_null(0)
    sign = pl.when(zone.str.extract(_OFFSET, 1) == "-").then(-1).otherwise(1)
    return (sign * minutes * _NS_PER_MINUTE).fill_null(0)
