"""Relays a response to the client, byte for byte where possible."""

from __future__ import annotations

import asyncio
from enum import Enum

from trimtab.gateway.http.framing import Length, ResponseHead
from trimtab.gateway.http.outbox import Outbox
from trimtab.gateway.http.response_observer import ResponseObserver


class Mode(Enum):
    """How the body is framed for the client."""

    VERBATIM = "verbatim"
    CHUNKED = "chunked"  # framed again by the gateway
    BARE = "bare"  # the end of the connection ends the body


_VERBATIM, _CHUNKED, _BARE = Mode.VERBATIM, Mode.CHUNKED, Mode.BARE


def connection_line(closes: bool, keep_alive_10: bool) -> bytes:
    """The connection header of a response, if it needs one."""
    if closes:
        return b"connection: close\r\n"
    return b"connection: keep-alive\r\n" if keep_alive_10 else b""


class Relay:
    """Puts one response into the outbox for the client's transport."""

    __slots__ = ("_mode", "_no_body", "_put", "_transport", "closes", "head", "observer")

    def __init__(
        self,
        outbox: Outbox,
        transport: asyncio.Transport,
        head: ResponseHead,
        observer: ResponseObserver | None,
        http10: bool,
        closes: bool,
    ) -> None:
        self._put = outbox.put
        self._transport = transport
        self.head = head
        self.observer = observer
        self.closes = closes
        self._no_body = head.length is Length.NONE
        mode = _VERBATIM
        if not self._no_body and (
            head.length is Length.CLOSE
            or (observer is not None and observer.hides)
            or (http10 and head.length is Length.CHUNKED)
        ):
            mode = _BARE if http10 else _CHUNKED
            self.closes = closes or http10
        self._mode = mode

    def begin(self, extra: bytes, keep_alive_10: bool) -> bytes:
        """The head for the client. `extra`: the gateway's own header lines."""
        head, mode = self.head, self._mode
        framing = b""
        if mode is _CHUNKED or (head.length is Length.CHUNKED and mode is _VERBATIM):
            framing = b"transfer-encoding: chunked\r\n"
        elif head.length is Length.COUNTED and mode is _VERBATIM:
            framing = b"content-length: %d\r\n" % head.content_length
        block = head.block_beside(extra)
        return b"%b%b%b%b\r\n" % (block, framing, connection_line(self.closes, keep_alive_10), extra)

    @property
    def keeps_chunks(self) -> bool:
        """Whether a whole chunk is forwarded unchanged if its framing is the one that the relay writes."""
        return self._mode is _CHUNKED or (self._mode is _VERBATIM and self.head.length is Length.CHUNKED)

    def body(self, before: bytes, raw: bytes, payload: bytes) -> None:
        """Write a piece of the body. `before`: bytes that go first (the head)."""
        observer = self.observer
        if observer is not None:
            payload = observer.feed(payload)
        mode = self._mode
        if mode is _VERBATIM:
            self._put(self._transport, before + raw if before else raw)
            return
        if mode is _CHUNKED and payload:
            payload = b"%x\r\n%b\r\n" % (len(payload), payload)
        if before or payload:
            self._put(self._transport, before + payload if before else payload)

    def cut_short(self) -> bool:
        """Whether the connection's end ended the stream before the stream's own last event."""
        return self.head.length is Length.CLOSE and self.observer is not None and self.observer.cut_short

    def end(self) -> None:
        """Write the end of a complete response."""
        observer = self.observer
        rest = observer.finish() if observer is not None else b""
        if self._mode is _CHUNKED:
            if rest:
                rest = b"%x\r\n%b\r\n" % (len(rest), rest)
            self._put(self._transport, rest + b"0\r\n\r\n")
        elif rest and self._mode is _BARE:
            self._put(self._transport, rest)

    def broken(self, event: bytes, at_border: bool) -> bool:
        """Write an error event after the loss of a node, if the stream allows it. Returns whether it did."""
        observer = self.observer
        if observer is None or not observer.at_event_border or self._no_body:
            return False
        if self._mode is _BARE:
            self._put(self._transport, event)
            return True
        if self._mode is _VERBATIM and not (at_border and self.head.length is Length.CHUNKED):
            return False
        self._put(self._transport, b"%x\r\n%b\r\n0\r\n\r\n" % (len(event), event))
        return True
