"""Writes request tables to CSV, JSONL (plain or gzip) or Parquet files, atomically."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

import polars as pl

from trimtab.errors import TraceError

_SUFFIXES: Final = (".csv", ".csv.gz", ".jsonl", ".jsonl.gz", ".parquet")


def write_trace(table: pl.DataFrame, path: str | Path) -> Path:
    """Write a request table so that `read_trace` gives it back; the kind follows from the suffix.

    In CSV the prefix blocks are a JSON list. The file appears under its name only when it is complete.

    Raises:
        TraceError: another suffix, or a folder that cannot be written to.
    """
    target = Path(path)
    write = _writer(target)
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


def _writer(target: Path) -> Callable[[pl.DataFrame, Path], None]:
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
