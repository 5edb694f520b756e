"""Reads usage, ids and counts from a passing response. Removes usage that the client did not request.

The gateway asks for no content coding. Some servers and proxies compress all the same: then the gateway
reads the answer beside the relay, and the client gets the node's bytes. Only where an event is removed from a
stream is the rest compressed again.
"""

from __future__ import annotations

import zlib
from typing import Final

from trimtab.gateway.api.sse import UsageStripper
from trimtab.gateway.api.usage import Meter, meter_for
from trimtab.gateway.http.framing import BadResponseError, ResponseHead
from trimtab.gateway.model import Endpoint, Kind, Usage

READABLE: Final = frozenset((b"gzip", b"x-gzip", b"deflate"))
MOST_BYTES: Final = 32 << 20  # of one piece, read: more may be meant to fill the memory
_GZIP_OR_ZLIB: Final = 32 + zlib.MAX_WBITS
_GZIP: Final = 16 + zlib.MAX_WBITS
_RAW: Final = -zlib.MAX_WBITS


class Decoder:
    """Reads a coded body piece by piece."""

    __slots__ = ("_begun", "_inner")

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(_GZIP_OR_ZLIB)
        self._begun = False

    def feed(self, data: bytes) -> bytes:
        """The body bytes that these coded bytes hold. Raises BadResponseError."""
        try:
            found = [self._read(data)]
            while self._inner.eof and (rest := self._inner.unused_data):  # a gzip file of several members
                self._inner = zlib.decompressobj(_GZIP_OR_ZLIB)
                found.append(self._read(rest))
        except zlib.error as error:
            raise BadResponseError("a damaged content coding") from error
        return b"".join(found)

    def _read(self, data: bytes) -> bytes:
        try:
            found = self._inner.decompress(data, MOST_BYTES)
        except zlib.error:
            if self._begun:
                raise
            self._inner = zlib.decompressobj(_RAW)  # what some servers mean by deflate
            found = self._inner.decompress(data, MOST_BYTES)
        self._begun = True
        if self._inner.unconsumed_tail:
            raise BadResponseError("a content coding that grows without end")
        return found


class Encoder:
    """Writes a coded body. The client can read each piece at once."""

    __slots__ = ("_inner",)

    def __init__(self, coding: bytes) -> None:
        wbits = zlib.MAX_WBITS if coding == b"deflate" else _GZIP
        self._inner = zlib.compressobj(zlib.Z_DEFAULT_COMPRESSION, zlib.DEFLATED, wbits)

    def feed(self, data: bytes) -> bytes:
        """The coded bytes."""
        return self._inner.compress(data) + self._inner.flush(zlib.Z_SYNC_FLUSH) if data else b""

    def finish(self) -> bytes:
        """The end of the body."""
        return self._inner.flush()


def plain_body(head: ResponseHead, body: bytes) -> bytes | None:
    """A whole body without its coding; None = it cannot be read."""
    if not head.coding:
        return body
    if head.coding not in READABLE:
        return None
    try:
        return Decoder().feed(body)
    except BadResponseError:
        return None


KEPT_BYTES = 8 << 20  # longer bodies that come in pieces are not kept for the result cache
_STREAM = b"text/event-stream"
_SAYS_ITS_END = (Kind.CHAT, Kind.COMPLETION, Kind.MESSAGES, Kind.RESPONSE)


class ResponseObserver:
    """Observes one response body on its way to the client."""

    __slots__ = (
        "_decoder",
        "_encoder",
        "_last",
        "_meter",
        "_says_its_end",
        "_stripper",
        "chunks",
        "hides",
        "is_readable",
        "kept",
        "stream",
    )

    def __init__(
        self, meter: Meter, stream: bool, says_its_end: bool, hides: bool, coding: bytes = b""
    ) -> None:
        self._meter = meter
        self._stripper = UsageStripper() if hides else None
        self._decoder = Decoder() if coding else None
        self._encoder = Encoder(coding) if coding and hides else None
        self._says_its_end = says_its_end and stream
        self._last = b"\n\n"
        self.stream = stream
        self.hides = hides  # the observer removes the usage from the stream
        self.chunks = 0  # chunks of content so far
        self.kept: bytearray | None = None  # the body so far, where the result cache may keep it
        self.is_readable = True  # False = its content coding is damaged

    @property
    def usage(self) -> Usage | None:
        """The usage that the node has reported so far."""
        return self._meter.usage

    @property
    def response_id(self) -> str:
        """The id with which a later request may continue this response; empty = none."""
        return self._meter.response_id

    @property
    def content(self) -> bytes:
        """The bytes that mark an event of content."""
        return self._meter.content

    @property
    def is_between_events(self) -> bool:
        """Whether the stream so far consists of whole events. Then an event of content is only counted."""
        stripper = self._stripper
        return (
            self._decoder is None
            and self._meter.is_between_events
            and (stripper is None or stripper.is_empty)
            and self._last.endswith(b"\n\n")
        )

    @property
    def at_event_border(self) -> bool:
        """Whether the bytes sent to the client so far end with a whole event of a stream."""
        return self.stream and self._decoder is None and self._last.endswith((b"\n\n", b"\n\r\n"))

    @property
    def cut_short(self) -> bool:
        """Whether the stream ended without its own last event."""
        return self._says_its_end and self.is_readable and not self._meter.ended

    def feed(self, payload: bytes) -> bytes:
        """Process body bytes. Returns the bytes for the client.

        Raises BadResponseError where an event is to be removed from what cannot be read.
        """
        if self.kept is not None:
            self.kept += payload
            if len(self.kept) > KEPT_BYTES:
                self.kept = None
        if self._decoder is not None:
            return self._feed_coded(self._decoder, payload)
        payload = self._sifted(payload)
        if len(payload) > 3:
            self._last = payload
        elif payload:
            self._last = self._last[-3:] + payload
        return payload

    def _sifted(self, payload: bytes) -> bytes:
        self.chunks += self._meter.feed(payload)
        return payload if self._stripper is None else self._stripper.feed(payload)

    def _feed_coded(self, decoder: Decoder, payload: bytes) -> bytes:
        if not self.is_readable:
            return payload
        try:
            plain = decoder.feed(payload)
        except BadResponseError:
            if self._encoder is not None:
                raise
            self.is_readable = False  # it is the client's to judge
            return payload
        sifted = self._sifted(plain)
        return payload if self._encoder is None else self._encoder.feed(sifted)

    def finish(self) -> bytes:
        """End the body. Returns the bytes that were still held back."""
        self._meter.finish()
        rest = self._stripper.finish() if self._stripper is not None else b""
        return rest if self._encoder is None else self._encoder.feed(rest) + self._encoder.finish()


def observer_for(
    endpoint: Endpoint | None, content_type: bytes, coding: bytes, hides_usage: bool
) -> ResponseObserver | None:
    """The observer for a response of this type and coding; None = it holds nothing that can be read."""
    if endpoint is None or (coding and coding not in READABLE):
        return None
    stream = content_type.startswith(_STREAM)
    if not stream and not content_type.startswith(b"application/json"):
        return None
    meter = meter_for(endpoint, content_type.decode("latin-1"))
    return ResponseObserver(meter, stream, endpoint.kind in _SAYS_ITS_END, stream and hides_usage, coding)
