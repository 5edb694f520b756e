"""Clocks of live hosts: a wall clock, and a virtual clock that jumps from event to event.

A host works the same way on both: it sleeps, and the clock wakes it in order.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import selectors
import time
from collections.abc import Callable, Coroutine
from enum import IntEnum
from typing import Any, Protocol, TypeVar

from trimtab.errors import UsageError

T = TypeVar("T")


class Rank(IntEnum):
    """Order of wake-ups at equal times; the same as the simulator's order of equal events."""

    COMPLETION = 0
    TIMER = 1  # events that the state scheduled itself: transfers, telemetry, plans, cancellations
    ARRIVAL = 2
    STOP = 3


class Clock(Protocol):
    """Seconds since `start`, and sleeping."""

    def start(self) -> None:
        """Start the time, which is 0 before."""

    def now_s(self) -> float:
        """Seconds since the start; never less than before."""

    def sleep_until(self, at_s: float, rank: Rank, serial: int = 0) -> asyncio.Future[None]:
        """A future that is done at `at_s`, or at once if that has passed. Cancel it to remove it."""

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end on an event loop for this clock.

        Ctrl-C cancels the coroutine, lets it clean up, and raises KeyboardInterrupt.
        """


class WallClock:
    """Real time, `speed` times as fast: at speed 10 a second of the clock takes 0.1 s.

    The delay of the event loop makes wake-ups late (about a millisecond of real time). They are never early.
    Raises UsageError if `speed` is not a positive number.
    """

    def __init__(self, speed: float = 1.0) -> None:
        if not (0.0 < speed < math.inf):
            raise UsageError(
                "cannot run at this speed", field="speed", value=speed, expected="a positive number"
            )
        self.speed = speed
        self._started_s: float | None = None

    def start(self) -> None:
        """Start the time."""
        self._started_s = time.monotonic()

    def now_s(self) -> float:
        """Seconds since the start."""
        return 0.0 if self._started_s is None else (time.monotonic() - self._started_s) * self.speed

    def sleep_until(self, at_s: float, rank: Rank, serial: int = 0) -> asyncio.Future[None]:
        """A future that is done at `at_s`. Equal times wake in the order of the calls."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(max(0.0, at_s - self.now_s()) / self.speed, _wake, future)
        future.add_done_callback(lambda _: timer.cancel())
        return future

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run on asyncio's own loop."""
        return asyncio.run(main)


class VirtualClock:
    """Time that stands still while any task can run, and then jumps to the next sleeper.

    Sleepers wake one at a time, by (time, rank, serial), so a run is deterministic. If no task can run and no
    task sleeps, the run is in a deadlock: `run` raises RuntimeError.
    """

    def __init__(self) -> None:
        self._now_s = 0.0
        self._sleepers: list[tuple[float, Rank, int, int, asyncio.Future[None]]] = []
        self._calls = itertools.count()

    def start(self) -> None:
        """Nothing to start: virtual time advances only by sleeping."""

    def now_s(self) -> float:
        """Time of the last wake-up."""
        return self._now_s

    def sleep_until(self, at_s: float, rank: Rank, serial: int = 0) -> asyncio.Future[None]:
        """A future that is done at `at_s`, after all tasks that can run before."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (at_s, rank, serial, next(self._calls), future))
        return future

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run on a loop that calls this clock when no task can run."""
        with asyncio.Runner(loop_factory=self._new_loop) as runner:
            return runner.run(main)

    def _new_loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.SelectorEventLoop(_IdleSelector(self._wake_next))

    def _wake_next(self) -> None:
        while self._sleepers:
            at_s, *_, future = heapq.heappop(self._sleepers)
            if not future.done():
                self._now_s = max(self._now_s, at_s)
                future.set_result(None)
                return
        raise RuntimeError(
            f"deadlock at {self._now_s:.6f} s of virtual time: no task can run and none sleeps"
        )


class _IdleSelector(selectors.DefaultSelector):
    """Calls `on_idle` instead of waiting: an asyncio loop waits only when no task can run."""

    def __init__(self, on_idle: Callable[[], None]) -> None:
        super().__init__()
        self._on_idle = on_idle

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout > 0.0:
            self._on_idle()
        return super().select(0.0)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
