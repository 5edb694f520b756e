"""Reads a file as a request table: recognises the format, types the columns, refuses files of other kinds.

    file → `source` (raw blocks) → typed block → `options` → `Trace`

Every format goes this way; what differs between them is declared in their `TraceFormat`. Several files of one
log become one trace.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl
from pydantic import ValidationError

from trimtab.errors import TraceError
from trimtab.traces.bad_rows import Repair
from trimtab.traces.formats import TraceFormat, with_optional
from trimtab.traces.frames import as_frame
from trimtab.traces.gateway_recording import NAME as RECORDING
from trimtab.traces.gateway_recording import SIZE_RULE as RECORDING_SIZE_RULE
from trimtab.traces.gateway_recording import is_recording, open_recording, read_requests
from trimtab.traces.mapping import TraceMapping, mapped_format, overlaid, own_format, size_in_words
from trimtab.traces.plausibility import doubts_about
from trimtab.traces.recognition import (
    FORMAT_NAMES,
    PUBLIC_FORMATS,
    known_by,
    recognised,
    refuse_unrecognised,
)
from trimtab.traces.request_logs import OF_LOGS
from trimtab.traces.slicing import TraceOptions, apply_options
from trimtab.traces.source import Progress, TraceSource, look_at, look_at_frame
from trimtab.traces.table_reader import TableReader
from trimtab.traces.wfformat import NAME as WFFORMAT
from trimtab.traces.wfformat import RUNS, RunTrace, has_stages, read_runs, read_workflow
from trimtab.validation.names import nearest
from trimtab.words import counted


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace that was read.

    Attributes:
        table: the request table (see `formats.COLUMNS`), sorted by arrival, options applied.
        format: name of the format it was read as.
        file: where it came from.
        rows_in_file: requests in the file, dropped ones included.
        dropped: reason → rows left out because of it, before the options.
        size_rule: what one work unit of `size` is, in words; None where there is no size.
        stages: of runs, by `run_idx` of the table (see `run_tables`); None where rows are requests.
        unused_columns: columns of the file that were not read.
        repairs: rows that were dropped or filled because of their values, by reason.
        known_by: what its format was recognised by, in words.
        doubts: figures that would be odd if it was read right, in words.
    """

    table: pl.DataFrame
    format: str
    file: str
    rows_in_file: int
    dropped: Mapping[str, int]
    size_rule: str | None = None
    unused_columns: tuple[str, ...] = ()
    stages: pl.DataFrame | None = None
    repairs: tuple[Repair, ...] = ()
    known_by: str = ""
    doubts: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Where it came from, and how much it holds."""
        span_s = float(self.table["arrival_s"][-1]) - float(self.table["arrival_s"][0])
        what = f"{self.file} ({self.format}), {counted(self.table.height, 'request')} in {span_s:.6g} s"
        return f"<Trace: {what}: {', '.join(self.table.columns)}>"

    def format_in_words(self) -> str:
        """One line: what it was read as, and what told so."""
        return f"read as {self.format}, known by {self.known_by}"

    def notes(self) -> list[str]:
        """Notes about rows and values that were left out or filled, and doubts."""
        left_out = [f"left out {counted(rows, 'row')}: {reason}" for reason, rows in self.dropped.items()]
        doubts = [f"in doubt: {doubt}" for doubt in self.doubts]
        return left_out + [repair.in_words() for repair in self.repairs] + doubts


def read_trace(
    path: Any,
    format: str = "auto",
    mapping: TraceMapping | Mapping[str, Any] | None = None,
    options: TraceOptions | None = None,
    progress: Progress | None = None,
    *,
    columns: Mapping[str, Any] | None = None,
    **rules: Any,
) -> Trace:
    """Read a trace.

    Args:
        path: CSV or JSONL (both also as gzip), Parquet or a text log; told apart by content. A recording of
            the gateway: any of its files, or their folder. A data frame of polars, pandas or Arrow.
        format: one of `FORMAT_NAMES`; `auto` goes by the columns.
        mapping: the columns of a file in no known format, and how it is written (`TraceMapping`).
        options: slice, sample, rate scale; by default the whole file as it is.
        progress: called with (bytes done, bytes in all).
        columns: canonical column → column of the file; short for a mapping with these columns.
        rules: further fields of the mapping, such as `time_format`, `na`, `where`, `on_bad_row="drop"`.

    Raises:
        TraceError: no such file or format, missing columns, values that are missing, unreadable or out of
            range, arrivals that decrease, no requests.
    """
    chosen = options or TraceOptions()
    mapped = _mapping(mapping, columns, rules)
    frame = as_frame(path)
    source = look_at_frame(frame) if frame is not None else None
    if source is None and mapped is None and format in ("auto", RECORDING) and is_recording(_path(path)):
        return _recording(path, chosen, progress)
    workflow = None
    if source is None and mapped is None and format in ("auto", WFFORMAT):
        workflow = read_workflow(_path(path))
    if workflow is not None:
        return _runs(workflow, path, chosen)
    rules_read = mapped or TraceMapping()
    if source is None:
        source = look_at(_path(path), rules_read.encoding, rules_read.delimiter)
    if mapped is None and format in ("auto", RUNS) and has_stages(source):
        return _runs(read_runs(source), path, chosen)
    layout = _layout(source, format, mapped)
    _refuse_missing(source, layout, rules_read)
    reader = TableReader(source, layout, rules_read, chosen)
    table = reader.read(progress)
    used = {*layout.source_names, *rules_read.keep}
    return Trace(
        table=apply_options(table, chosen),
        format=layout.name,
        file=str(source.path),
        rows_in_file=reader.rows_in_file,
        dropped=dict(reader.dropped),
        size_rule=size_in_words(layout, chosen),
        unused_columns=tuple(name for name in source.columns if name not in used),
        repairs=reader.repairs.all(),
        known_by=known_by(source, layout, format),
        doubts=doubts_about(table, reader.times),
    )


def _path(given: Any) -> Path:
    if isinstance(given, str | os.PathLike):
        return Path(given)
    expected = "a path, or a data frame of polars, pandas or Arrow"
    raise TraceError(f"is a {type(given).__name__}", field="path", expected=expected)


def _mapping(
    mapping: TraceMapping | Mapping[str, Any] | None,
    columns: Mapping[str, Any] | None,
    rules: Mapping[str, Any],
) -> TraceMapping | None:
    """One mapping of all that was given; None if nothing was."""
    if columns is None and not rules:
        return None if mapping is None else validated(mapping)
    base = {} if mapping is None else dict(validated(mapping))
    merged = {**base.get("columns", {}), **(columns or {})}
    return validated({**base, "columns": merged, **rules})


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
        known_by="the head of a recording",
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
        known_by="key workflow" if found.format == WFFORMAT else "column stages",
    )


def _layout(source: TraceSource, name: str, mapping: TraceMapping | None) -> TraceFormat:
    if mapping is not None and mapping.is_whole():
        return with_optional(mapped_format(mapping), source.columns)
    layout = _named(source, name, mapping)
    return with_optional(layout if mapping is None else overlaid(layout, mapping), source.columns)


def _named(source: TraceSource, name: str, mapping: TraceMapping | None) -> TraceFormat:
    if name == "auto":
        return _recognised(source, mapping)
    if name == "trimtab":
        return own_format(source.columns)
    for public in (*PUBLIC_FORMATS, *OF_LOGS):
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


def validated(mapping: TraceMapping | Mapping[str, Any]) -> TraceMapping:
    """A checked mapping. Raises TraceError that names the field."""
    try:
        return TraceMapping.model_validate(mapping)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(("mapping", *map(str, first["loc"])))
        expected = first["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
        raise TraceError("invalid mapping", field=field, value=first["input"], expected=expected) from error


def _recognised(source: TraceSource, mapping: TraceMapping | None) -> TraceFormat:
    found = recognised(source)
    if found is not None:
        return found
    if mapping is not None and mapping.columns:
        expected = "arrival_s must be mapped, for example --map arrival_s=COLUMN"
        raise TraceError(
            "invalid mapping", field="mapping.columns", value=list(mapping.columns), expected=expected
        )
    refuse_unrecognised(source)


def _refuse_missing(source: TraceSource, layout: TraceFormat, mapping: TraceMapping) -> None:
    missing = [name for name in (*layout.source_names, *mapping.keep) if name not in source.columns]
    if missing:
        raise TraceError(
            f"missing columns {missing} of format {layout.name}",
            file=str(source.path),
            value=list(source.columns),
            expected=nearest(missing[0], source.columns),
        )


def look(path: Path, mapping: TraceMapping) -> TraceSource:
    """A file as its mapping says that it is written."""
    return look_at(path, mapping.encoding, mapping.delimiter)


def import_files(
    files: Sequence[Path],
    format_name: str,
    mapping: TraceMapping,
    options: TraceOptions,
    progress: Progress | None = None,
) -> Trace:
    """All rows of the files, sorted by arrival from the first of all on; options that cut rows are left.

    Raises:
        TraceError: as `read_trace` does.
    """
    whole = TraceOptions(keep_unfinished=options.keep_unfinished, prompt_token_frac=options.prompt_token_frac)
    if len(files) == 1:
        return read_trace(files[0], format_name, mapping, whole, progress)
    absolute = mapping.model_copy(update={"origin": "zero"})
    traces = [read_trace(file, format_name, absolute, whole, progress) for file in files]
    table = pl.concat([trace.table for trace in traces], how="diagonal").sort(
        "arrival_s", maintain_order=True
    )
    if mapping.origin != "zero":
        table = table.with_columns(pl.col("arrival_s") - pl.col("arrival_s").first())
    dropped: Counter[str] = Counter()
    for trace in traces:
        dropped.update(trace.dropped)
    return replace(
        traces[0],
        table=table,
        file=", ".join(trace.file for trace in traces),
        rows_in_file=sum(trace.rows_in_file for trace in traces),
        dropped=dict(dropped),
        repairs=tuple(repair for trace in traces for repair in trace.repairs),
        doubts=tuple(dict.fromkeys(doubt for trace in traces for doubt in trace.doubts)),
    )
