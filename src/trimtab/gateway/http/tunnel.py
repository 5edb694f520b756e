"""A byte tunnel between a client and a node after status 101 (WebSockets)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf

from trimtab.gateway.api.usage import whole_usages
from trimtab.gateway.http.timeouts import TimeoutScanner
from trimtab.gateway.model import Cause, Usage

Closed = Callable[[Cause | None, int, Usage | None], None]
"""Gets the cause of the loss, if any; bytes sent to the client; and the usage that the node has reported."""


class Tunnel:
    """Both directions of one tunnel, each at the speed of its slower end."""

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
        self._rest = b""  # of the node's messages: it may hold the begin of a usage object
        self._usage: Usage | None = None
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
        self._meter(data)

    def _meter(self, data: bytes) -> None:
        """Add up the usage of the session's answers. Compressed messages carry none that can be read."""
        found, self._rest = whole_usages(self._rest + data)
        for one in found:
            sums = self._usage or Usage()
            self._usage = Usage(
                sums.prompt_tokens + one.prompt_tokens,
                sums.completion_tokens + one.completion_tokens,
                sums.cached_tokens + one.cached_tokens,
            )

    def hold(self, client: bool, full: bool) -> None:
        """Pause or resume reading from one side when the write buffer of the other side fills or empties.

        `client`: the buffer is the client's, else the node's. `full`: it is full.
        """
        other = self._node if client else self._client
        if other.is_closing():
            return
        if full:
            other.pause_reading()
        else:
            other.resume_reading()

    def close(self, cause: Cause | None = None) -> None:
        """Close both sides. Bytes that are already written still go out."""
        closed, self._closed = self._closed, None
        if closed is None:
            return
        self._scanner.unwatch(self)
        self._client.close()
        self._node.close()
        closed(cause, self._to_client_bytes, self._usage)

    def check(self, now_s: float) -> float:
        """Close a tunnel without traffic for `idle_s`."""
        if self._closed is None:
            return inf
        if now_s - self._last_s >= self._idle_s:
            self.close(Cause.IDLE)
            return inf
        return self._last_s + self._idle_s
