"""Splits a byte stream with arbitrary chunk borders into server-sent events.

An event ends with an empty line; lines end with LF or CR LF. The standard also allows a lone CR, but no
inference server sends it. Such a stream would be one long event here, and would still be relayed completely.
"""

from __future__ import annotations

import re
from typing import Final

TYPE_BYTES: Final = 400  # leading bytes that hold an event's type: an `event:` line, or the first keys
USAGE: Final = b'"usage"'  # a key that pure content events do not have
_END: Final = re.compile(rb"\n\r?\n")
_DATA: Final = re.compile(rb"^data:[ ]?([^\r\n]*)", re.MULTILINE)
_HEAD_BYTES: Final = 4_096
_TAIL_BYTES: Final = 16_384
_MAX_OPEN: Final = 2 * (_HEAD_BYTES + _TAIL_BYTES)


def split(buffer: bytes, start: int = 0) -> tuple[list[bytes], bytes]:
    """The complete events in `buffer`, each with the empty line that ends it, and the remaining bytes.

    No event ends before `start`: a caller that has already searched the first bytes saves a second search.
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
    """Splits a stream into events in bounded memory: the middle of a very long event is dropped."""

    __slots__ = ("_open",)

    def __init__(self) -> None:
        self._open = b""

    @property
    def is_empty(self) -> bool:
        """Whether no incomplete event is pending."""
        return not self._open

    def feed(self, chunk: bytes) -> list[bytes]:
        """The events that this chunk completes."""
        if not self._open and chunk.find(b"\n\n") == len(chunk) - 2 >= 0 and b"\r" not in chunk:
            return [chunk]  # one whole event: the usual case
        held = len(self._open)
        events, self._open = split(self._open + chunk if held else chunk, max(0, held - 2))
        if len(self._open) > _MAX_OPEN:
            self._open = self._open[:_HEAD_BYTES] + self._open[-_TAIL_BYTES:]
        return events

    def finish(self) -> list[bytes]:
        """The events that the end of the stream completes: a last event without its empty line."""
        events, self._open = [self._open] if self._open else [], b""
        return events
