"""Requests in flight by node and class, now and as means over the time between two reports of a source."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

_Row = list[float]
_REQUESTS, _SINCE, _SECONDS, _ANSWERS = range(4)  # now, since when, request-seconds up to then, answers now
Counts = Mapping[int, float]  # by class


class ClassCounts:
    """Requests of all pools, hedges included. `begin` and `end` are called for every attempt."""

    def __init__(self) -> None:
        self._rows: defaultdict[int, dict[int, _Row]] = defaultdict(dict)  # node → class → row
        self._read: dict[tuple[int, str], tuple[float, dict[int, float]]] = {}  # when, request-seconds

    def begin(self, node_idx: int, class_idx: int, answers: int, now_s: float) -> None:
        """A request has been sent to a node."""
        row = self._rows[node_idx].get(class_idx)
        if row is None:
            self._rows[node_idx][class_idx] = [1.0, now_s, 0.0, answers]
            return
        row[_SECONDS] += row[_REQUESTS] * (now_s - row[_SINCE])
        row[_REQUESTS] += 1.0
        row[_SINCE] = now_s
        row[_ANSWERS] += answers

    def end(self, node_idx: int, class_idx: int, answers: int, now_s: float) -> None:
        """A request has left a node, to which it was sent before."""
        row = self._rows[node_idx][class_idx]
        row[_SECONDS] += row[_REQUESTS] * (now_s - row[_SINCE])
        row[_REQUESTS] -= 1.0
        row[_SINCE] = now_s
        row[_ANSWERS] -= answers

    def answers(self, node_idx: int) -> int:
        """Answers under way on a node: a request may ask for several."""
        return int(sum(row[_ANSWERS] for row in self._rows.get(node_idx, {}).values()))

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
