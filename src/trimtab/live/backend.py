"""Backends, which serve the requests of a live host: the protocol, and workers inside this process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Protocol

from trimtab.live.clock import Clock, Rank


class Backend(Protocol):
    """Serves requests on nodes. An exception from `serve` stops the host."""

    def serve(self, node_idx: int, serial: int, until_s: float) -> Awaitable[None]:
        """Serve request `serial` on a node; done when it is served.

        `until_s` is the end that the host's model of service times predicts. Real backends may take longer or
        shorter.
        """

    def cancel(self, node_idx: int, serial: int) -> None:
        """Stop serving a request: no client waits for it. A later completion is ignored."""


class Workers:
    """In-process workers, which serve by waiting for the drawn service time on the clock."""

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
