"""Several files of one log as one trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from trimtab.traces.mapping import TraceMapping
from trimtab.traces.read import Trace, read_trace
from trimtab.traces.slicing import TraceOptions
from trimtab.traces.source import Progress, TraceSource, look_at


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
