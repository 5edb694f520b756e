"""Doubts about a trace that was read: figures that are rare if its columns mean what they were taken for.

A doubt refuses nothing: there are such traces. Each says what is odd, and what helps if it is wrong.
All are sums and extremes over whole columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import polars as pl

from trimtab.traces.formats import TimeUnit
from trimtab.words import counted

_EPOCHS: Final[tuple[tuple[float, TimeUnit], ...]] = ((1e17, "ns"), (1e14, "us"), (1e11, "ms"), (9e8, "s"))
"""Least number that a time since 1970 is in a unit, the largest first; none is 1e10 s, in the year 2286."""

_IN_WORDS: Final = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
_MOST_PER_S: Final = 10_000.0
_LONGEST_GAP_S: Final = 3_600.0
_FEW: Final = 10  # requests of which a rate says nothing
_LONG_S: Final = 300.0  # recorded times that are usual in milliseconds, not in seconds
_MOST_IN_FLIGHT: Final = 100_000.0
_MOST_TOKENS: Final = {"prompt_tokens": 10_000_000, "output_tokens": 1_000_000}
_MOST_TOKENS_PER_S: Final = 5_000.0  # of one answer


@dataclass(slots=True)
class RecordedTimes:
    """The arrivals of a file as it has them.

    Attributes:
        unit: in which they were read.
        first: number of the first one; None before there is one.
        part: the first one that is no whole number of its unit.
        rows_back: rows that arrive before the row above them.
        most_back_s: by how much at most.
    """

    unit: TimeUnit
    first: float | None = None
    part: float | None = None
    rows_back: int = 0
    most_back_s: float = 0.0

    def add(self, ticks: pl.Series) -> None:
        """Take the arrivals [rows] of a block into account."""
        known = ticks.drop_nulls()
        if self.first is None and len(known):
            self.first = float(known[0])
        if self.part is None and known.dtype.is_float():
            parts = known.filter(known != known.floor())
            self.part = float(parts[0]) if len(parts) else None

    def add_order(self, arrival_s: pl.Series) -> None:
        """Take the order of all rows into account, before they are sorted."""
        back_s = -arrival_s.diff()
        self.rows_back = int((back_s > 0).sum())
        self.most_back_s = float(str(back_s.max())) if self.rows_back else 0.0


def unit_since_1970(number: float) -> TimeUnit | None:
    """The unit in which a number is a time since 1970; None for numbers that are too small."""
    found = next((unit for least, unit in _EPOCHS if number >= least), None)
    return None if found == "s" and number >= 1e10 else found


def doubts_about(table: pl.DataFrame, times: RecordedTimes) -> tuple[str, ...]:
    """Doubts about a request table, sorted by arrival, in words."""
    parts = (_about_units(times), _about_order(table, times), _about_rate(table, times))
    return tuple(doubt for part in (*parts, _about_service(table), _about_tokens(table)) for doubt in part)


def _about_units(times: RecordedTimes) -> Iterator[str]:
    unit, first = times.unit, times.first
    if unit == "datetime" or first is None:
        return
    likely = unit_since_1970(first)
    if likely is not None and likely != unit:
        yield (
            f"times were read as {_IN_WORDS[unit]}, and {first:.15g} is one of {_IN_WORDS[likely]} "
            f"since 1970: --time-unit {likely}"
        )
    elif likely is None and unit != "s" and times.part is not None:
        yield (
            f"times were read as {_IN_WORDS[unit]}, and have parts of one, such as {times.part:.12g}: "
            "if they are seconds, --time-unit s"
        )


def _about_order(table: pl.DataFrame, times: RecordedTimes) -> Iterator[str]:
    """Lines of logs stand in the order of their ends; further back goes a log of several parts or clocks."""
    longest = table["recorded_s"].max() if "recorded_s" in table.columns else None
    usual_s = 60.0 + (0.0 if longest is None else float(str(longest)))
    if times.most_back_s > usual_s:
        yield (
            f"arrivals before the row above them: {counted(times.rows_back, 'row')}, by up to "
            f"{times.most_back_s:,.6g} s, and were sorted: several logs in one file, or clocks that were set?"
        )


def _about_rate(table: pl.DataFrame, times: RecordedTimes) -> Iterator[str]:
    rows, arrival_s = table.height, table["arrival_s"]
    span_s = float(arrival_s[-1]) - float(arrival_s[0])
    in_units = "" if times.unit == "datetime" else f", with times read as {_IN_WORDS[times.unit]}"
    if rows > 1 and span_s == 0:
        yield f"all {rows:,} requests arrive at the same time{in_units}"
    elif rows >= _FEW and rows > _MOST_PER_S * span_s:
        yield f"{rows:,} requests arrive in {span_s:.3g} s{in_units}: --time-unit says which unit they have"
    elif rows >= _FEW and times.unit != "datetime" and span_s > _LONGEST_GAP_S * rows:
        yield (
            f"{span_s / rows:,.0f} s pass from one request to the next{in_units}: --time-unit says which "
            "unit they have"
        )


def _about_service(table: pl.DataFrame) -> Iterator[str]:
    recorded_s = table["recorded_s"].drop_nulls() if "recorded_s" in table.columns else pl.Series()
    if not len(recorded_s):
        return
    median_s = float(str(recorded_s.median()))
    span_s = float(table["arrival_s"][-1]) - float(table["arrival_s"][0])
    in_flight = float(recorded_s.sum()) / span_s if span_s > 0 else 0.0
    if median_s >= _LONG_S:
        yield (
            f"half of the requests took {median_s:,.6g} s or more: if these are milliseconds, "
            "--map recorded_s=COLUMN*0.001"
        )
    elif in_flight > _MOST_IN_FLIGHT:
        yield f"{in_flight:,.0f} requests were served at once: are arrivals and recorded_s in the same unit?"
    elif "output_tokens" in table.columns:
        speed = (table["output_tokens"] / table["recorded_s"]).filter(table["recorded_s"] > 0).median()
        if speed is not None and float(str(speed)) > _MOST_TOKENS_PER_S:
            yield (
                f"half of the answers came at {float(str(speed)):,.0f} tokens a second or more: "
                "is recorded_s in seconds?"
            )


def _about_tokens(table: pl.DataFrame) -> Iterator[str]:
    for name, most in _MOST_TOKENS.items():
        found = float(str(table[name].max() or 0)) if name in table.columns else 0.0
        if found > most:
            yield f"{name} go up to {found:,.0f}: are these characters or bytes?"
