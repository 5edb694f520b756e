"""Requests in flight by node and class, now and as means over the time between two reports of a source."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

_Row = list[float]  # requests now, since when, and request-seconds up to then
Counts = Mapping[int, float]  # by class


class ClassCounts:
    """Requests of all pools, hedges included. `begin` and `end` are called for every attempt."""

    def __init__(self) -> None:
        self._rows: defaultdict[int, dict[int, _Row]] = defaultdict(dict)
        self._read: dict[tuple[int, str], tuple[float, dict[int, float]]] = {}  # when, request-seconds
        self.sequences: defaultdict[int, int] = defaultdict(int)  # answers under way on each node

    def begin(self, node_idx: int, class_idx: int, answers: int, now_s: float) -> None:
        """A request has been sent to a node."""
        self.sequences[node_idx] += answers
        self._change(node_idx, class_idx, 1.0, now_s)

    def end(self, node_idx: int, class_idx: int, answers: int, now_s: float) -> None:
        """A request has left a node."""
        self.sequences[node_idx] -= answers
        self._change(node_idx, class_idx, -1.0, now_s)

    def _change(self, node_idx: int, class_idx: int, by: float, now_s: float) -> None:
        rows = self._rows[node_idx]
        row = rows.get(class_idx)
        if row is None:
            rows[class_idx] = [by, now_s, 0.0]
            return
        row[2] += row[0] * (now_s - row[1])
        row[0] += by
        row[1] = now_s

    def now(self, node_idx: int) -> Counts:
        """Requests of each class on a node."""
        return {c: row[0] for c, row in self._rows.get(node_idx, {}).items() if row[0]}

    def nodes(self) -> list[int]:
        """Nodes that have had requests."""
        return list(self._rows)

    def mean(self, node_idx: int, source: str, now_s: float) -> Counts:
        """Mean requests of each class on a node since the last report of this source; at first, those now."""
        rows = self._rows.get(node_idx, {})
        seconds = {c: row[2] + row[0] * (now_s - row[1]) for c, row in rows.items()}
        before = self._read.get((node_idx, source))
        self._read[node_idx, source] = now_s, seconds
        if before is None or now_s <= before[0]:
            return self.now(node_idx)
        passed_s, earlier = now_s - before[0], before[1]
        return {c: mean for c in seconds if (mean := (seconds[c] - earlier.get(c, 0.0)) / passed_s) > 0.0}

    def forget(self, node_idx: int) -> None:
        """The node is gone: its reports begin anew if it comes back."""
        for key in [key for key in self._read if key[0] == node_idx]:
            del self._read[key]
