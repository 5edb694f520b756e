"""Timeouts of everything in flight by one coarse timer, instead of a timer for each request."""

from __future__ import annotations

import asyncio
from math import inf
from typing import Protocol

TICK_S = 0.05  # a timeout is noticed at most this much late
HORIZON_S = 1.0  # what is due later than this is looked at again then: so few buckets exist at a time


class Watched(Protocol):
    """Something with timeouts. The sweep owns `tick`; -1 = not watched."""

    tick: int

    def check(self, now_s: float) -> float:
        """Act on what is due; return when to look again (`inf` = never)."""


class Sweep:
    """Buckets of watched things by the tick in which they are next looked at."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._buckets: dict[int, set[Watched]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._armed = 0  # the tick that the timer waits for

    def watch(self, item: Watched, due_s: float) -> None:
        """Look at `item` at about `due_s`; if it is watched already, then only if that is sooner."""
        tick = int(min(due_s, self._loop.time() + HORIZON_S) / TICK_S) + 1
        if item.tick >= 0:
            if item.tick <= tick:
                return
            self._buckets[item.tick].discard(item)
        item.tick = tick
        bucket = self._buckets.get(tick)
        if bucket is None:
            self._buckets[tick] = {item}
            if self._timer is None or tick < self._armed:
                self._arm(tick)
        else:
            bucket.add(item)

    def unwatch(self, item: Watched) -> None:
        """Forget it."""
        if item.tick >= 0:
            self._buckets[item.tick].discard(item)
            item.tick = -1

    def close(self) -> None:
        """Stop the timer; nothing is looked at any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, tick: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._armed = tick
        self._timer = self._loop.call_at(tick * TICK_S, self._sweep)

    def _sweep(self) -> None:
        self._timer = None
        now_s = self._loop.time()
        # Half a tick of tolerance: the loop's clock may be coarse and fire a little early.
        last = int(now_s / TICK_S + 0.5)
        for tick in sorted(tick for tick in self._buckets if tick <= last):
            for item in self._buckets[tick].copy():
                if item.tick == tick:  # an earlier one of this bucket may have ended it
                    self._look(item, now_s)
            del self._buckets[tick]
        if self._buckets:
            self._arm(min(self._buckets))

    def _look(self, item: Watched, now_s: float) -> None:
        self._buckets[item.tick].discard(item)
        item.tick = -1
        due_s = item.check(now_s)
        if due_s != inf:
            self.watch(item, max(due_s, now_s + TICK_S))
