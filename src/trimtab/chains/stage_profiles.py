"""Profiles of stages: what their code spends its time on, over all attempts in all workers."""

from __future__ import annotations

import linecache
import marshal
import pickle
import pstats
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trimtab.errors import MissingExtra, UsageError
from trimtab.live.stage_backend import StageCode
from trimtab.live.stage_profiling import CALLS, LINES

Function = tuple[str, int, str]  # file, first line, name


@dataclass(frozen=True, slots=True)
class LineRow:
    """A line of a profile. `source` is empty where its file is not here."""

    function: str
    file: str
    line: int
    hits: int
    seconds: float
    source: str


class LineProfile:
    """The lines of one stage."""

    def __init__(self) -> None:
        self._found: dict[Function, dict[int, tuple[int, float]]] = {}

    def add(self, unit_s: float, timings: dict[Function, list[tuple[int, int, int]]]) -> None:
        """The lines of an attempt: number, hits, units of time."""
        for function, rows in timings.items():
            lines = self._found.setdefault(function, {})
            for number, hits, units in rows:
                before = lines.get(number, (0, 0.0))
                lines[number] = before[0] + hits, before[1] + units * unit_s

    def rows(self) -> list[LineRow]:
        """All lines that ran, function by function, the function that took longest first."""
        took = {function: sum(s for _, s in lines.values()) for function, lines in self._found.items()}
        return [
            LineRow(name, file, number, *lines[number], linecache.getline(file, number).rstrip())
            for file, first, name in sorted(self._found, key=lambda function: -took[function])
            for lines in (self._found[file, first, name],)
            for number in sorted(lines)
        ]

    def write(self, path: Path) -> None:
        """Write the profile for `python -m line_profiler`. Raises OSError."""
        from line_profiler.line_profiler import LineStats

        timings: dict[Any, Any] = {
            function: [(number, hits, round(1e9 * s)) for number, (hits, s) in sorted(lines.items())]
            for function, lines in self._found.items()
        }
        path.write_bytes(pickle.dumps(LineStats(timings, 1e-9)))


@dataclass(frozen=True, slots=True)
class Profiling:
    """What is profiled: stages, by function or by line."""

    stages: Collection[str] = ()
    by_line: bool = False


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """A function of a profile. Times are seconds over all calls."""

    function: str
    calls: int
    own_s: float
    total_s: float  # with what it calls


class _Collected:
    """Statistics as `pstats` reads them."""

    def __init__(self, stats: dict[Any, Any]) -> None:
        self.stats = stats

    def create_stats(self) -> None:
        """They are there."""


class StageProfiles:
    """The profiles of one session, by the names of stages."""

    def __init__(self) -> None:
        self._found: dict[str, pstats.Stats] = {}
        self._lines: dict[str, LineProfile] = {}
        self.attempts: dict[str, int] = {}

    def add(self, stage: str, profile: bytes) -> None:
        """The profile of an attempt."""
        told = marshal.loads(profile)
        self.attempts[stage] = self.attempts.get(stage, 0) + 1
        if isinstance(told, tuple):
            self._lines.setdefault(stage, LineProfile()).add(*told)
            return
        made = pstats.Stats(_Collected(told))  # type: ignore[arg-type]  # a profiler's two names
        if stage in self._found:
            self._found[stage].add(made)
        else:
            self._found[stage] = made

    def of(self, stage: str) -> pstats.Stats | None:
        """The profile of all attempts at a stage; None = there was none."""
        return self._found.get(stage)

    def write(self, stage: str, path: Path) -> bool:
        """Write a profile for `python -m pstats`, or `python -m line_profiler`. False if there is none."""
        if stage in self._lines:
            self._lines[stage].write(path)
            return True
        found = self._found.get(stage)
        if found is not None:
            found.dump_stats(path)
        return found is not None

    def lines(self, stage: str) -> list[LineRow]:
        """The lines that ran, function by function."""
        return self._lines[stage].rows() if stage in self._lines else []

    def top(self, stage: str, most: int = 15) -> list[ProfileRow]:
        """The functions that take longest, with what they call."""
        found = self._found.get(stage)
        stats: dict[Any, Any] = {} if found is None else found.stats  # type: ignore[attr-defined]
        rows = [
            ProfileRow(_shown(function), calls, own_s, total_s)
            for function, (_, calls, own_s, total_s, _) in stats.items()
        ]
        return sorted(rows, key=lambda row: -row.total_s)[:most]


def _shown(function: tuple[str, int, str]) -> str:
    file, line, name = function
    return name if file == "~" else f"{name} ({'/'.join(Path(file).parts[-2:])}:{line})"


def profiled(codes: Sequence[StageCode], asked: Profiling) -> list[StageCode]:
    """The codes, those of these stages with profiling. A stage is named STAGE or CHAIN/STAGE."""
    if asked.by_line and find_spec("line_profiler") is None:
        expected = "pip install 'trimtab[line-profiles]'"
        raise MissingExtra("profiles by line need line_profiler", expected=expected)
    for stage in asked.stages:
        if not any(_is_named(code, stage) for code in codes):
            known = ", ".join(code.name.partition("/")[2] for code in codes)
            raise UsageError("no such stage", field="profile", value=stage, expected=f"one of {known}")
    kind = LINES if asked.by_line else CALLS
    return [replace(code, profile=kind if _is_asked(code, asked) else "") for code in codes]


def _is_asked(code: StageCode, asked: Profiling) -> bool:
    return any(_is_named(code, stage) for stage in asked.stages)


def _is_named(code: StageCode, stage: str) -> bool:
    return stage in (code.name, code.name.partition("/")[2])
