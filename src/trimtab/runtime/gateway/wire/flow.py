"""The steady state of a stream: chunks of one event each, which nobody changes, one at a time.

Nearly all that is read from nodes that generate text is this, so it has a way of its own with few steps. Each
chunk is still looked at: its framing, that it is one event of content, and that it says nothing of usage. All
else (pieces of chunks, several, the last ones, other events, errors) goes the usual way, which does the same
with these too; the one difference is that what was counted here is told to others some chunks later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trimtab.runtime.gateway.api.usage import TYPE_BYTES

if TYPE_CHECKING:
    from trimtab.runtime.gateway.wire.exchange import WireExchange
    from trimtab.runtime.gateway.wire.watch import Watch

SETTLED_CHUNKS = 16  # are told at a time: a tenant's counter of tokens is behind by fewer


class Flow:
    """Hands on what one connection reads of one stream, as far as it is in its steady state."""

    __slots__ = ("_bytes", "_chunks", "_content", "_exchange", "_put", "_transport", "_watch")

    def __init__(self, exchange: WireExchange, watch: Watch) -> None:
        self._exchange = exchange
        self._watch = watch
        self._content = watch.content
        self._transport = exchange.client.transport
        self._put = exchange.context.outbox.now
        self._chunks = self._bytes = 0  # counted here and not told yet

    @property
    def is_open(self) -> bool:
        """Whether all before was whole events: the next chunk begins one."""
        return self._watch.is_between_events

    def passes(self, data: bytes) -> bool:
        """Hand on what was read, where it is one whole chunk of one event that stays as it is.

        False = it is not, and nothing was done. The chunk's size must be written as the relay itself would,
        in two or three digits; the body's size follows from that of all.
        """
        size = len(data)
        if 262 < size < 4_103:
            payload = size - 7
        elif 21 < size < 262:
            payload = size - 6
        else:
            return False
        if (
            not data.startswith(b"%x\r\n" % payload)
            or data.find(b"\n\n") != size - 4
            or not data.endswith(b"\r\n")
            or data.count(b"\r") != 2
            or data.find(self._content, 0, TYPE_BYTES) < 0
            or b'"usage"' in data
            or self._transport.is_closing()
        ):
            return False
        self._put(self._transport, data)
        self._bytes += payload
        self._chunks += 1
        if self._chunks == SETTLED_CHUNKS:
            self.settle()
        return True

    def settle(self) -> None:
        """Tell what was counted."""
        chunks = self._chunks
        if chunks:
            self._chunks = 0
            exchange, watch = self._exchange, self._watch
            exchange.response_bytes += self._bytes
            self._bytes = 0
            watch.chunks += chunks
            exchange.watched(watch)
