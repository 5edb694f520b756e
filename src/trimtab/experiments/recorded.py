"""The recorded trace of a workload: read once per process, then sampled and sliced for each seed."""

from __future__ import annotations

import functools
from pathlib import Path

import polars as pl

from trimtab.experiments.spec.workload import TraceSpec
from trimtab.traces import Trace, TraceMapping, TraceOptions, apply_options, read_trace


def recorded(spec: TraceSpec) -> Trace:
    """All rows of the file that the format keeps, before sampling and slicing.

    Raises:
        TraceError: the file is no trace.
    """
    path = Path(spec.file)
    changed_ns = path.stat().st_mtime_ns if path.exists() else 0
    mapping = None if spec.mapping is None else spec.mapping.model_dump_json()
    options = spec.options
    return _read(path, changed_ns, spec.format, mapping, options.keep_unfinished, options.prompt_token_frac)


@functools.lru_cache(maxsize=1)
def _read(
    path: Path,
    changed_ns: int,
    format_name: str,
    mapping: str | None,
    keep_unfinished: bool,
    prompt_token_frac: float,
) -> Trace:
    columns = None if mapping is None else TraceMapping.model_validate_json(mapping)
    options = TraceOptions(keep_unfinished=keep_unfinished, prompt_token_frac=prompt_token_frac)
    return read_trace(path, format_name, columns, options)


def chosen_rows(trace: Trace, options: TraceOptions, seed: int) -> pl.DataFrame:
    """The rows of one run; each seed has a sample of its own.

    Raises:
        TraceError: nothing is left.
    """
    return apply_options(trace.table, options.model_copy(update={"seed": options.seed + seed}))


def recorded_rows(spec: TraceSpec) -> int:
    """Rows of the sample of seed 0."""
    return chosen_rows(recorded(spec), spec.options, 0).height
