"""Content codings of nodes' answers.

The gateway asks for none. Some servers and proxies compress all the same: then the gateway reads the answer
beside the relay, and the client gets the node's bytes. Only where an event is removed from a stream is the
rest compressed again.
"""

from __future__ import annotations

import zlib
from typing import Final

from trimtab.gateway.http.framing import BadResponseError, ResponseHead

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
