"""Files as raw tables: CSV, JSONL, lines of a log (plain or gzip) and Parquet, with every value as text.

What a file is follows from its content, not from its name. Blocks keep the memory flat and give the progress.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Final, Literal, TypeAlias

import polars as pl

from trimtab.errors import TraceError
from trimtab.traces.otel_spans import SPANS, holds_spans
from trimtab.traces.text_logs import TextLog, text_log_of

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all) of the file on disk."""

Skipped = Callable[[int, str, str], None]
"""Called for each line that does not parse and is left out: its row, what is wrong, its text."""

Kind = Literal["csv", "jsonl", "parquet", "log", "frame"]
Bytes: TypeAlias = BinaryIO | gzip.GzipFile | codecs.StreamRecoder

BLOCK_BYTES: Final = 8 << 20
SNIFF_BYTES: Final = 1 << 16
_GZIP_MAGIC: Final = b"\x1f\x8b"
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_PARQUET_MAGIC: Final = b"PAR1"
_DAMAGED: Final = (gzip.BadGzipFile, EOFError, zlib.error)
_UTF8: Final = "utf-8"
UNDECODED: Final = "\ufffd"  # in place of bytes that are no text of the encoding
NO_TEXT: Final = "no text in"
OTHER_ENCODING: Final = "UTF-8, or the file's encoding: --encoding latin-1, `encoding:` of a mapping"
_FRAME: Final = Path("<data frame>")


@dataclass(frozen=True, slots=True)
class TraceSource:
    """A file that was looked at: what it is and which columns it has."""

    path: Path
    kind: Kind
    is_gzip: bool
    columns: tuple[str, ...]
    separator: str = ","
    encoding: str = _UTF8
    log: TextLog | None = None  # of kind log: how its lines are read
    frame: pl.DataFrame | None = None  # of kind frame

    def place(self, row_idx: int) -> str:
        """Where a row (from 0) stands in the file; in a CSV the header is line 1."""
        if self.kind in ("parquet", "frame"):
            return f"row {row_idx + 1}"
        if self.log is not None:
            return f"{self.log.row} {row_idx + 1}"
        return f"line {row_idx + (2 if self.kind == 'csv' else 1)}"


@dataclass(frozen=True, slots=True)
class RawBlock:
    """Consecutive rows of a file: the raw table and the index of its first row."""

    table: pl.DataFrame
    first_row_idx: int


def look_at(path: Path, encoding: str = _UTF8, separator: str | None = None) -> TraceSource:
    """Find out what a file is; `separator` is that of CSV columns, None: as the first line has it.

    Raises:
        TraceError: it cannot be opened, is empty, or is none of the known kinds.
    """
    _refuse_unknown_encoding(encoding)
    with _readable(path):
        with path.open("rb") as stream:
            magic = stream.read(4)
        if magic == _PARQUET_MAGIC:
            return TraceSource(path, "parquet", False, tuple(pl.read_parquet_schema(path)))
        is_gzip = magic.startswith(_GZIP_MAGIC)
        with path.open("rb") as raw, _unpacked(raw, is_gzip, encoding) as text:
            found = _look_at_text(path, is_gzip, text.read(SNIFF_BYTES) + text.readline(), separator)
            return replace(found, encoding=encoding)


def look_at_frame(frame: pl.DataFrame) -> TraceSource:
    """A table in memory as a source. Raises TraceError if it is empty."""
    if frame.is_empty():
        raise TraceError("the table is empty", file=str(_FRAME), expected="at least one row")
    return TraceSource(_FRAME, "frame", False, tuple(frame.columns), frame=frame)


def _refuse_unknown_encoding(encoding: str) -> None:
    try:
        codecs.lookup(encoding)
    except LookupError as error:
        expected = "a name such as utf-8, latin-1, cp1252 or utf-16"
        raise TraceError("no such encoding", field="encoding", value=encoding, expected=expected) from error


def read_blocks(
    source: TraceSource, progress: Progress | None = None, skipped: Skipped | None = None
) -> Iterator[RawBlock]:
    """The rows of a file in order, all columns; text columns throughout for CSV and JSONL.

    With `skipped`, lines that do not parse become rows without values.

    Raises:
        TraceError: a line that does not parse, or a damaged file.
    """
    report = progress or (lambda done, total: None)
    if source.frame is not None:
        yield RawBlock(source.frame, 0)
        return
    with _readable(source.path):
        if source.kind == "parquet":
            yield from _parquet_blocks(source, report)
        else:
            yield from _text_blocks(source, report, skipped)


def _look_at_text(path: Path, is_gzip: bool, head: bytes, given: str | None) -> TraceSource:
    if b"\0" in head:
        raise TraceError(
            "binary file", file=str(path), expected="CSV, JSONL or Parquet; .gz of the first two"
        )
    lines = head.decode("utf-8-sig", errors="replace").splitlines()
    if not any(line.strip() for line in lines):
        raise TraceError("the file is empty", file=str(path), expected="a trace with at least one request")
    if lines[0].startswith("{"):
        keys = _keys(path, lines)
        if holds_spans(keys):
            return TraceSource(path, "log", is_gzip, SPANS.columns, log=SPANS)
        return TraceSource(path, "jsonl", is_gzip, keys)
    if given is None and (log := text_log_of(lines)) is not None:
        return TraceSource(path, "log", is_gzip, log.columns, log=log)
    separator = given or max(",;\t|", key=lines[0].count)
    return TraceSource(path, "csv", is_gzip, _header(path, lines[0], separator), separator)


