"""One pass over one table: columns typed, rows checked, dropped or filled, and sorted.

file → `source` (raw blocks) → condition on rows → typed → filled → derived columns → checked → sorted
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

import polars as pl

from trimtab.errors import TraceError
from trimtab.traces.bad_rows import Action, Repairs, row_filter
from trimtab.traces.formats import AT_LEAST, COLUMNS, MOST_SIZE, SourceColumn, TraceFormat, is_bad_size
from trimtab.traces.mapping import TraceMapping
from trimtab.traces.plausibility import RecordedTimes
from trimtab.traces.slicing import TraceOptions
from trimtab.traces.source import Progress, RawBlock, TraceSource, read_blocks
from trimtab.traces.values import (
    EXPECTED_TIME,
    UTC,
    as_text,
    expected_value,
    parsed,
    parsed_ticks,
    recorded_time,
    seconds,
    unit_of,
)
from trimtab.words import counted

_ROW: Final = "_row_idx"  # position in the file, carried along for messages
_BAD: Final = "_is_bad"
_KEPT: Final = "_kept_"  # in front of further columns of the file, which may have canonical names
_WHERE: Final = "where"


class TableReader:
    """Reads one file by its layout and the rules of a mapping; counts what it drops and fills."""

    def __init__(
        self, source: TraceSource, layout: TraceFormat, rules: TraceMapping, options: TraceOptions
    ) -> None:
        self.layout, self.rules, self.options = layout, rules, options
        self.rows_in_file = 0
        self.dropped: Counter[str] = Counter()
        self.is_wanted = None if rules.where is None else row_filter(rules.where, source.columns)
        asked = [] if self.is_wanted is None else self.is_wanted.meta.root_names()
        self.source = source.narrowed({*layout.source_names, *rules.keep, *asked})
        self.repairs = Repairs(self.source.place)
        self.first_ticks: float | None = None
        self.times = RecordedTimes(layout.time_unit)
        self.missing = rules.missing | layout.missing

    def read(self, progress: Progress | None) -> pl.DataFrame:
        """All kept requests of the file, checked, in canonical columns, then those to keep as they are."""
        blocks = list(self._blocks(progress))
        table = pl.concat(blocks) if blocks else pl.DataFrame()
        if self.rules.on_bad_row == "fill" and not table.is_empty():
            table = self._finished(self._filled(table))
        if table.is_empty():
            raise self._no_requests()
        table = self._in_order(table)
        kept = {_KEPT + name: name for name in self.rules.keep}
        clashes = {new: f"{name}_in_file" if name in table.columns else name for new, name in kept.items()}
        canonical = [name for name in COLUMNS if name in table.columns]
        return table.select(*canonical, *kept).rename(clashes)

    def _blocks(self, progress: Progress | None) -> Iterator[pl.DataFrame]:
        skip = None if self.rules.on_bad_row == "error" else self._skip
        for block in read_blocks(self.source, progress, skip):
            typed = self._typed(block)
            yield typed if self.rules.on_bad_row == "fill" else self._finished(typed)

    def _skip(self, row_idx: int, problem: str, line: str) -> None:
        self.rows_in_file += 1
        self.repairs.add("dropped", problem, pl.Series([row_idx]), line)

    def _typed(self, block: RawBlock) -> pl.DataFrame:
        rows = pl.int_range(block.first_row_idx, block.first_row_idx + block.table.height, eager=True)
        raw = self._wanted(self._without_blank(block.table.with_columns(rows.alias(_ROW))))
        columns = [self._column(raw, column) for column in self.layout.columns]
        also = [pl.col(name).cast(pl.String) for name in self.layout.raw]
        also += [pl.lit(None, pl.String).alias(name) for name in self.layout.raw_also]
        kept = (as_text(raw[name]).alias(_KEPT + name) for name in self.rules.keep)
        typed = raw.select(_ROW, *also, *kept).with_columns(columns)
        return self._without_bad(typed, raw)

    def _without_blank(self, raw: pl.DataFrame) -> pl.DataFrame:
        """Blank lines, which CSV readers see as rows without values, are no requests; nor is a log's rest."""
        found = raw.filter(pl.any_horizontal(pl.exclude(_ROW).is_not_null()))
        self.rows_in_file += found.height
        if self.source.log is not None and found.height < raw.height:
            self.dropped[f"no request of {self.layout.name}"] += raw.height - found.height
            self.rows_in_file += raw.height - found.height
        return found

    def _wanted(self, raw: pl.DataFrame) -> pl.DataFrame:
        if self.is_wanted is None:
            return raw
        wanted = raw.filter(self.is_wanted)
        if wanted.height < raw.height:
            self.dropped[f"not {self.rules.where}"] += raw.height - wanted.height
        return wanted

    def _column(self, raw: pl.DataFrame, column: SourceColumn) -> pl.Series:
        values, dtype = raw[column.source], COLUMNS[column.target]
        if column.target == "arrival_s":
            return self._arrivals(raw, column)
        typed = parsed(values, dtype, self.rules.decimal)
        if dtype == pl.String:
            return _without(typed, self.missing).alias(column.target)
        self._refuse_unparsed(raw, column, typed, expected_value(dtype))
        return (typed if column.scale == 1.0 else typed * column.scale).alias(column.target)

    def _arrivals(self, raw: pl.DataFrame, column: SourceColumn) -> pl.Series:
        values = raw[column.source]
        unit = self.times.unit = unit_of(values, self.layout.time_unit)
        layout, rules = self.layout, self.rules
        ticks = parsed_ticks(values, unit, layout.time_format, rules.time_zone, rules.decimal)
        expected = EXPECTED_TIME[unit] if layout.time_format is None else f"a time as {layout.time_format}"
        expected += "" if rules.time_zone == UTC else f" that clocks show in {rules.time_zone}"
        self._refuse_unparsed(raw, column, ticks, expected)
        self.times.add(ticks)
        if self.first_ticks is None and (known := ticks.drop_nulls()).len():
            self.first_ticks = 0 if layout.origin == "zero" else known[0]
        # Subtracted while still in whole ticks: seconds since 1970 would lose the last digits.
        return seconds(ticks - (self.first_ticks or 0), unit).alias(column.target)

    def _without_bad(self, typed: pl.DataFrame, raw: pl.DataFrame) -> pl.DataFrame:
        """Without rows of which a value is unreadable, if they are to be dropped."""
        if self.rules.on_bad_row != "drop":
            return typed
        is_bad = pl.Series(_BAD, [False]).new_from_index(0, typed.height)
        for column in self.layout.columns:
            if typed[column.target].null_count() == raw[column.source].null_count():
                continue
            bad = self._unparsed(raw[column.source], typed[column.target]) & ~is_bad
            self._repair("dropped", f"unreadable {column.source}", raw.filter(bad), column.source)
            is_bad = is_bad | bad
        return typed.filter(~is_bad)

    def _filled(self, typed: pl.DataFrame) -> pl.DataFrame:
        """With values in place of those that are missing where a row needs one, or out of range."""
        limited = [name for name in (*AT_LEAST, "size") if name in typed.columns and name != "arrival_s"]
        for name in limited:
            column = pl.col(name)
            is_bad = is_bad_size(column) if name == "size" else column < AT_LEAST[name]
            if name in self.layout.needed:
                is_bad = is_bad.fill_null(value=True)
            rows = typed.filter(is_bad)
            if rows.is_empty():
                continue
            value = self.rules.fill.get(name, _median(typed.filter(~is_bad)[name]))
            told = "nothing" if value is None else f"{value:g}"
            self._repair("filled", f"{self.layout.source_of(name)} with {told}, was", rows, name)
            filling = pl.lit(round(value) if value is not None and COLUMNS[name].is_integer() else value)
            typed = typed.with_columns(
                pl.when(is_bad).then(filling.cast(COLUMNS[name])).otherwise(column).alias(name)
            )
        return typed

    def _finished(self, typed: pl.DataFrame) -> pl.DataFrame:
        table = typed.with_columns(**self.layout.derived(self.options))
        return self._checked(self._ended(self._without_dropped(table)))

    def _ended(self, table: pl.DataFrame) -> pl.DataFrame:
        """With arrivals in place of ends, if the file tells these."""
        if not self.layout.time_is_end:
            return table
        if "recorded_s" not in table.columns:
            expected = "recorded_s, the seconds that a request took, where time_is is end"
            raise TraceError(
                "missing column", file=str(self.source.path), field="recorded_s", expected=expected
            )
        return table.with_columns(pl.col("arrival_s") - pl.col("recorded_s").fill_null(0.0))

    def _without_dropped(self, table: pl.DataFrame) -> pl.DataFrame:
        if self.layout.drop_reason is None:
            return table
        marked = table.with_columns(self.layout.drop_reason(self.options).alias("_dropped"))
        self.dropped.update(marked["_dropped"].drop_nulls().to_list())
        return marked.filter(pl.col("_dropped").is_null()).drop("_dropped")

    def _checked(self, table: pl.DataFrame) -> pl.DataFrame:
        for name in sorted(self.layout.needed):
            table = self._only(table, name, pl.col(name).is_null(), "missing value", "a value in every row")
        for name, least in AT_LEAST.items():
            # Arrivals that count from the first row are negative where they are not sorted, see there.
            if name in table.columns and (name != "arrival_s" or self.layout.origin == "zero"):
                too_small = (pl.col(name) < least).fill_null(value=False)
                table = self._only(table, name, too_small, "value out of range", f"at least {least}")
        if "size" in table.columns:
            is_none = is_bad_size(pl.col("size")).fill_null(value=False)
            expected = f"greater than 0, at most {MOST_SIZE:g}"
            table = self._only(table, "size", is_none, "value out of range", expected)
        return table

    def _only(
        self, table: pl.DataFrame, name: str, is_bad: pl.Expr, problem: str, expected: str
    ) -> pl.DataFrame:
        """The good rows; the first bad one is an error unless the rules drop it."""
        bad = table.filter(is_bad)
        if bad.is_empty():
            return table
        source = self.layout.source_of(name)
        if self.rules.on_bad_row == "error":
            raise self._error(problem, bad[_ROW][0], source, bad[name][0], expected)
        self._repair("dropped", f"{problem} of {source}", bad, name)
        return table.filter(~is_bad)

    def _repair(self, action: Action, reason: str, rows: pl.DataFrame, column: str) -> None:
        if rows.height:
            self.repairs.add(action, reason, rows[_ROW], rows[column][0])

    def _unparsed(self, values: pl.Series, typed: pl.Series) -> pl.Series:
        """Which values [rows] there are that do not parse; blank ones are missing."""
        is_bad = values.is_not_null() & typed.is_null()
        if values.dtype != pl.String or not is_bad.any():
            return is_bad
        return is_bad & ~values.str.strip_chars().is_in(sorted(self.missing))

    def _refuse_unparsed(
        self, raw: pl.DataFrame, column: SourceColumn, typed: pl.Series, expected: str
    ) -> None:
        values = raw[column.source]
        if typed.null_count() == values.null_count():
            return
        bad = raw.filter(self._unparsed(values, typed))
        if bad.is_empty():
            return
        if self.rules.on_bad_row == "error":
            raise self._error(
                "unreadable value", bad[_ROW][0], column.source, bad[column.source][0], expected
            )
        if self.rules.on_bad_row == "fill" and column.target not in self.layout.needed:
            self._repair("filled", f"{column.source} with nothing, was", bad, column.source)

    def _in_order(self, table: pl.DataFrame) -> pl.DataFrame:
        if self.layout.is_sorted:
            self._refuse_unsorted(table)
            return table
        self.times.add_order(table["arrival_s"])
        table = table.sort("arrival_s", maintain_order=True)
        if self.layout.origin == "zero":
            return table
        return table.with_columns(pl.col("arrival_s") - pl.col("arrival_s").first())

    def _refuse_unsorted(self, table: pl.DataFrame) -> None:
        bad = table.with_columns(_before=pl.col("arrival_s").shift()).filter(
            pl.col("arrival_s") < pl.col("_before")
        )
        if bad.height:
            row_idx, arrival_s, before_s = bad.select(_ROW, "arrival_s", "_before").row(0)
            source = self.layout.source_of("arrival_s")
            expected = f"at least {self._as_recorded(before_s)}, as in the row before; --sort-rows sorts them"
            raise self._error(
                "arrivals are not sorted", row_idx, source, self._as_recorded(arrival_s), expected
            )

    def _as_recorded(self, arrival_s: float) -> str:
        """An arrival as the file tells it: date and time, or seconds."""
        return recorded_time(arrival_s, self.first_ticks or 0, self.times.unit)

    def _error(self, problem: str, row_idx: int, column: str, value: object, expected: str) -> TraceError:
        place = f"{self.source.place(row_idx)}, column {column}"
        return TraceError(problem, file=str(self.source.path), field=place, value=value, expected=expected)

    def _no_requests(self) -> TraceError:
        dropped = {**self.dropped, **{repair.reason: repair.rows for repair in self.repairs.all()}}
        reasons = ", ".join(f"{counted(rows, 'row')}: {reason}" for reason, rows in dropped.items())
        left_out = f"; left out {reasons}" if reasons else ""
        return TraceError(
            f"no requests in the trace, read as {self.layout.name}{left_out}",
            file=str(self.source.path),
            expected=self.layout.wanted,
        )


def _median(values: pl.Series) -> float | None:
    median = values.median()
    return None if median is None else float(str(median))


def _without(text: pl.Series, missing: frozenset[str]) -> pl.Series:
    """Text with nothing in place of what means no value."""
    is_missing = text.str.strip_chars().is_in(sorted(missing))
    if not is_missing.any():
        return text
    return text.to_frame("t").select(pl.when(~is_missing).then("t")).to_series()
