"""Writes traces as their readers read them; request tables and runs atomically.

Request tables become CSV, JSONL (plain or gzip) or Parquet; runs of chains JSONL or Parquet with a column
`stages`, or one run as WfFormat; training jobs and profiles of their speeds CSV.
"""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import polars as pl

from trimtab.errors import TraceError
from trimtab.traces.job_formats import JOB_COLUMNS
from trimtab.traces.run_tables import RUN_IDX, run_rows
from trimtab.traces.scaling_profiles import Curves
from trimtab.traces.wfformat import workflow_of

_SUFFIXES: Final = (".csv", ".csv.gz", ".jsonl", ".jsonl.gz", ".parquet")


def write_trace(table: pl.DataFrame, path: str | Path) -> Path:
    """Write a request table so that `read_trace` gives it back; the kind follows from the suffix.

    In CSV the prefix blocks are a JSON list. The file appears under its name only when it is complete.

    Raises:
        TraceError: another suffix, or a folder that cannot be written to.
    """
    target = Path(path)
    write = writer_of(target)
    try:
        # Not a `tempfile`: those are for their owner's eyes only, and the rename would keep that.
        unfinished = target.with_name(f".{target.name}.{os.getpid()}.part")
        _write_then_name(table, write, unfinished, target)
    except OSError as error:
        raise TraceError(f"cannot be written: {error.strerror or error}", file=str(target)) from error
    return target


def _write_then_name(
    table: pl.DataFrame, write: Callable[[pl.DataFrame, Path], None], unfinished: Path, target: Path
) -> None:
    try:
        write(table, unfinished)
        os.replace(unfinished, target)
    finally:
        unfinished.unlink(missing_ok=True)


def writer_of(target: Path) -> Callable[[pl.DataFrame, Path], None]:
    """What writes a table to a file of this suffix. Raises TraceError where nothing does."""
    compression: Literal["gzip", "uncompressed"] = "gzip" if target.suffix == ".gz" else "uncompressed"
    kind = target.name.removesuffix(".gz").rpartition(".")[2]
    if not target.name.endswith(_SUFFIXES):
        raise TraceError(
            "unknown kind of file", file=str(target), value=target.suffix, expected=f"{_SUFFIXES}"
        )
    if kind == "csv":
        return lambda table, path: _flat(table).write_csv(
            path, compression=compression, check_extension=False
        )
    if kind == "jsonl":
        return lambda table, path: table.write_ndjson(path, compression=compression, check_extension=False)
    return lambda table, path: table.write_parquet(path)


def _flat(table: pl.DataFrame) -> pl.DataFrame:
    if "prefix_blocks" not in table.columns:
        return table
    items = pl.col("prefix_blocks").cast(pl.List(pl.String)).list.join(",")
    return table.with_columns(prefix_blocks=pl.concat_str(pl.lit("["), items, pl.lit("]")))


def write_jobs(path: Path, columns: Mapping[str, Any]) -> None:
    """Write jobs. The names of the columns are those of JOB_COLUMNS; infinite and nan values become empty."""
    table = pl.DataFrame(dict(columns), schema={name: JOB_COLUMNS[name] for name in columns})
    finite = [pl.col(n) for n, kind in table.schema.items() if kind == pl.Float64]
    known = (pl.when(c.is_finite()).then(c).alias(c.meta.output_name()) for c in finite)
    table.with_columns(known).write_csv(path)


def profile_name(model: str) -> str:
    """The name of a model as part of a file's name."""
    return re.sub(r"[^\w.-]", "_", model)


def write_profiles(folder: Path, curves: Curves) -> None:
    """Write a file for each model, a line for each batch: work per second with each number of GPUs."""
    folder.mkdir(parents=True, exist_ok=True)
    for model in {model for model, _ in curves}:
        own = {batch: curve for (name, batch), curve in curves.items() if name == model}
        counts = sorted({n for curve in own.values() for n in curve})
        with (folder / f"{profile_name(model)}.csv").open("w", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream)
            writer.writerow(["global_batch_size", *counts])
            for batch, curve in sorted(own.items()):
                writer.writerow([f"{batch:g}", *(f"{curve[n]:.9g}" if n in curve else "" for n in counts)])


_RUN_SUFFIXES: Final = (".json", ".jsonl", ".jsonl.gz", ".parquet")


def write_runs(runs: pl.DataFrame, stages: pl.DataFrame, path: str | Path) -> Path:
    """Write the runs so that `read_trace` gives them back; the kind follows from the suffix.

    Raises TraceError: another suffix, more than one run for .json, or a folder that cannot be written to.
    """
    target = Path(path)
    if not target.name.endswith(_RUN_SUFFIXES):
        raise TraceError(
            "runs of chains cannot be written so",
            file=str(target),
            value=target.suffix,
            expected=f"{_RUN_SUFFIXES}",
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