def _header(path: Path, line: str, separator: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in next(csv.reader([line], delimiter=separator)))
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise TraceError("two columns have the same name", file=str(path), field="line 1", value=twice)
    return names


def _keys(path: Path, lines: list[str]) -> tuple[str, ...]:
    """Keys of the first lines, in order of appearance; a later line may leave some out, or be damaged."""
    keys = dict.fromkeys(_json_object(path, lines[0], 1))
    for line in filter(str.strip, lines[1:]):
        try:
            keys |= dict.fromkeys(_json_object(path, line, 0))
        except TraceError:  # reading tells its line
            continue
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


def _text_blocks(source: TraceSource, report: Progress, skipped: Skipped | None) -> Iterator[RawBlock]:
    row_idx, total = 0, source.path.stat().st_size
    with source.path.open("rb") as raw, _unpacked(raw, source.is_gzip, source.encoding) as stream:
        _skip_head(stream, source.kind)
        while block := _whole_records(stream, source):
            table = _parsed_block(source, block, row_idx, skipped)
            yield RawBlock(table, row_idx)
            row_idx += table.height
            report(min(raw.tell(), total), total)


@contextmanager
def _unpacked(raw: BinaryIO, is_gzip: bool, encoding: str) -> Iterator[Bytes]:
    """The file's text as UTF-8."""
    if not is_gzip:
        yield _recoded(raw, encoding)
        return
    with gzip.GzipFile(fileobj=raw) as stream:
        yield _recoded(stream, encoding)


def _recoded(stream: BinaryIO | gzip.GzipFile, encoding: str) -> Bytes:
    if codecs.lookup(encoding).name == _UTF8:
        return stream
    return codecs.EncodedFile(stream, _UTF8, encoding)


def _skip_head(stream: Bytes, kind: Kind) -> None:
    if kind == "csv":
        stream.readline()
    elif stream.read(len(_BYTE_ORDER_MARK)) != _BYTE_ORDER_MARK:
        stream.seek(0)


def _whole_records(stream: Bytes, source: TraceSource) -> bytes:
    """The next block, cut where a record ends: at a line end outside quotes."""
    if source.log is not None and source.log.is_whole:
        return stream.read()
    block = stream.read(BLOCK_BYTES)
    block += stream.readline()
    while source.kind == "csv" and block.count(b'"') % 2 and (more := stream.readline()):
        block += more
    return block


def _parse_block(source: TraceSource, block: bytes, row_idx: int) -> pl.DataFrame:
    names = list(source.columns)
    try:
        if source.log is not None:
            return source.log.parse(block.decode(_UTF8, errors="replace"))
        if source.kind == "jsonl":
            return pl.read_ndjson(block, schema=dict.fromkeys(names, pl.String()))
        # A header of our own in front of every block fixes the width, whatever its first row looks like.
        header = source.separator.join(f"c{idx}" for idx in range(len(names))).encode() + b"\n"
        return pl.read_csv(header + block, new_columns=names, infer_schema=False, separator=source.separator)
    except pl.exceptions.PolarsError as error:
        raise _bad_line(source, block, row_idx, error) from error


def _parsed_block(source: TraceSource, block: bytes, row_idx: int, skipped: Skipped | None) -> pl.DataFrame:
    try:
        return _parse_block(source, block, row_idx)
    except TraceError:
        if skipped is None:
            raise
    return _parse_block(source, _mended(source, block, row_idx, skipped), row_idx)


def _mended(source: TraceSource, block: bytes, row_idx: int, skipped: Skipped) -> bytes:
    """The block with an empty row in place of each line that does not parse."""
    lines = block.decode(_UTF8, errors="replace").splitlines(keepends=True)
    empty = "{}\n" if source.kind == "jsonl" else "\n"
    for idx, line in enumerate(lines):
        problem = _problem(source, line)
        if problem is not None:
            skipped(row_idx + idx, problem, line.strip())
            lines[idx] = empty
    return "".join(lines).encode()


def _problem(source: TraceSource, line: str) -> str | None:
    """What keeps a line from being read; None where nothing does."""
    if UNDECODED in line:
        return f"{NO_TEXT} {source.encoding}"
    if source.kind == "csv":
        wide = len(next(csv.reader([line], delimiter=source.separator), [])) > len(source.columns)
        return "too many fields" if wide else None
    try:
        return None if not line.strip() or isinstance(json.loads(line), dict) else "no JSON object"
    except ValueError:
        return "no JSON object"


def _bad_line(source: TraceSource, block: bytes, row_idx: int, error: Exception) -> TraceError:
    """The error of the first line of a block that does not parse; looked for only when one did not."""
    if (undecoded := _not_utf8(source, block, row_idx)) is not None:
        return undecoded
    text = block.decode(_UTF8)
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


def _not_utf8(source: TraceSource, block: bytes, row_idx: int) -> TraceError | None:
    try:
        block.decode(_UTF8)
    except UnicodeDecodeError as error:
        line = block[: error.start].count(b"\n")
        begin = block.rfind(b"\n", 0, error.start) + 1
        shown = block[begin : begin + 80].split(b"\n", 1)[0].decode("latin-1")
        return TraceError(
            "no UTF-8 text",
            file=str(source.path),
            field=source.place(row_idx + line),
            value=shown,
            expected=OTHER_ENCODING,
        )
    return None


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
