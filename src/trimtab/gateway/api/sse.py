"""Splits a byte stream with arbitrary chunk borders into server-sent events.

An event ends with an empty line; lines end with LF or CR LF. The standard also allows a lone CR, but no
inference server sends it. Such a stream would be one long event here, and would still be relayed completely.

A stream's usage is requested from the backend if the client did not, and its event is removed again. All
other bytes stay unchanged: the request is edited as text, and only the additional event is removed from
the stream.
"""

from __future__ import annotations

import re
from typing import Final

import orjson

from trimtab.gateway.api.json_scan import JsonScan

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


_NAME: Final = b"stream_options"
_ASKED: Final = b'"stream_options":{"include_usage":true},'
_OPEN: Final = re.compile(rb"\s*\{")
_EMPTY_OBJECT: Final = re.compile(rb"\{\s*\}")
_EMPTY_CHOICES: Final = re.compile(rb'"choices"\s*:\s*\[\s*\]')
_MAX_EVENT_BYTES: Final = 16_384  # a usage event has some hundred bytes


def inject_include_usage(body: bytes) -> bytes:
    """The body of a streaming chat or completion request, with usage requested.

    `body` must be a valid JSON object. It is returned unchanged if it already requests usage, or if its
    `stream_options` is not an object (the backend refuses that).
    """
    if not _may_have_options(body):
        return _inserted(body, _ASKED)
    scan = JsonScan({"stream_options": 65_536})
    scan.feed(body)
    value = scan.raw("stream_options")
    if value is None:
        return body if "stream_options" in scan.found else _inserted(body, _ASKED)
    start, end = scan.found["stream_options"]
    return body[:start] + _asking(value) + body[end:]


def _may_have_options(body: bytes) -> bool:
    """Whether a key may be `stream_options`, possibly written with escapes."""
    return _NAME in body or (b"\\u" in body and "stream_options" in orjson.loads(body))


def _inserted(text: bytes, member: bytes) -> bytes:
    """Insert a member as an object's first one. `member` ends with a comma."""
    opening = _OPEN.match(text)
    if opening is None:
        return text
    return text[: opening.end()] + member + text[opening.end() :]


def _asking(options: bytes) -> bytes:
    """The text of the options with `include_usage` true."""
    if options == b"null" or _EMPTY_OBJECT.fullmatch(options):
        return b'{"include_usage":true}'
    if not options.startswith(b"{"):
        return options
    scan = JsonScan({"include_usage": 64})
    scan.feed(options)
    if "include_usage" not in scan.found:
        return _inserted(options, b'"include_usage":true,')
    start, end = scan.found["include_usage"]
    return options[:start] + b"true" + options[end:]


class UsageStripper:
    """Removes the usage event from a stream: the event with usage and without choices.

    It holds back only incomplete events, which a client could not read yet either.
    """

    __slots__ = ("_open", "_passing", "stripped")

    def __init__(self) -> None:
        self._open = b""  # the beginning of an event that may be the usage event
        self._passing = False  # inside an event that is too long for a usage event
        self.stripped = 0  # removed events

    @property
    def is_empty(self) -> bool:
        """Whether no bytes are held back and no event has begun."""
        return not self._open and not self._passing

    def feed(self, chunk: bytes) -> bytes:
        """Process bytes. Returns the bytes for the client."""
        whole = not self._open and not self._passing and chunk.endswith(b"\n\n")
        return chunk if whole and _EMPTY_CHOICES.search(chunk) is None else self._sifted(chunk)

    def _sifted(self, chunk: bytes) -> bytes:
        held = len(self._open)
        events, rest = split(self._open + chunk, max(0, held - 2))
        out = []
        for event in events:
            if self._passing or not is_usage_event(event):
                out.append(event)
            else:
                self.stripped += 1
            self._passing = False
        if len(rest) > _MAX_EVENT_BYTES:
            self._passing = True
        if self._passing:  # keep two bytes, to find an event's end across the border
            out.append(rest[:-2])
            rest = rest[-2:]
        self._open = rest
        return b"".join(out)

    def finish(self) -> bytes:
        """End the stream. Returns the bytes that were held back."""
        rest, self._open = self._open, b""
        if rest and not self._passing and is_usage_event(rest):
            self.stripped += 1
            return b""
        return rest


def is_usage_event(event: bytes) -> bool:
    """Whether this is the event that `include_usage` adds."""
    if len(event) > _MAX_EVENT_BYTES or USAGE not in event or _EMPTY_CHOICES.search(event) is None:
        return False
    try:
        payload = orjson.loads(data_of(event))
    except orjson.JSONDecodeError:
        return False
    return type(payload) is dict and payload.get("choices") == [] and type(payload.get("usage")) is dict
