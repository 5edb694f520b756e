"""Copies runs with their values into one file, and back into a journal of either kind.

The file is a ZIP archive: `manifest.json`, `runs/RUN.jsonl` (the run, then a row of a table in each line,
bytes as base64), `memo.jsonl`, and `values/DIGEST`, the bytes of values that the journal names by digest.
"""

from __future__ import annotations

import base64
import json
import zipfile
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Final

from trimtab.chains.recording import values_of
from trimtab.chains.run_progress import digests_in
from trimtab.chains.run_reports import with_journal
from trimtab.errors import UsageError
from trimtab.jobs.run_journal import RunJournal
from trimtab.jobs.run_rows import ACTIVE, MEMO, OF_RUNS, PAGE_ROWS, Row, RunRecord
from trimtab.jobs.value_store import ValueStore
from trimtab.live.stage_backend import digest_of

FORMAT: Final = {"format": "trimtab-runs", "version": 1}
_MANIFEST, _MEMO_FILE = "manifest.json", "memo.jsonl"
_ALL: Final = 1 << 31


@dataclass
class Copied:
    """What was copied."""

    runs: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)  # runs, and why
    values: int = 0
    value_bytes: int = 0
    missing: int = 0  # values that the store has no more: their stages would run again


def backup(
    file: Path, runs: Sequence[str] = (), *, place: str | Path | None = None, values: str | Path = ""
) -> Copied:
    """Copy runs, by default all of them with the results that are kept for equal inputs, into a file."""
    store, copied, part = values_of(place, values), Copied(), file.with_name(f".{file.name}.part")

    async def work(journal: RunJournal) -> None:
        found = [await journal.find(run) for run in runs] or await journal.newest(_ALL)
        with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            archive.writestr(_MANIFEST, json.dumps(FORMAT))
            known: set[str] = set()
            for run in found:
                digests = await _write_rows(archive, f"runs/{run.id}.jsonl", _lines(journal, run))
                _write_values(archive, store, digests - known, copied)
                known |= digests
                copied.runs.append(run.id)
            if not runs:
                digests = await _write_rows(archive, _MEMO_FILE, _rows(journal, MEMO, ""))
                _write_values(archive, store, digests - known, copied)

    try:
        with_journal(place, work)
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)
    return copied


async def _lines(journal: RunJournal, run: RunRecord) -> AsyncIterator[tuple[str, Row]]:
    yield "run", asdict(run)
    for table in OF_RUNS:
        async for line in _rows(journal, table, run.id):
            yield line


async def _rows(journal: RunJournal, table: str, run_id: str) -> AsyncIterator[tuple[str, Row]]:
    first = 0
    while rows := await journal.page(table, run_id, first):
        for row in rows:
            yield table, row
        first += PAGE_ROWS


async def _write_rows(archive: zipfile.ZipFile, name: str, lines: AsyncIterator[tuple[str, Row]]) -> set[str]:
    """Write rows; returns the digests of the values that they name."""
    digests: set[str] = set()
    with archive.open(name, "w", force_zip64=True) as file:
        async for table, row in lines:
            digests.update(digests_in(row["output"]) if "output" in row else ())
            file.write(json.dumps([table, row], default=_as_text).encode() + b"\n")
    return digests


def _as_text(value: Any) -> Any:
    return {"base64": base64.b64encode(bytes(value)).decode()}


def _write_values(archive: zipfile.ZipFile, store: ValueStore, digests: set[str], copied: Copied) -> None:
    for digest in sorted(digests):
        try:
            data = store.get(digest)
        except FileNotFoundError:
            copied.missing += 1
            continue
        archive.writestr(f"values/{digest}", data)
        copied.values, copied.value_bytes = copied.values + 1, copied.value_bytes + len(data)


def restore(file: Path, *, place: str | Path | None = None, values: str | Path = "") -> Copied:
    """Add the runs of a file to a journal; those that are there stay as they are. Raises UsageError."""
    store, copied = values_of(place, values), Copied()

    async def work(journal: RunJournal) -> None:
        with _opened(file) as archive:
            names = archive.namelist()
            _read_values(file, archive, [n for n in names if n.startswith("values/")], store, copied)
            for name in names:
                if name.startswith("runs/"):
                    await _restore_run(journal, _read_lines(archive, name), copied)
            if _MEMO_FILE in names:
                await _add(journal, _read_lines(archive, _MEMO_FILE))

    with_journal(place, work)
    return copied


def _opened(file: Path) -> zipfile.ZipFile:
    expected = "a file of `trimtab chain backup`"
    try:
        archive = zipfile.ZipFile(file)
        told = json.loads(archive.read(_MANIFEST))
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", file=str(file), expected=expected) from error
    except (zipfile.BadZipFile, KeyError, ValueError) as error:
        raise UsageError("not a backup of runs", file=str(file), expected=expected) from error
    if told != FORMAT:
        raise UsageError("a backup of another version", file=str(file), value=told, expected=str(FORMAT))
    return archive


def _read_values(
    file: Path, archive: zipfile.ZipFile, names: Sequence[str], store: ValueStore, copied: Copied
) -> None:
    for name in names:
        digest = name.removeprefix("values/")
        try:
            data = archive.read(name)
        except zipfile.BadZipFile:
            data = b""
        if digest_of(data) != digest:
            raise UsageError("is damaged", file=str(file), field=name, expected="the bytes of its digest")
        store.put(digest, data)
        copied.values, copied.value_bytes = copied.values + 1, copied.value_bytes + len(data)


def _read_lines(archive: zipfile.ZipFile, name: str) -> Iterator[tuple[str, Row]]:
    with archive.open(name) as file:
        for line in file:
            table, row = json.loads(line)
            yield table, {column: _from_text(value) for column, value in row.items()}


def _from_text(value: Any) -> Any:
    return base64.b64decode(value["base64"]) if isinstance(value, dict) else value


async def _restore_run(journal: RunJournal, lines: Iterator[tuple[str, Row]], copied: Copied) -> None:
    run = RunRecord(**next(lines)[1])
    if reason := await journal.refusal_of_copy(run):
        copied.left_out[run.id] = reason
        return
    await _add(journal, lines)
    state = "stopped" if run.state == ACTIVE else run.state  # no process works on it here
    await journal.add_copy(replace(run, state=state, owner="", cancel_requested=False))
    copied.runs.append(run.id)


async def _add(journal: RunJournal, lines: Iterator[tuple[str, Row]]) -> None:
    while some := list(islice(lines, PAGE_ROWS)):
        for table in dict.fromkeys(table for table, _ in some):
            await journal.add_rows(table, [row for name, row in some if name == table])
