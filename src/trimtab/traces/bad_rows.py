"""Rows that cannot be used as they are: what becomes of them, counted, with the first lines of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal

import polars as pl

OnBadRow = Literal["error", "drop", "fill"]
Action = Literal["dropped", "filled"]

NAMED: Final = 3  # first lines of a reason


@dataclass(frozen=True, slots=True)
class Repair:
    """The treatment of bad rows of one reason: `places` are the first of them, `example` the first value."""

    action: Action
    reason: str
    rows: int
    places: tuple[str, ...]
    example: str | None

    def in_words(self) -> str:
        """One line for people."""
        value = "" if self.example is None else f" ({self.example!r})"
        more = ", …" if self.rows > len(self.places) else ""
        unit = "row" if self.rows == 1 else "rows"
        return f"{self.action} {self.rows:,} {unit}: {self.reason}{value}, {', '.join(self.places)}{more}"


@dataclass(slots=True)
class _Count:
    rows: int = 0
    places: list[str] = field(default_factory=list)
    example: str | None = None


class Repairs:
    """Collects repairs while a file is read; `place` tells where a row stands."""

    def __init__(self, place: Callable[[int], str]) -> None:
        self._place = place
        self._counts: dict[tuple[Action, str], _Count] = {}

    def add(self, action: Action, reason: str, row_idxs: pl.Series, example: object = None) -> None:
        """Count rows, given by their positions in the file."""
        if not len(row_idxs):
            return
        count = self._counts.setdefault((action, reason), _Count())
        if not count.rows and example is not None:
            count.example = str(example)[:60]
        count.rows += len(row_idxs)
        missing = NAMED - len(count.places)
        count.places += [self._place(row) for row in row_idxs.head(missing)] if missing > 0 else []

    def all(self) -> tuple[Repair, ...]:
        """In the order in which they were found."""
        return tuple(
            Repair(action, reason, count.rows, tuple(count.places), count.example)
            for (action, reason), count in self._counts.items()
        )
