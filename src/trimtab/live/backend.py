"""Who does the work that a live host gives away: a small protocol, and workers inside this process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Protocol

from trimtab.live.clock import Clock, Rank


class Backend(Protocol):
    """Serves requests on nodes. An exception from `serve` stops the host."""

    def serve(self, node_idx: int, serial: int, until_s: float) -> Awaitable[None]:
        """Serve request `serial` on a node; done when it is served.

        `until_s` is when the host's model of service times expects that; real backends take what they take.
        """

    def cancel(self, node_idx: int, serial: int) -> None:
        """Stop serving a request: nobody waits for it any more. What still completes is ignored."""


class Workers:
    """In-process workers: each serves by waiting on the clock for the service time that was drawn."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waits: dict[int, asyncio.Future[None]] = {}

    def serve(self, node_idx: int, serial: int, until_s: float) -> Awaitable[None]:
        """Wait until `until_s`."""
        wait = self._clock.sleep_until(until_s, Rank.COMPLETION, serial)
        self._waits[serial] = wait
        wait.add_done_callback(lambda _: self._waits.pop(serial, None))
        return wait

    def cancel(self, node_idx: int, serial: int) -> None:
        """Forget the wait."""
        if serial in self._waits:
            self._waits[serial].cancel()
