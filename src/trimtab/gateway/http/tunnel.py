"""A byte tunnel between a client and a node, after 101: WebSockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf

from trimtab.gateway.http.timeouts import TimeoutScanner
from trimtab.gateway.model import Cause

Closed = Callable[[Cause | None, int], None]  # how it was lost, if it was; bytes to the client


class Tunnel:
    """Both directions of one tunnel, each at the speed of its slower side."""

    def __init__(
        self,
        client: asyncio.Transport,
        node: asyncio.Transport,
        scanner: TimeoutScanner,
        now_s: Callable[[], float],
        idle_s: float,
        closed: Closed,
    ) -> None:
        self.tick = -1
        self._client = client
        self._node = node
        self._scanner = scanner
        self._now_s = now_s
        self._idle_s = idle_s
        self._closed: Closed | None = closed
        self._last_s = now_s()
        self._to_client_bytes = 0
        scanner.watch(self)

    def from_client(self, data: bytes) -> None:
        """Bytes for the node."""
        self._last_s = self._now_s()
        self._node.write(data)

    def from_node(self, data: bytes) -> None:
        """Bytes for the client."""
        self._last_s = self._now_s()
        self._to_client_bytes += len(data)
        self._client.write(data)

    def hold(self, client: bool, full: bool) -> None:
        """A write buffer, the client's or the node's, is full or no more: the other side waits, or not."""
        other = self._node if client else self._client
        if other.is_closing():
            return
        if full:
            other.pause_reading()
        else:
            other.resume_reading()

    def close(self, cause: Cause | None = None) -> None:
        """End both sides; what is written already still goes out."""
        closed, self._closed = self._closed, None
        if closed is None:
            return
        self._scanner.unwatch(self)
        self._client.close()
        self._node.close()
        closed(cause, self._to_client_bytes)

    def check(self, now_s: float) -> float:
        """Close a tunnel in which nothing moves."""
        if self._closed is None:
            return inf
        if now_s - self._last_s >= self._idle_s:
            self.close(Cause.IDLE)
            return inf
        return self._last_s + self._idle_s
