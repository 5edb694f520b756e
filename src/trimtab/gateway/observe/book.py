"""The counts of a gateway: plain numbers in plain containers.

A row is a list of numbers that its writer keeps a reference to: an event costs an addition, not a look-up.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from trimtab.gateway.observe.families import FAMILIES
from trimtab.gateway.observe.window import SECONDS_KEPT, Second

Row = list[float]
Table = dict[tuple[str, ...], Row]
Use = list[float]  # of a node: slot-seconds used, seconds with any in flight, slot-seconds there were

SPAN_S: Final = 10  # nodes' use is kept in spans of so many seconds
SPANS_KEPT: Final = 6


@dataclass(slots=True)
class Book:
    """Tables by family, the last seconds, and the nodes' use of the last minute."""

    tables: dict[str, Table] = field(default_factory=dict)
    seconds: dict[int, Second] = field(default_factory=dict)  # by second of the clock
    use: dict[int, dict[str, Use]] = field(default_factory=dict)  # by SPAN_S of the clock, then by node

    def table(self, name: str) -> Table:
        """The rows of a family of the catalogue, by their labels' values."""
        if name not in FAMILIES:
            raise KeyError(name)
        return self.tables.setdefault(name, {})

    def row(self, name: str, *labels: str) -> Row:
        """The row with these labels, made of zeros where there is none yet."""
        table = self.table(name)
        found = table.get(labels)
        if found is None:
            found = table[labels] = [0.0] * FAMILIES[name].width
        return found

    def set(self, name: str, value: float, *labels: str) -> None:
        """Write a gauge, or a counter that somebody else counts."""
        self.row(name, *labels)[0] = value

    def forget(self, now_s: float) -> None:
        """Drop the seconds and spans that are too old."""
        for at in [at for at in self.seconds if at <= now_s - SECONDS_KEPT]:
            del self.seconds[at]
        for at in [at for at in self.use if at <= now_s // SPAN_S - SPANS_KEPT]:
            del self.use[at]
