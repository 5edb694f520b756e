"""The counts of one process, or of several together: plain numbers in plain containers.

A row is a list of numbers that its writer keeps a reference to: an event costs an addition, not a look-up.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from trimtab.gateway.observe.families import FAMILIES, Family, Merge
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

    def merge(self, other: Book) -> None:
        """Take in the counts of another process."""
        for name, table in other.tables.items():
            for labels, row in table.items():
                _merge_row(FAMILIES[name], self.table(name), labels, row)
        for at, second in other.seconds.items():
            self.seconds.setdefault(at, Second()).add(second)
        for at, nodes in other.use.items():
            _merge_use(self.use.setdefault(at, {}), nodes)

    def to_bytes(self) -> bytes:
        """The whole book, to be sent to another process."""
        return orjson.dumps(
            {
                "tables": {name: list(table.items()) for name, table in self.tables.items()},
                "seconds": [(at, second.plain()) for at, second in self.seconds.items()],
                "use": [(at, list(nodes.items())) for at, nodes in self.use.items()],
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Book:
        """From `to_bytes`."""
        plain: dict[str, Any] = orjson.loads(data)
        return cls(
            {name: {tuple(labels): row for labels, row in rows} for name, rows in plain["tables"].items()},
            {at: Second.of(second) for at, second in plain["seconds"]},
            {at: dict(map(tuple, nodes)) for at, nodes in plain["use"]},
        )


def _merge_row(family: Family, mine: Table, labels: tuple[str, ...], row: Row) -> None:
    found = mine.get(labels)
    if found is None:
        mine[labels] = list(row)
    elif family.merge is Merge.SUM:
        mine[labels] = [a + b for a, b in zip(found, row, strict=True)]
    else:
        choose = min if family.merge is Merge.MIN else max
        mine[labels] = [choose(a, b) for a, b in zip(found, row, strict=True)]


def _merge_use(mine: dict[str, Use], other: dict[str, Use]) -> None:
    """Slots in use add up; that a node was busy, and how many slots it has, is the same fact seen twice."""
    for name, (slots_s, busy_s, capacity_s) in other.items():
        before = mine.get(name, [0.0, 0.0, 0.0])
        mine[name] = [before[0] + slots_s, max(before[1], busy_s), max(before[2], capacity_s)]
