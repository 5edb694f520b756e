"""Reads a file as a request table: recognises the format, types the columns, refuses files of other kinds.

    file → `source` (raw blocks) → typed block → `options` → `Trace`

Every format goes this way; what differs between them is declared in their `TraceFormat`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import polars as pl
from pydantic import ValidationError

from trimtab.errors import TraceError
from trimtab.traces.azure import AZURE_LLM_2023
from trimtab.traces.columns import AT_LEAST, COLUMNS
from trimtab.traces.formats import SourceColumn, TraceFormat
from trimtab.traces.gateway_recording import NAME as RECORDING
from trimtab.traces.gateway_recording import SIZE_RULE as RECORDING_SIZE_RULE
from trimtab.traces.gateway_recording import is_recording, open_recording, read_requests
from trimtab.traces.gentd26 import GENTD26
from trimtab.traces.mapping import TraceMapping, mapped_format, own_format, size_in_words
from trimtab.traces.mooncake import MOONCAKE
from trimtab.traces.read_runs import RUNS, RunTrace, has_stages, read_runs, read_workflow
from trimtab.traces.slicing import TraceOptions, apply_options
from trimtab.traces.source import Progress, RawBlock, TraceSource, look_at, read_blocks
from trimtab.traces.values import (
    EXPECTED_TIME,
    expected_value,
    parsed,
    parsed_ticks,
    recorded_time,
    seconds,
    unit_of,
)
from trimtab.traces.wfformat import NAME as WFFORMAT

PUBLIC_FORMATS: Final = (AZURE_LLM_2023, MOONCAKE, GENTD26)
FORMAT_NAMES: Final = (
    "auto",
    *(public.name for public in PUBLIC_FORMATS),
    RECORDING,
    WFFORMAT,
    RUNS,
    "trimtab",
)

_ROW = "_row_idx"  # position in the file, carried along for messages


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace that was read.

    Attributes:
        table: the request table (see `columns.COLUMNS`), sorted by arrival, options applied.
        format: name of the format it was read as.
        file: where it came from.
        rows_in_file: requests in the file, dropped ones included.
        dropped: reason → rows left out because of it, before the options.
        size_rule: what one work unit of `size` is, in words; None where there is no size.
        stages: of runs, by `run_idx` of the table (see `run_tables`); None where rows are requests.
        unused_columns: columns of the file that were not read.
    """

    table: pl.DataFrame
    format: str
    file: str
    rows_in_file: int
    dropped: Mapping[str, int]
    size_rule: str | None = None
    unused_columns: tuple[str, ...] = ()
    stages: pl.DataFrame | None = None


def read_trace(
    path: str | Path,
    format: str = "auto",
    mapping: TraceMapping | Mapping[str, Any] | None = None,
    options: TraceOptions | None = None,
    progress: Progress | None = None,
) -> Trace:
    """Read a trace file.

    Args:
        path: CSV or JSONL (both also as gzip) or Parquet; told apart by content. A recording of the gateway:
            any of its files, or their folder.
        format: one of `FORMAT_NAMES`; `auto` goes by the columns.
        mapping: the columns of a file in no known format; then `format` is not looked at.
        options: slice, sample, rate scale; by default the whole file as it is.
        progress: called with (bytes done, bytes in all).

    Raises:
        TraceError: no such file or format, missing columns, values that are missing, unreadable or out of
            range, arrivals that decrease, no requests.
    """
    chosen = options or TraceOptions()
    if mapping is None and format in ("auto", RECORDING) and is_recording(Path(path)):
        return _recording(path, chosen, progress)
    workflow = read_workflow(Path(path)) if mapping is None and format in ("auto", WFFORMAT) else None
    if workflow is not None:
        return _runs(workflow, path, chosen)
    source = look_at(Path(path))
    if mapping is None and format in ("auto", RUNS) and has_stages(source):
        return _runs(read_runs(source), path, chosen)
    layout = _layout(source, format, mapping)
    _refuse_missing(source, layout)
    reader = _Reader(source, layout, chosen)
    table = reader.read(progress)
    return Trace(
        table=apply_options(table, chosen),
        format=layout.name,
        file=str(path),
        rows_in_file=reader.rows_in_file,
        dropped=dict(reader.dropped),
        size_rule=size_in_words(layout, chosen),
        unused_columns=tuple(name for name in source.columns if name not in layout.source_names),
    )


