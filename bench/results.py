"""Results as JSON: per benchmark, with date and machine, so that some can be measured anew."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.figures import Benchmark, Effort, Figure, Skipped, Target
from bench.machine import machine, versions
from trimtab.errors import UsageError


@dataclass(frozen=True, slots=True)
class Result:
    """One benchmark, measured."""

    measured: str  # when it began
    took_s: float
    is_quick: bool
    machine: dict[str, Any]
    versions: dict[str, str]
    figures: tuple[Figure, ...]
    skipped: tuple[Skipped, ...]


def measured(benchmark: Benchmark, effort: Effort) -> Result:
    """Measure a benchmark now."""
    began, begun_s, on = datetime.now(UTC), time.perf_counter(), machine()
    items = list(benchmark.measure(effort))
    return Result(
        measured=began.isoformat(timespec="seconds"),
        took_s=round(time.perf_counter() - begun_s, 1),
        is_quick=effort.is_quick,
        machine=on,
        versions=versions(),
        figures=tuple(item for item in items if isinstance(item, Figure)),
        skipped=tuple(item for item in items if isinstance(item, Skipped)),
    )


def load(path: Path) -> dict[str, Result]:
    """Saved results by name. Raises UsageError where the file can't be read as such."""
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        return {name: _result(entry) for name, entry in saved["benchmarks"].items()}
    except (OSError, ValueError, KeyError, TypeError) as error:
        expected = "a file that `python -m bench` has written"
        raise UsageError(f"no results: {error}", file=str(path), expected=expected) from error


def save(path: Path, results: dict[str, Result]) -> None:
    """Write the file whole or not at all. Raises UsageError where it can't be written."""
    content = {"benchmarks": {name: _entry(result) for name, result in results.items()}}
    write_whole(path, json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def write_whole(path: Path, text: str) -> None:
    """Put the text beside the file, then in its place. Raises UsageError where that can't be done."""
    part = path.with_name(path.name + ".part")
    try:
        part.write_text(text, encoding="utf-8")
        os.replace(part, path)
    except OSError as error:
        problem = f"can't be written: {error.strerror}"
        raise UsageError(problem, file=str(path), expected="a file in a folder that exists") from error


def _entry(result: Result) -> dict[str, Any]:
    figures = [{**asdict(f), "is_met": f.is_met} for f in result.figures]
    return {**asdict(result), "figures": figures}


def _result(entry: dict[str, Any]) -> Result:
    figures = tuple(_figure(f) for f in entry["figures"])
    return Result(**{**entry, "figures": figures, "skipped": tuple(Skipped(**s) for s in entry["skipped"])})


def _figure(entry: dict[str, Any]) -> Figure:
    fields = {name: value for name, value in entry.items() if name != "is_met"}
    return Figure(**{**fields, "target": Target(**entry["target"]) if entry["target"] else None})
