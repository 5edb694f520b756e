"""Relays a response to the client, byte for byte where possible.

Fast path for the steady state of a stream: one unchanged chunk with one event per read.

Nearly all reads from nodes that generate text look like this, so they take a path with few steps. The path
still checks each chunk: its framing, that it holds exactly one event of content, and that it holds no usage.
All other input (partial chunks, several chunks, last chunks, other events, errors) takes the general path.
The general path gives the same result for the steady state. The only difference: the fast path reports its
counts up to a second later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum

from trimtab.gateway.api.sse import TYPE_BYTES, USAGE
from trimtab.gateway.http.framing import Length, ResponseHead
from trimtab.gateway.http.inbox import Outbox
from trimtab.gateway.http.response_observer import ResponseObserver

_MAX_DIGITS = 3
_MAX_BYTES = 0xFFF + _MAX_DIGITS + 4
_NEVER = b"-" * _MAX_BYTES  # no chunk of up to _MAX_BYTES bytes begins with it


def _size_lines() -> tuple[bytes, ...]:
    """The size line of a chunk, by the bytes of the whole chunk, in the form that the relay writes.

    Where no chunk with a size of two or three digits has that many bytes, the entry is `_NEVER`.
    """
    lines = [_NEVER] * (_MAX_BYTES + 1)
    for payload in range(0x10, 0xFFF + 1):
        line = b"%x\r\n" % payload
        lines[len(line) + payload + 2] = line
    return tuple(lines)


_SIZE_LINES = _size_lines()
_LONGER = (0xFF + 2 + 4).__lt__  # whether a chunk's size has three digits


class StreamFastPath:
    """Forwards the chunks of one stream on one connection while the stream is in its steady state."""

    __slots__ = ("_sizes", "_tell", "_watch", "_write", "content", "gaps_s")

    def __init__(
        self,
        observer: ResponseObserver,
        write: Callable[[bytes], None],
        tell: Callable[[ResponseObserver, int, list[float]], None],
    ) -> None:
        self._watch = observer
        self._write = write
        self._tell = tell  # gets the observer, with its chunks counted, the number of body bytes, and gaps
        self.content = observer.content
        self._sizes: list[int] = []  # bytes of the whole chunks that are not reported yet
        self.gaps_s: list[float] = []  # before each of them, as the connection measures

    @property
    def is_open(self) -> bool:
        """Whether the stream so far consists of whole events, so that the next chunk begins an event."""
        return self._watch.is_between_events

    def passes(self, data: bytes) -> bool:
        """Forward `data` if it is one whole chunk with one event that needs no change.

        False = it is not, and nothing was done. The code uses few bytecodes: each chunk finds the processor's
        caches cold, which makes every bytecode slow. It uses `find` instead of `in`, because `in` on bytes
        raises and clears an exception internally.
        """
        size = len(data)
        if (
            size > _MAX_BYTES
            or not data.startswith(_SIZE_LINES[size])
            or data.find(b"\r\n", _MAX_DIGITS + 1)
            != size - 2  # only the size line and the data end with CRLF
            or data.find(b"\n\n") != size - 4
            or data.find(self.content, 0, TYPE_BYTES) < 0
            or data.find(USAGE) >= 0
        ):
            return False
        self._write(data)  # directly: earlier bytes were written at the end of their turn
        self._sizes.append(size)
        return True

    def settle(self) -> None:
        """Report the counts."""
        sizes = self._sizes
        if sizes:
            chunks = len(sizes)
            payload_bytes = sum(sizes) - (2 + 4) * chunks - sum(map(_LONGER, sizes))
            sizes.clear()
            self._watch.chunks += chunks
            self._tell(self._watch, payload_bytes, self.gaps_s)
            self.gaps_s.clear()


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