def _recording(path: str | Path, options: TraceOptions, progress: Progress | None) -> Trace:
    recording = open_recording(Path(path))
    table, dropped = read_requests(recording, progress)
    return Trace(
        table=apply_options(table, options),
        format=RECORDING,
        file=str(path),
        rows_in_file=table.height + sum(dropped.values()),
        dropped=dropped,
        size_rule=RECORDING_SIZE_RULE,
    )


def _runs(found: RunTrace, path: str | Path, options: TraceOptions) -> Trace:
    return Trace(
        table=apply_options(found.runs, options),
        format=found.format,
        file=str(path),
        rows_in_file=found.runs.height,
        dropped={},
        size_rule="seconds of its stages at speed 1" if found.format == WFFORMAT else None,
        stages=found.stages,
    )


def _layout(source: TraceSource, name: str, mapping: TraceMapping | Mapping[str, Any] | None) -> TraceFormat:
    if mapping is not None:
        return mapped_format(_validated(mapping))
    if name == "auto":
        return _recognised(source)
    if name == "trimtab":
        return own_format(source.columns)
    for public in PUBLIC_FORMATS:
        if public.name == name:
            return public
    if name in (WFFORMAT, RUNS):
        expected = "a workflow of WfCommons" if name == WFFORMAT else "a column `stages`"
        raise TraceError(f"no file of the format {name}", file=str(source.path), expected=expected)
    if name == RECORDING:
        expected = "a file of a recording, which begins with its head, or their folder"
        raise TraceError("no recording of a gateway", file=str(source.path), expected=expected)
    raise TraceError(
        "no such trace format", field="format", value=name, expected=f"one of {list(FORMAT_NAMES)}"
    )


def _validated(mapping: TraceMapping | Mapping[str, Any]) -> TraceMapping:
    try:
        return TraceMapping.model_validate(mapping)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(("mapping", *map(str, first["loc"])))
        raise TraceError(
            "invalid mapping", field=field, value=first["input"], expected=first["msg"]
        ) from error


def _recognised(source: TraceSource) -> TraceFormat:
    for public in PUBLIC_FORMATS:
        if set(public.source_names) <= set(source.columns):
            return public
    if "arrival_s" in source.columns:
        return own_format(source.columns)
    raise TraceError(
        "the format is not recognised from the columns",
        file=str(source.path),
        value=list(source.columns),
        expected=f"those of one of {list(FORMAT_NAMES[1:])}, or a column mapping",
    )


def _refuse_missing(source: TraceSource, layout: TraceFormat) -> None:
    missing = [name for name in layout.source_names if name not in source.columns]
    if missing:
        raise TraceError(
            f"missing columns {missing} of format {layout.name}",
            file=str(source.path),
            value=list(source.columns),
            expected=f"{list(layout.source_names)}",
        )


