"""Streams that stand still: the gaps between their pieces, and the nodes whose streams all do.

Detects stalls of this process: it was stopped, or the machine was too busy to run it.

A request that began before a stall and seems late after it says nothing about its node: the node's response
may lie unread in a socket. Code that judges by time checks here first. A stall matters only while something
is awaited, so the detector beats only then.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Sequence
from math import inf
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


BEAT_S = 0.1
AWAY_S = 0.25  # a timer that is this late was delayed by more than the loop's own work


class StallDetector:
    """Detects stalls while it beats; else only those that calls of `was_away` show.

    Every beat calls all `on_beat`. The beats go on as long as one of them returns True.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.since_s = -inf  # end of the latest stall
        self.on_beat: list[Callable[[], bool]] = []
        self._loop = loop
        self._due_s = inf
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start beating, because something is awaited. A second call does nothing."""
        if self._timer is None:
            self._arm()

    def close(self) -> None:
        """Stop beating. `start` begins again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._due_s = inf

    def was_away(self, due_s: float) -> bool:
        """Whether a timer that was due at `due_s` and runs only now shows a stall. The stall ends now."""
        now_s = self._loop.time()
        if now_s - due_s < AWAY_S:
            return False
        self.since_s = now_s
        return True

    def notice(self) -> None:
        """Check for a stall that ends with this turn of the loop."""
        if self.was_away(self._due_s):
            self._due_s = self.since_s + BEAT_S  # count it once: the late beat is still to come

    def ran_since_s(self) -> float:
        """End of the latest stall, checked in this turn of the loop."""
        if self._loop.time() - self._due_s >= AWAY_S:
            self.notice()
        return self.since_s

    def spans_gap(self, begun_s: float) -> bool:
        """Whether a stall ended after `begun_s`."""
        return begun_s < self.ran_since_s()

    def _arm(self) -> None:
        self._due_s = self._loop.time() + BEAT_S
        self._timer = self._loop.call_at(self._due_s, self._beat)

    def _beat(self) -> None:
        self.was_away(self._due_s)
        self._arm()  # first: an exception must not end the beats
        is_needed = [beat() for beat in self.on_beat]  # call all of them
        if not any(is_needed):
            self.close()
