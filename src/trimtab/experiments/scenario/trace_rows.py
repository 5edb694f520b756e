"""The recorded trace of a workload: read once per process, then sampled and sliced for each seed."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Final

import polars as pl

from trimtab.experiments.provenance import file_stamp
from trimtab.experiments.scenario.spec.workload import TraceSpec
from trimtab.traces import Trace, TraceOptions, apply_options, read_trace
from trimtab.traces.formats import COLUMNS
from trimtab.traces.source import Progress

CARRIED: Final = ("original_id", "prompt_tokens", "output_tokens")
READ: Final = frozenset(COLUMNS)

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
    key = (path, file_stamp(path), spec.format, mapping and mapping.model_dump_json(), options)
    if key not in _last:
        trace = read_trace(path, spec.format, mapping, options, progress)
        _last.clear()
        _last[key] = trace
    return _last[key]


def chosen_rows(trace: Trace, options: TraceOptions, seed: int) -> pl.DataFrame:
    """The rows of one run; each seed has a sample of its own.

    Raises:
        TraceError: no rows are left.
    """
    return apply_options(trace.table, options.model_copy(update={"seed": options.seed + seed}))


def trace_columns(spec: TraceSpec | None, seed: int) -> pl.DataFrame | None:
    """The columns of a recorded request that the simulator does not need: tokens, its id, columns kept.

    One row a request, in the order of the run; None without a trace, or where there are no such columns.
    """
    if spec is None:
        return None
    trace = recorded(spec)
    kept = (name for name in trace.table.columns if name in CARRIED or name not in READ)
    names = [name for name in kept if spec.mapping is not None or name in CARRIED]
    if not names:
        return None
    return chosen_rows(trace, spec.options, seed).select(names)


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
