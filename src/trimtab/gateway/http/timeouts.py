"""Timeouts of all requests and connections by one coarse timer, instead of one timer per request."""

from __future__ import annotations

import asyncio
import logging
from math import inf
from typing import Protocol

from trimtab.gateway.stalled_streams import StallDetector

_log = logging.getLogger(__name__)

TICK_S = 0.05  # a timeout fires at most about this much late
HORIZON_S = 1.0  # items due later are checked again after this time, which keeps the number of buckets small
UNWATCHED, FRESH = -1, 0


class Watched(Protocol):
    """An item with timeouts. The scanner owns `tick`; -1 = not watched."""

    tick: int

    def check(self, now_s: float) -> float:
        """Handle timeouts that are due. Returns the time of the next check (`inf` = never)."""


class TimeoutScanner:
    """Buckets of watched items by the tick of their next check.

    A new item is first checked in the next tick, whatever its timeouts are. Most requests are over by then,
    so that they cost one entry in one set. A late scanner waits one more tick, so that bytes that arrived
    while this process stalled are read first.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, stall_detector: StallDetector | None = None) -> None:
        self._loop = loop
        self.stall_detector = stall_detector or StallDetector(loop)
        self._fresh: set[Watched] = set()
        self._buckets: dict[int, set[Watched]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._armed = 0  # tick of the timer
        self._is_put_off = False

    def watch(self, item: Watched) -> None:
        """Check `item` in the next tick, then at the times that its `check` returns."""
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
        """Stop checking `item`."""
        tick = item.tick
        if tick == FRESH:
            self._fresh.discard(item)
        elif tick > FRESH:
            self._buckets[tick].discard(item)
        item.tick = UNWATCHED

    def close(self) -> None:
        """Stop the timer. No item is checked any more."""
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
        """Check each item and enter its next check. An item may end another, whose check then returns inf."""
        for item in items:
            try:
                due_s = item.check(now_s)
            except Exception:  # an error in one item must not stop the timeouts of others
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
