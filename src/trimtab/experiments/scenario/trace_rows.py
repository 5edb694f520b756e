"""The recorded trace of a workload: read once per process, then sampled and sliced for each seed."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path

import polars as pl

from trimtab.experiments.scenario.spec.workload import TraceSpec
from trimtab.traces import Trace, TraceOptions, apply_options, read_trace
from trimtab.traces.source import Progress

_last: dict[Hashable, Trace] = {}  # one entry: traces are large, and seeds follow each other


def recorded(spec: TraceSpec, progress: Progress | None = None) -> Trace:
    """All rows of the file that the format keeps, before sampling and slicing.

    `progress` is called with (bytes done, bytes in all), unless the trace is in memory.

    Raises:
        TraceError: the file is not a trace.
    """
    path, mapping = Path(spec.file), spec.mapping
    options = TraceOptions(
        keep_unfinished=spec.options.keep_unfinished, prompt_token_frac=spec.options.prompt_token_frac
    )
    key = (path, stamp_of(spec), spec.format, mapping and mapping.model_dump_json(), options)
    if key not in _last:
        trace = read_trace(path, spec.format, mapping, options, progress)
        _last.clear()
        _last[key] = trace
    return _last[key]


def stamp_of(spec: TraceSpec) -> tuple[int, int]:
    """Size and modification time of the file, to notice changes. Zeros without a file."""
    path = Path(spec.file)
    found = path.stat() if path.exists() else None
    return (0, 0) if found is None else (found.st_size, found.st_mtime_ns)


def chosen_rows(trace: Trace, options: TraceOptions, seed: int) -> pl.DataFrame:
    """The rows of one run; each seed has a sample of its own.

    Raises:
        TraceError: no rows are left.
    """
    return apply_options(trace.table, options.model_copy(update={"seed": options.seed + seed}))


def recorded_rows(spec: TraceSpec) -> int:
    """Rows of the sample of seed 0."""
    return chosen_rows(recorded(spec), spec.options, 0).height


def arrives_at_once(spec: TraceSpec) -> bool:
    """Whether all requests of the sample of seed 0 arrive at the same time, so that there is no load."""
    arrival_s = chosen_rows(recorded(spec), spec.options, 0)["arrival_s"]
    return bool(arrival_s[0] == arrival_s[-1])


def holds_runs(spec: TraceSpec) -> bool:
    """Whether the requests are runs of chains."""
    return recorded(spec).stages is not None


def unserved_rows(spec: TraceSpec) -> tuple[int, dict[str, int]]:
    """Number of rows in the sample of seed 0, and of a recording's rows by outcome, done excluded."""
    rows = chosen_rows(recorded(spec), spec.options, 0)
    if "outcome" not in rows.columns:
        return rows.height, {}
    unserved = rows.filter(pl.col("outcome") != "done")["outcome"]
    return rows.height, dict(unserved.value_counts(sort=True).iter_rows())
