"""Batches the writes of one turn of the event loop: they go out at its end, one directly after the other.

Each send may wake the process at the other end. On a busy machine a wake-up costs more if other work lies
between two sends. Deferring all sends of a turn therefore saves a large part of a request's time.
"""

from __future__ import annotations

import asyncio


class Outbox:
    """Bytes for transports, in the order in which they were put.

    Code that writes to a transport directly, or closes it, must call `flush` first if the outbox may hold
    bytes for that transport. `now` and `close` do so. Bytes for a transport that closes meanwhile are
    dropped, as a direct write would be.
    """

    __slots__ = ("_call_soon", "_flush", "_items", "is_awaited", "is_direct")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._call_soon = loop.call_soon
        self._flush = self.flush  # bound once
        self._items: list[tuple[asyncio.WriteTransport, bytes]] = []
        self.is_awaited = False  # the inbox flushes it at the end of the turn
        self.is_direct = False  # `put` writes at once

    def put(self, transport: asyncio.WriteTransport, data: bytes) -> None:
        """Write bytes at the end of this turn."""
        items = self._items
        if not items:
            if self.is_direct:
                if not transport.is_closing():
                    transport.write(data)
                return
            if not self.is_awaited:
                self._call_soon(self._flush)
        items.append((transport, data))

    def flush(self) -> None:
        """Write all stored bytes now."""
        items = self._items
        if items:
            self._items = []
            for transport, data in items:
                if not transport.is_closing():
                    transport.write(data)

    def now(self, transport: asyncio.WriteTransport, data: bytes) -> None:
        """Write bytes at once, after all stored bytes."""
        if self._items:
            self.flush()
        transport.write(data)

    def close(self, transport: asyncio.WriteTransport) -> None:
        """Write all stored bytes, then close the transport."""
        if self._items:
            self.flush()
        transport.close()
