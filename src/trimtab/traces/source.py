"""Files as raw tables: CSV, JSONL, lines of a log (plain or gzip) and Parquet, with every value as text.

What a file is follows from its content, not from its name. Blocks keep the memory flat and give the progress.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import json
import re
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Final, Literal, TypeAlias

import polars as pl

from trimtab.errors import TraceError
from trimtab.traces.json_lines import keys_of, refuse_whole_json, rows_key
from trimtab.traces.otel_spans import SPANS, holds_spans
from trimtab.traces.text_log import TextLog
from trimtab.traces.text_logs import text_log_of

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
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
NO_TEXT: Final = "no UTF-8 text"
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
    nested: tuple[str, ...] = ()  # columns of a JSONL file that are paths into objects
    rows_key: str | None = None  # of a file of one JSON object: where it has a list of objects

    def narrowed(self, used: Collection[str]) -> TraceSource:
        """Without the paths into objects that are not used."""
        nested = tuple(path for path in self.nested if path in used)
        columns = tuple(name for name in self.columns if name not in self.nested or name in nested)
        return replace(self, columns=columns, nested=nested)

    def place(self, row_idx: int) -> str:
        """Where a row (from 0) stands in the file; in a CSV the header is line 1."""
        if self.kind in ("parquet", "frame"):
            return f"row {row_idx + 1}"
        if self.log is not None:
            return f"{self.log.row} {row_idx + 1}"
        return f"line {_line_of(self, row_idx) if self.kind == 'csv' else row_idx + 1}"


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
    refuse_whole_json(path, lines)
    if lines[0].startswith("{"):
        keys, nested = keys_of(path, lines)
        if holds_spans(keys):
            return TraceSource(path, "log", is_gzip, SPANS.columns, log=SPANS)
        is_one = not any(map(str.strip, lines[1:]))
        wrapped = rows_key(lines[0]) if is_one else None
        return TraceSource(path, "jsonl", is_gzip, (*keys, *nested), nested=nested, rows_key=wrapped)
    if given is None and (log := text_log_of(path, lines)) is not None:
        return TraceSource(path, "log", is_gzip, log.columns, log=log)
    separator = given or max(",;\t|", key=lines[0].count)
    return TraceSource(path, "csv", is_gzip, _header(path, lines[0], separator), separator)


def _header(path: Path, line: str, separator: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in next(csv.reader([line], delimiter=separator)))
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise TraceError("two columns have the same name", file=str(path), field="line 1", value=twice)
    return names


def _with_nested(source: TraceSource, table: pl.DataFrame) -> pl.DataFrame:
    """With the values at the paths of nested objects, which read as text."""
    ways = ((path, *path.split(".")) for path in source.nested)
    return table.with_columns(
        pl.col(key).str.json_path_match(f"$.{'.'.join(rest)}").alias(path) for path, key, *rest in ways
    ).select(source.columns)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except _DAMAGED as error:
        raise TraceError(f"damaged gzip file ({error})", file=str(path)) from error
    except UnicodeError as error:
        raise TraceError(
            f"no text in this encoding ({error})",
            file=str(path),
            field="encoding",
            expected="that of the file, such as utf-8, latin-1 or cp1252",
        ) from error
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
            flat = [name for name in names if name not in source.nested]
            return _with_nested(source, pl.read_ndjson(block, schema=dict.fromkeys(flat, pl.String())))
        # A header of our own in front of every block fixes the width, whatever its first row looks like.
        header = source.separator.join(f"c{idx}" for idx in range(len(names))).encode() + b"\n"
        return pl.read_csv(header + block, new_columns=names, infer_schema=False, separator=source.separator)
    except pl.exceptions.PolarsError as error:
        raise _bad_record(source, block, row_idx, error) from error


def _parsed_block(source: TraceSource, block: bytes, row_idx: int, skipped: Skipped | None) -> pl.DataFrame:
    try:
        return _parse_block(source, block, row_idx)
    except TraceError:
        if skipped is None:
            raise
    return _parse_block(source, _mended(source, block, row_idx, skipped), row_idx)


def _mended(source: TraceSource, block: bytes, row_idx: int, skipped: Skipped) -> bytes:
    """The block with an empty row in place of each record that does not parse."""
    records = list(_records(source, block))
    empty = "{}\n" if source.kind == "jsonl" else "\n"
    for idx, record in enumerate(records):
        problem = _problem(source, record)
        if problem is not None:
            skipped(row_idx + idx, problem, _shown(record))
            records[idx] = empty
    return "".join(records).encode()


def _records(source: TraceSource, block: bytes) -> Iterator[str]:
    """The lines of a block; of a CSV file those that a quoted field spans as one.

    A quote that does not begin or end a field spans no lines. Bytes that are no UTF-8 become lone surrogates.
    """
    lines = list(io.StringIO(block.decode(_UTF8, errors="surrogateescape"), newline="\n"))
    begin = 0
    while begin < len(lines):
        end, quotes = begin + 1, lines[begin].count('"') if source.kind == "csv" else 0
        while quotes % 2 and end < len(lines):
            quotes += lines[end].count('"')
            end += 1
        record = "".join(lines[begin:end])
        is_torn = end > begin + 1 and '"' in _without_quoted(source, record)
        yield lines[begin] if is_torn else record
        begin = begin + 1 if is_torn else end


def _without_quoted(source: TraceSource, record: str) -> str:
    """A record of a CSV file without its fields in quotes, what separates them left."""
    mark = re.escape(source.separator)
    return re.sub(rf'(?:^|(?<={mark}))"(?:[^"]|"")*"(?={mark}|\s*$)', "", record)


def _problem(source: TraceSource, record: str) -> str | None:
    """The fault that keeps a record from being read; None where there is none."""
    if not record.isascii() and _SURROGATE.search(record):
        return NO_TEXT
    if source.kind == "csv":
        bare = _without_quoted(source, record)
        is_wide = bare.count(source.separator) >= len(source.columns)
        return 'a quote (") inside a field' if '"' in bare else "too many fields" if is_wide else None
    try:
        return None if not record.strip() or isinstance(json.loads(record), dict) else "no JSON object"
    except ValueError:
        return "no JSON object"


def _expected(source: TraceSource, problem: str) -> str:
    if problem == NO_TEXT:
        return OTHER_ENCODING
    if source.kind == "jsonl":
        return "one object a line"
    if problem == "too many fields":
        return f"{len(source.columns)} fields, as in the header"
    return 'quotes around whole fields, those inside doubled: "a ""word"""'


