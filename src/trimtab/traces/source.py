"""Files as raw tables: CSV, JSONL (plain or gzip) and Parquet, read in blocks, with every value as text.

What a file is follows from its content, not from its name. Blocks keep the memory flat and give the progress.
"""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, Literal, TypeAlias

import polars as pl

from trimtab.errors import TraceError

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all) of the file on disk."""

Kind = Literal["csv", "jsonl", "parquet"]
Bytes: TypeAlias = BinaryIO | gzip.GzipFile

BLOCK_BYTES: Final = 8 << 20
SNIFF_BYTES: Final = 1 << 16
_GZIP_MAGIC: Final = b"\x1f\x8b"
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_PARQUET_MAGIC: Final = b"PAR1"
_DAMAGED: Final = (gzip.BadGzipFile, EOFError, zlib.error)


@dataclass(frozen=True, slots=True)
class TraceSource:
    """A file that was looked at: what it is and which columns it has."""

    path: Path
    kind: Kind
    is_gzip: bool
    columns: tuple[str, ...]
    separator: str = ","

    def place(self, row_idx: int) -> str:
        """Where a row (from 0) stands in the file; in a CSV the header is line 1."""
        if self.kind == "parquet":
            return f"row {row_idx + 1}"
        return f"line {row_idx + (2 if self.kind == 'csv' else 1)}"


@dataclass(frozen=True, slots=True)
class RawBlock:
    """Consecutive rows of a file: the raw table and the index of its first row."""

    table: pl.DataFrame
    first_row_idx: int


def look_at(path: Path) -> TraceSource:
    """Find out what a file is.

    Raises:
        TraceError: it cannot be opened, is empty, or is none of the known kinds.
    """
    with _readable(path):
        with path.open("rb") as stream:
            magic = stream.read(4)
        if magic == _PARQUET_MAGIC:
            return TraceSource(path, "parquet", False, tuple(pl.read_parquet_schema(path)))
        is_gzip = magic.startswith(_GZIP_MAGIC)
        with path.open("rb") as raw, _unpacked(raw, is_gzip) as text:
            return _look_at_text(path, is_gzip, text.read(SNIFF_BYTES) + text.readline())


def read_blocks(source: TraceSource, progress: Progress | None = None) -> Iterator[RawBlock]:
    """The rows of a file in order, all columns; text columns throughout for CSV and JSONL.

    Raises:
        TraceError: a line that does not parse, or a damaged file.
    """
    report = progress or (lambda done, total: None)
    with _readable(source.path):
        if source.kind == "parquet":
            yield from _parquet_blocks(source, report)
        else:
            yield from _text_blocks(source, report)


def _look_at_text(path: Path, is_gzip: bool, head: bytes) -> TraceSource:
    if b"\0" in head:
        raise TraceError(
            "binary file", file=str(path), expected="CSV, JSONL or Parquet; .gz of the first two"
        )
    lines = head.decode("utf-8-sig", errors="ignore").splitlines()
    if not any(line.strip() for line in lines):
        raise TraceError("the file is empty", file=str(path), expected="a trace with at least one request")
    if lines[0].startswith("{"):
        return TraceSource(path, "jsonl", is_gzip, _keys(path, lines))
    separator = max(",;\t", key=lines[0].count)
    return TraceSource(path, "csv", is_gzip, _header(path, lines[0], separator), separator)


def _header(path: Path, line: str, separator: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in next(csv.reader([line], delimiter=separator)))
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise TraceError("two columns have the same name", file=str(path), field="line 1", value=twice)
    return names


def _keys(path: Path, lines: list[str]) -> tuple[str, ...]:
    """Keys of the first lines, in order of appearance; a later line may leave some out."""
    keys: dict[str, None] = {}
    for number, line in enumerate(lines, 1):
        if line.strip():
            keys |= dict.fromkeys(_json_object(path, line, number))
    return tuple(keys)


def _json_object(path: Path, line: str, number: int) -> dict[str, object]:
    try:
        value = json.loads(line)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise TraceError(
            "no JSON object",
            file=str(path),
            field=f"line {number}",
            value=line[:80],
            expected="one object a line",
        )
    return value


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except _DAMAGED as error:
        raise TraceError(f"damaged gzip file ({error})", file=str(path)) from error
    except OSError as error:
        raise TraceError(f"cannot be read: {error.strerror or error}", file=str(path)) from error
    except pl.exceptions.PolarsError as error:
        raise TraceError(f"cannot be read: {_first_line(error)}", file=str(path)) from error


def _parquet_blocks(source: TraceSource, report: Progress) -> Iterator[RawBlock]:
    size_bytes = source.path.stat().st_size
    yield RawBlock(pl.read_parquet(source.path), 0)
    report(size_bytes, size_bytes)


def _text_blocks(source: TraceSource, report: Progress) -> Iterator[RawBlock]:
    row_idx, total = 0, source.path.stat().st_size
    with source.path.open("rb") as raw, _unpacked(raw, source.is_gzip) as stream:
        _skip_head(stream, source.kind)
        while block := _whole_records(stream, source.kind):
            table = _parse_block(source, block, row_idx)
            yield RawBlock(table, row_idx)
            row_idx += table.height
            report(min(raw.tell(), total), total)


@contextmanager
def _unpacked(raw: BinaryIO, is_gzip: bool) -> Iterator[Bytes]:
    if not is_gzip:
        yield raw
        return
    with gzip.GzipFile(fileobj=raw) as stream:
        yield stream


def _skip_head(stream: Bytes, kind: Kind) -> None:
    if kind == "csv":
        stream.readline()
    elif stream.read(len(_BYTE_ORDER_MARK)) != _BYTE_ORDER_MARK:
        stream.seek(0)


def _whole_records(stream: Bytes, kind: Kind) -> bytes:
    """The next block, cut where a record ends: at a line end outside quotes."""
    block = stream.read(BLOCK_BYTES)
    block += stream.readline()
    while kind == "csv" and block.count(b'"') % 2 and (more := stream.readline()):
        block += more
    return block


def _parse_block(source: TraceSource, block: bytes, row_idx: int) -> pl.DataFrame:
    names = list(source.columns)
    try:
        if source.kind == "jsonl":
            return pl.read_ndjson(block, schema=dict.fromkeys(names, pl.String()))
        # A header of our own in front of every block fixes the width, whatever its first row looks like.
        header = source.separator.join(f"c{idx}" for idx in range(len(names))).encode() + b"\n"
        return pl.read_csv(header + block, new_columns=names, infer_schema=False, separator=source.separator)
    except pl.exceptions.PolarsError as error:
        raise _bad_line(source, block, row_idx, error) from error


def _bad_line(source: TraceSource, block: bytes, row_idx: int, error: Exception) -> TraceError:
    """The error of the first line of a block that does not parse; looked for only when one did not."""
    text = block.decode("utf-8", errors="replace")
    if source.kind == "jsonl":
        for idx, line in enumerate(text.splitlines()):
            if line.strip():
                _json_object(source.path, line, row_idx + idx + 1)
        return TraceError(f"cannot be read: {_first_line(error)}", file=str(source.path))
    width = len(source.columns)
    for idx, record in enumerate(csv.reader(text.splitlines(keepends=True), delimiter=source.separator)):
        if len(record) > width:
            return _too_wide(source, row_idx + idx, record, width)
    return TraceError(f"cannot be read: {_first_line(error)}", file=str(source.path))


def _too_wide(source: TraceSource, row_idx: int, record: list[str], width: int) -> TraceError:
    return TraceError(
        "too many fields",
        file=str(source.path),
        field=source.place(row_idx),
        value=source.separator.join(record)[:80],
        expected=f"{width} fields, as in the header",
    )


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0]
