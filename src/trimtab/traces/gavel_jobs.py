"""Reads job lists and tables of speed in the format of Gavel's and Shockwave's simulators.

Lists are tab-separated without header: job type such as `LM (batch size 10)`, command, folder, argument,
flag, steps, GPUs, mode, priority, SLO, duration, arrival; lists of Gavel itself lack mode and duration.
Tables of speed are JSON: GPU type → "('job type', GPUs)" → "null" (alone) or another key → steps per second.
"""

from __future__ import annotations

import ast
import csv
import gzip
import json
import math
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np

from trimtab.domain.training_jobs import Ints
from trimtab.errors import TraceError

_TYPE: Final = re.compile(r"^(?P<model>[^()]+?)(?: \(batch size (?P<batch>\d+)\))?$")
_FIELDS: Final = (10, 11, 12)
MODES: Final = ("static", "accordion", "gns")  # how the batch of a job changes
_SCHEDULE: Final = ("file", "job", "job_type", "mode", "gpus", "batch_by_epoch")
_LONGEST_LINE: Final = 1 << 16
Key = tuple[str, int, int]  # model, batch, GPUs
Rates = dict[Key, float]
PairRates = dict[tuple[Key, Key], float]


@dataclass(frozen=True, slots=True)
class GavelJob:
    """One line of a list."""

    job_type: str
    model: str
    batch: int  # 0 = the type names none
    steps: int
    gpus: int
    mode: str  # one of MODES
    priority: float
    arrival_s: float
    duration_s: float = math.nan  # nan = the list does not say


def is_gavel_list(path: str | Path) -> bool:
    """Whether a file is such a list: its first line has the fields of a job, and no header."""
    try:
        with Path(path).open("rb") as raw, _unpacked(raw) as stream:
            fields = stream.readline(_LONGEST_LINE).decode("utf-8", errors="replace").rstrip().split("\t")
    except (OSError, EOFError, zlib.error):
        return False
    return len(fields) in _FIELDS and bool(_TYPE.match(fields[0])) and fields[5].strip().isdigit()


def read_gavel_jobs(path: str | Path) -> list[GavelJob]:
    """The jobs of a list. Raises TraceError that names line and field."""
    lines = [line.split("\t") for line in _text(Path(path)).splitlines() if line.strip()]
    return [_job(str(path), number, fields) for number, fields in enumerate(lines, 1)]


def read_gavel_rates(path: str | Path, gpu_type: str) -> Rates:
    """Steps per second of jobs alone on this type of GPU: (model, batch, GPUs) → rate."""
    found: Rates = {}
    for text, partners in _table_of(path, gpu_type).items():
        try:
            found[_key(str(path), text)] = _rate(partners["null"])
        except (KeyError, TypeError, ValueError):
            field = f"{gpu_type}, {text}, null"
            expected = "steps per second of the job alone"
            raise TraceError("no number", file=str(path), field=field, expected=expected) from None
    return found


def read_gavel_pairs(path: str | Path, gpu_type: str) -> PairRates:
    """Steps per second of a job beside another on the same GPUs: (its key, key of the other) → rate.

    0 says that the two can't share a GPU.
    """
    found: PairRates = {}
    table = _table_of(path, gpu_type)
    keys = {text: _key(str(path), text) for text in table}
    for text, partners in table.items():
        for other, rates in partners.items():
            if other != "null":
                try:
                    found[keys[text], keys[other]] = _rate(rates[0])
                except (IndexError, KeyError, TypeError, ValueError):
                    field = f"{gpu_type}, {text}, {other}"
                    expected = "[own, partner's] steps per second, of two that are measured alone too"
                    raise TraceError("no pair", file=str(path), field=field, expected=expected) from None
    return found


def _rate(value: Any) -> float:
    rate = float(value)
    if not 0.0 <= rate < math.inf:
        raise ValueError("no rate")
    return rate


def _table_of(path: str | Path, gpu_type: str) -> Mapping[str, Any]:
    tables = _tables(Path(path))
    if gpu_type not in tables:
        raise TraceError("no such type of GPU", file=str(path), value=gpu_type, expected=", ".join(tables))
    table: Mapping[str, Any] = tables[gpu_type]
    return table


def gavel_gpu_types(path: str | Path) -> tuple[str, ...]:
    """Types of GPU that a table of speeds has."""
    return tuple(_tables(Path(path)))


def _tables(path: Path) -> Mapping[str, Any]:
    try:
        tables = json.loads(_text(path))
    except ValueError:
        tables = None
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        expected = 'JSON: GPU type → "(\'job type\', GPUs)" → "null" → steps per second'
        raise TraceError("no table of speeds", file=str(path), expected=expected)
    return tables