class _Reader:
    """One pass over one file; counts what it drops."""

    def __init__(self, source: TraceSource, layout: TraceFormat, options: TraceOptions) -> None:
        self.source, self.layout, self.options = source, layout, options
        self.rows_in_file = 0
        self.dropped: Counter[str] = Counter()
        self.first_ticks: float | None = None
        self.unit = layout.time_unit

    def read(self, progress: Progress | None) -> pl.DataFrame:
        """All kept requests of the file, checked, in canonical columns."""
        blocks = list(self._typed_blocks(progress))
        if not blocks or not sum(block.height for block in blocks):
            raise self._no_requests()
        table = pl.concat(blocks)
        self._refuse_unsorted(table)
        return table.select(name for name in COLUMNS if name in table.columns)

    def _typed_blocks(self, progress: Progress | None) -> Iterator[pl.DataFrame]:
        for block in read_blocks(self.source, progress):
            yield self._checked(self._without_dropped(self._typed(block)))

    def _typed(self, block: RawBlock) -> pl.DataFrame:
        rows = pl.int_range(block.first_row_idx, block.first_row_idx + block.table.height, eager=True)
        raw = _without_blank(block.table.with_columns(rows.alias(_ROW)))
        self.rows_in_file += raw.height
        typed = [self._column(raw, column) for column in self.layout.columns]
        kept = raw.select(_ROW, *(pl.col(name).cast(pl.String) for name in self.layout.raw))
        return kept.with_columns(typed).with_columns(**self.layout.derived(self.options))

    def _column(self, raw: pl.DataFrame, column: SourceColumn) -> pl.Series:
        values, dtype = raw[column.source], COLUMNS[column.target]
        if column.target == "arrival_s":
            return self._arrivals(raw, column)
        typed = parsed(values, dtype)
        self._refuse_unparsed(raw, column, typed, expected_value(dtype))
        return (typed if column.scale == 1.0 else typed * column.scale).alias(column.target)

    def _arrivals(self, raw: pl.DataFrame, column: SourceColumn) -> pl.Series:
        values = raw[column.source]
        unit = self.unit = unit_of(values, self.layout.time_unit)
        ticks = parsed_ticks(values, unit)
        self._refuse_unparsed(raw, column, ticks, EXPECTED_TIME[unit])
        if self.first_ticks is None and ticks.len():
            self.first_ticks = 0 if self.layout.origin == "zero" else ticks[0]
        # Subtracted while still in whole ticks: seconds since 1970 would lose the last digits.
        return seconds(ticks - (self.first_ticks or 0), unit).alias(column.target)

    def _without_dropped(self, table: pl.DataFrame) -> pl.DataFrame:
        if self.layout.drop_reason is None:
            return table
        marked = table.with_columns(self.layout.drop_reason(self.options).alias("_dropped"))
        self.dropped.update(marked["_dropped"].drop_nulls().to_list())
        return marked.filter(pl.col("_dropped").is_null()).drop("_dropped")

    def _checked(self, table: pl.DataFrame) -> pl.DataFrame:
        for name in self.layout.needed:
            self._refuse_first(table, name, pl.col(name).is_null(), "missing value", "a value in every row")
        for name, least in AT_LEAST.items():
            # Arrivals that count from the first row are negative where they are not sorted, see there.
            if name in table.columns and (name != "arrival_s" or self.layout.origin == "zero"):
                too_small = pl.col(name) < least
                self._refuse_first(table, name, too_small, "value out of range", f"at least {least}")
        if "size" in table.columns:
            self._refuse_first(table, "size", pl.col("size") <= 0, "value out of range", "greater than 0")
        return table

    def _refuse_first(
        self, table: pl.DataFrame, name: str, is_bad: pl.Expr, problem: str, expected: str
    ) -> None:
        bad = table.filter(is_bad).head(1)
        if bad.height:
            raise self._error(problem, bad[_ROW][0], self.layout.source_of(name), bad[name][0], expected)

    def _refuse_unparsed(
        self, raw: pl.DataFrame, column: SourceColumn, typed: pl.Series, expected: str
    ) -> None:
        bad = raw.filter(raw[column.source].is_not_null() & typed.is_null()).head(1)
        if bad.height:
            raise self._error(
                "unreadable value", bad[_ROW][0], column.source, bad[column.source][0], expected
            )

    def _refuse_unsorted(self, table: pl.DataFrame) -> None:
        bad = table.with_columns(_before=pl.col("arrival_s").shift()).filter(
            pl.col("arrival_s") < pl.col("_before")
        )
        if bad.height:
            row_idx, arrival_s, before_s = bad.select(_ROW, "arrival_s", "_before").row(0)
            source = self.layout.source_of("arrival_s")
            expected = f"at least {self._as_recorded(before_s)}, as in the row before"
            raise self._error(
                "arrivals are not sorted", row_idx, source, self._as_recorded(arrival_s), expected
            )

    def _as_recorded(self, arrival_s: float) -> str:
        """An arrival as the file tells it: date and time, or seconds."""
        return recorded_time(arrival_s, self.first_ticks or 0, self.unit)

    def _error(self, problem: str, row_idx: int, column: str, value: object, expected: str) -> TraceError:
        place = f"{self.source.place(row_idx)}, column {column}"
        return TraceError(problem, file=str(self.source.path), field=place, value=value, expected=expected)

    def _no_requests(self) -> TraceError:
        left_out = f" ({dict(self.dropped)} dropped)" if self.dropped else ""
        return TraceError(
            f"no requests in the trace{left_out}", file=str(self.source.path), expected="at least one request"
        )


def _without_blank(raw: pl.DataFrame) -> pl.DataFrame:
    """Blank lines, which CSV readers see as rows without values, are no requests."""
    return raw.filter(pl.any_horizontal(pl.exclude(_ROW).is_not_null()))