def _shown(record: str) -> str:
    """The beginning of a record; one with bytes that are no text as if it were Latin-1."""
    shown = record[:80].strip()
    is_text = _SURROGATE.search(shown) is None
    return shown if is_text else shown.encode(_UTF8, "surrogateescape").decode("latin-1")


def _bad_record(source: TraceSource, block: bytes, row_idx: int, error: Exception) -> TraceError:
    """The error of the first record of a block that does not parse; looked for only when one did not."""
    for idx, record in enumerate(_records(source, block)):
        if (problem := _problem(source, record)) is not None:
            return TraceError(
                problem,
                file=str(source.path),
                field=source.place(row_idx + idx),
                value=_shown(record),
                expected=_expected(source, problem),
            )
    return TraceError(f"cannot be read: {_first_line(error)}", file=str(source.path))


def _line_of(source: TraceSource, row_idx: int) -> int:
    """The line, from 1, on which a row of a CSV file begins: quoted fields may span several."""
    row, number = 0, 2
    with source.path.open("rb") as raw, _unpacked(raw, source.is_gzip, source.encoding) as stream:
        _skip_head(stream, source.kind)
        while block := _whole_records(stream, source):
            lines = block.count(b"\n")
            if b'"' not in block and row + lines <= row_idx:  # each line is a row
                row, number = row + lines, number + lines
                continue
            for record in _records(source, block):
                if row == row_idx:
                    return number
                row, number = row + 1, number + record.count("\n")
    return number


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0]