def _key(file: str, text: str) -> Key:
    """Model, batch and GPUs of a key; a bare job type has one GPU."""
    if not text.startswith("("):
        return *_model_of(file, text, text), 1
    try:
        job_type, gpus = ast.literal_eval(text)
        return *_model_of(file, text, str(job_type)), int(gpus)
    except (SyntaxError, ValueError, TypeError):
        expected = "\"('job type', GPUs)\""
        raise TraceError("no key of a table of speeds", file=file, field=text, expected=expected) from None


def read_batch_schedules(path: str | Path, jobs_file: str) -> dict[int, Ints]:
    """Line of a list, from 0 → batch of each epoch, from a table such as `32x28 256x64`."""
    rows = _schedule_rows(Path(path))
    return {
        int(_field(str(path), line, row["job"], "job", int)): _epochs(path, line, row["batch_by_epoch"])
        for line, row in rows
        if row["file"] == jobs_file
    }


def read_noise_patterns(path: str | Path) -> dict[tuple[str, int], Ints]:
    """(job type, GPUs) → batch by epoch of jobs whose batch follows the noise, the longest of all lists.

    The last epoch of a row is left out: the published program sets it back to the first batch.
    """
    found: dict[tuple[str, int], Ints] = {}
    for line, row in _schedule_rows(Path(path)):
        if row["mode"] == "gns":
            plan = _epochs(path, line, row["batch_by_epoch"])[:-1]
            key = row["job_type"], int(_field(str(path), line, row["gpus"], "gpus", int))
            if len(plan) > len(found.get(key, ())):
                found[key] = plan
    return found


def read_samples(path: str | Path) -> dict[str, int]:
    """Samples of an epoch by model."""
    try:
        return {name: int(n) for name, n in json.loads(_text(Path(path)))["samples_per_epoch"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        expected = 'JSON: {"samples_per_epoch": {model: whole number, …}}'
        raise TraceError("no samples of epochs", file=str(path), expected=expected) from None


def _schedule_rows(path: Path) -> list[tuple[int, dict[str, str]]]:
    """Line and row of each schedule."""
    rows = csv.DictReader(_text(path).splitlines())
    missing = [name for name in _SCHEDULE if name not in (rows.fieldnames or ())]
    if missing:
        expected = f"columns {', '.join(_SCHEDULE)}"
        raise TraceError("no schedules of batches", file=str(path), field=missing[0], expected=expected)
    return list(enumerate(rows, 2))


def _text(path: Path) -> str:
    try:
        with path.open("rb") as raw, _unpacked(raw) as stream:
            return stream.read().decode("utf-8")
    except (OSError, EOFError, zlib.error):
        raise TraceError("can't be read", file=str(path), expected="an existing file, whole") from None


def _unpacked(raw: BinaryIO) -> BinaryIO | gzip.GzipFile:
    is_gzip = raw.read(2) == b"\x1f\x8b"
    raw.seek(0)
    return gzip.GzipFile(fileobj=raw) if is_gzip else raw


def _epochs(path: str | Path, line: int, text: str) -> Ints:
    parts = [part.partition("x") for part in text.split()]
    if not parts or not all(batch.isdigit() and count.isdigit() for batch, _, count in parts):
        field = f"line {line}, batch_by_epoch"
        expected = "BATCHxEPOCHS with spaces between, such as 32x28 256x64"
        raise TraceError("no schedule", file=str(path), field=field, value=text, expected=expected)
    return np.repeat([int(batch) for batch, _, _ in parts], [int(count) for _, _, count in parts])


def _model_of(file: str, field: str, job_type: str) -> tuple[str, int]:
    match = _TYPE.match(job_type)
    if match is None:
        expected = "a type such as ResNet-18 (batch size 32)"
        raise TraceError("no job type", file=file, field=field, value=job_type, expected=expected)
    return match["model"], int(match["batch"] or 0)


def _job(file: str, number: int, fields: list[str]) -> GavelJob:
    if len(fields) not in _FIELDS:
        expected = "12 fields with tabs between them, or Gavel's 10 or 11"
        raise TraceError(
            "wrong number of fields", file=file, field=f"line {number}", value=len(fields), expected=expected
        )
    model, batch = _model_of(file, f"line {number}, job type", fields[0])
    has_mode = len(fields) == 12

    def whole(at: int, name: str) -> int:
        return int(_field(file, number, fields[at], name, int))

    def real(at: int, name: str) -> float:
        return float(_field(file, number, fields[at], name, float))

    return GavelJob(
        fields[0],
        model,
        batch,
        steps=whole(5, "total steps"),
        gpus=whole(6, "GPUs"),
        mode=fields[7] if has_mode else "static",
        priority=real(8 if has_mode else 7, "priority"),
        arrival_s=real(-1, "arrival"),
        duration_s=real(-2, "duration") if has_mode else math.nan,
    )


def _field(file: str, number: int, text: str, name: str, kind: type[int] | type[float]) -> float:
    try:
        value = kind(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        expected = "a whole number" if kind is int else "a finite number"
        field = f"line {number}, {name}"
        raise TraceError("no number", file=file, field=field, value=text, expected=expected)
    return value
