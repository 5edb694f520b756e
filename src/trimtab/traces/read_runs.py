"""Reads files of runs: workflows of WfCommons, and run traces as JSONL or Parquet."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any, Final, NamedTuple

import polars as pl

from trimtab.errors import TraceError
from trimtab.traces.run_tables import STAGES, tables_of
from trimtab.traces.source import TraceSource
from trimtab.traces.wfformat import NAME as WFFORMAT
from trimtab.traces.wfformat import is_workflow, workflow_tables

RUNS: Final = "trimtab-runs"
_JSON_START = 4096  # bytes in which a JSON document shows itself


class RunTrace(NamedTuple):
    """Runs of chains: a table of runs and one of stages (see `run_tables`), and the format of the file."""

    runs: pl.DataFrame
    stages: pl.DataFrame
    format: str


def read_workflow(path: Path) -> RunTrace | None:
    """The workflow in a file; None if the file is no JSON document. Raises TraceError."""
    try:
        with path.open("rb") as raw:
            is_gzip = raw.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rb") if is_gzip else path.open("rb") as stream:
            start = stream.read(_JSON_START).lstrip()
            if not start.startswith(b"{") or b'"workflow"' not in start + stream.read(_JSON_START):
                return None
            stream.seek(0)
            content = json.loads(stream.read())
    except (OSError, EOFError, ValueError):
        return None  # the readers of tables name the reason
    return RunTrace(*workflow_tables(content, str(path)), WFFORMAT) if is_workflow(content) else None


def read_runs(source: TraceSource) -> RunTrace:
    """The runs of a JSONL or Parquet file that has a column `stages`. Raises TraceError."""
    return RunTrace(*tables_of(_rows(source), str(source.path)), RUNS)


def _rows(source: TraceSource) -> list[dict[str, Any]]:
    if source.kind == "parquet":
        return pl.read_parquet(source.path).to_dicts()
    rows = []
    with gzip.open(source.path, "rt") if source.is_gzip else source.path.open() as lines:
        for k, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                rows.append(json.loads(line))
            except ValueError as error:
                raise TraceError(f"no JSON ({error})", file=str(source.path), field=f"line {k}") from error
    return rows


def has_stages(source: TraceSource) -> bool:
    """Whether a file has runs in place of requests."""
    return STAGES in source.columns
