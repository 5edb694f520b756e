"""What is written in one turn of the loop goes out at its end, one send right after the other.

Each send may wake the process at the other end. On a busy machine that costs more where other work lies in
between: putting off all sends of a turn saves a good part of a request's time.
"""

from __future__ import annotations

import asyncio


class Outbox:
    """Bytes for transports, in the order in which they were put.

    Whoever writes to a transport directly, or closes it, calls `flush` first where something of this turn may
    be meant for it: `now` and `close` do so. What is meant for a transport that is closed meanwhile is
    dropped, as a write to it would be.
    """

    __slots__ = ("_call_soon", "_flush", "_items", "is_awaited", "is_direct")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._call_soon = loop.call_soon
        self._flush = self.flush  # bound once
        self._items: list[tuple[asyncio.WriteTransport, bytes]] = []
        self.is_awaited = False  # somebody flushes it soon
        self.is_direct = False  # what is put is written at once

    def put(self, transport: asyncio.WriteTransport, data: bytes) -> None:
        """Write it at the end of this turn."""
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
        """Write what was put, now."""
        items = self._items
        if items:
            self._items = []
            for transport, data in items:
                if not transport.is_closing():
                    transport.write(data)

    def now(self, transport: asyncio.WriteTransport, data: bytes) -> None:
        """Write at once, after what was put."""
        if self._items:
            self.flush()
        transport.write(data)

    def close(self, transport: asyncio.WriteTransport) -> None:
        """Close it once what was put is written."""
        if self._items:
            self.flush()
        transport.close()
