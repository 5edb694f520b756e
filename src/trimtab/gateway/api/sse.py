"""Server-sent events out of a stream of bytes, whatever the borders of its chunks.

An event ends with an empty line; lines end with LF or CR LF. (A lone CR, which the standard allows too, is
what no inference server sends: such a stream would be one long event here, and still be relayed whole.)
"""

from __future__ import annotations

import re
from typing import Final

TYPE_BYTES: Final = 400  # events say what they are in these: an `event:` line, or first keys of the data
USAGE: Final = b'"usage"'  # a key that no event has which only brings content
_END: Final = re.compile(rb"\n\r?\n")
_DATA: Final = re.compile(rb"^data:[ ]?([^\r\n]*)", re.MULTILINE)
_HEAD_BYTES: Final = 4_096
_TAIL_BYTES: Final = 16_384
_MAX_OPEN: Final = 2 * (_HEAD_BYTES + _TAIL_BYTES)


def split(buffer: bytes, start: int = 0) -> tuple[list[bytes], bytes]:
    """The whole events in `buffer`, each with the empty line that ends it, and what is left.

    No event ends before `start`: a caller that has looked at the first bytes already saves a second look.
    """
    events = []
    begin = 0
    for end in _END.finditer(buffer, start):
        events.append(buffer[begin : end.end()])
        begin = end.end()
    return events, buffer[begin:] if begin else buffer


def data_of(event: bytes) -> bytes:
    """The data of an event: its `data:` lines, joined by newlines."""
    return b"\n".join(_DATA.findall(event))


class EventSplitter:
    """Events of a stream for reading, in bounded memory: a very long event comes without its middle."""

    __slots__ = ("_open",)

    def __init__(self) -> None:
        self._open = b""

    @property
    def is_empty(self) -> bool:
        """Whether no event has begun that is not whole."""
        return not self._open

    def feed(self, chunk: bytes) -> list[bytes]:
        """The events that this chunk completes."""
        if not self._open and chunk.find(b"\n\n") == len(chunk) - 2 >= 0 and b"\r" not in chunk:
            return [chunk]  # one whole event: how most streams come
        held = len(self._open)
        events, self._open = split(self._open + chunk if held else chunk, max(0, held - 2))
        if len(self._open) > _MAX_OPEN:
            self._open = self._open[:_HEAD_BYTES] + self._open[-_TAIL_BYTES:]
        return events

    def finish(self) -> list[bytes]:
        """What the stream's end leaves: an event whose empty line is missing."""
        events, self._open = [self._open] if self._open else [], b""
        return events
