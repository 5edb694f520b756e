"""Gaps between the chunks of a stream, counted by length: the tail of inter-token latency."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

GAP_BOUNDS_S: Final = (
    0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0,
    2.5,
)  # fmt: skip


class StreamGaps:
    """The gaps of one answer so far."""

    __slots__ = ("counts", "number", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(GAP_BOUNDS_S) + 1)  # up to each bound, and above the last
        self.number, self.sum_s = 0, 0.0

    def add(self, gaps_s: Sequence[float]) -> None:
        """Count further gaps."""
        counts = self.counts
        for gap_s in gaps_s:
            counts[bisect_left(GAP_BOUNDS_S, gap_s)] += 1
        self.number += len(gaps_s)
        self.sum_s += sum(gaps_s)
