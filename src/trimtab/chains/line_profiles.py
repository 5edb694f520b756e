"""Line profiles of a stage: hits and seconds of each line, over all attempts in all workers."""

from __future__ import annotations

import linecache
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
