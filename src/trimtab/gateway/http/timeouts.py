"""Timeouts of everything in flight by one coarse timer, instead of a timer for each request."""

from __future__ import annotations

import asyncio
import logging
from math import inf
from typing import Protocol

from trimtab.gateway.stall_detector import StallDetector

_log = logging.getLogger(__name__)

TICK_S = 0.05  # a timeout is noticed at most about this much late
HORIZON_S = 1.0  # what is due later than this is looked at again then: so few buckets exist at a time
UNWATCHED, FRESH = -1, 0


class Watched(Protocol):
    """Something with timeouts. The scanner owns `tick`; -1 = not observed."""

    tick: int

    def check(self, now_s: float) -> float:
        """Act on what is due; return when to look again (`inf` = never)."""


class TimeoutScanner:
    """Buckets of observed things by the tick in which they are next looked at.

    What is newly observed is first looked at in the next tick, whatever it waits for: most requests are over
    by then, and so cost one entry in one set. A scanner that comes late is put off by a tick: what came while
    this process was away is read first.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, stall_detector: StallDetector | None = None) -> None:
        self._loop = loop
        self.stall_detector = stall_detector or StallDetector(loop)
        self._fresh: set[Watched] = set()
        self._buckets: dict[int, set[Watched]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._armed = 0  # the tick that the timer waits for
        self._is_put_off = False

    def watch(self, item: Watched) -> None:
        """Look at `item` in the next tick, and then when its `check` says so."""
        tick = item.tick
        if tick == FRESH:
            return
        if tick > FRESH:
            self._buckets[tick].discard(item)
        item.tick = FRESH
        fresh = self._fresh
        if not fresh:
            next_tick = int(self._loop.time() / TICK_S) + 1
            if self._timer is None or next_tick < self._armed:
                self._arm(next_tick)
        fresh.add(item)

    def unwatch(self, item: Watched) -> None:
        """Forget it."""
        tick = item.tick
        if tick == FRESH:
            self._fresh.discard(item)
        elif tick > FRESH:
            self._buckets[tick].discard(item)
        item.tick = UNWATCHED

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
        self._is_put_off = not self._is_put_off and self.stall_detector.was_away(self._armed * TICK_S)
        if self._is_put_off:
            self._arm(int(now_s / TICK_S) + 2)
            return
        fresh, self._fresh = self._fresh, set()
        for item in fresh:
            item.tick = UNWATCHED
        self._look(fresh, now_s)
        # Half a tick of tolerance: the loop's clock may be coarse and fire a little early.
        last = int(now_s / TICK_S + 0.5)
        for tick in sorted(tick for tick in self._buckets if tick <= last):
            items = self._buckets.pop(tick)
            for item in items:
                item.tick = UNWATCHED
            self._look(items, now_s)
        if self._fresh:
            self._arm(int(now_s / TICK_S) + 1)
        elif self._buckets:
            self._arm(min(self._buckets))

    def _look(self, items: set[Watched], now_s: float) -> None:
        """Look at each, and enter it where it is next due. One may end another: that says it is never due."""
        for item in items:
            try:
                due_s = item.check(now_s)
            except Exception:  # a fault with one must not take the others' timeouts away
                _log.exception("a look at timeouts failed")
                due_s = now_s + HORIZON_S
            if due_s != inf and item.tick == UNWATCHED:
                self._enter(item, max(due_s, now_s + TICK_S), now_s)

    def _enter(self, item: Watched, due_s: float, now_s: float) -> None:
        tick = int(min(due_s, now_s + HORIZON_S) / TICK_S) + 1
        item.tick = tick
        bucket = self._buckets.get(tick)
        if bucket is None:
            self._buckets[tick] = {item}
        else:
            bucket.add(item)
