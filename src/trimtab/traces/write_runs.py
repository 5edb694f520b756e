"""Writes runs of chains: as JSONL or Parquet with a column `stages`, or one run as WfFormat."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import polars as pl

from trimtab.errors import TraceError
from trimtab.traces.run_tables import RUN_IDX, run_rows
from trimtab.traces.wfformat import workflow_of
from trimtab.traces.write import write_trace

_SUFFIXES: Final = (".json", ".jsonl", ".jsonl.gz", ".parquet")


def write_runs(runs: pl.DataFrame, stages: pl.DataFrame, path: str | Path) -> Path:
    """Write the runs so that `read_trace` gives them back; the kind follows from the suffix.

    Raises TraceError: another suffix, more than one run for .json, or a folder that cannot be written to.
    """
    target = Path(path)
    if not target.name.endswith(_SUFFIXES):
        raise TraceError(
            "runs of chains cannot be written so",
            file=str(target),
            value=target.suffix,
            expected=f"{_SUFFIXES}",
        )
    if target.suffix != ".json":
        return write_trace(run_rows(runs, stages), target)
    if runs.height != 1:
        raise TraceError("WfFormat holds one run", file=str(target), value=runs.height, expected="--limit 1")
    own = stages.filter(pl.col(RUN_IDX) == runs[RUN_IDX][0])
    try:
        target.write_text(json.dumps(workflow_of(own, target.stem), indent=1) + "\n")
    except OSError as error:
        raise TraceError(f"cannot be written: {error.strerror or error}", file=str(target)) from error
    return target
