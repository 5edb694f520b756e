"""Reads the usage that a backend reports from its response while it is relayed."""

from __future__ import annotations

import re
from typing import Any, Final, Protocol

import orjson

from trimtab.gateway.api import sse
from trimtab.gateway.api.json_scan import JsonScan
from trimtab.gateway.api.sse import TYPE_BYTES, USAGE
from trimtab.gateway.model import Dialect, Endpoint, Kind, Usage

_RESPONSE: Final = Kind.RESPONSE
_USAGE: Final = re.compile(rb'"usage"\s*:\s*\{')
_ID: Final = re.compile(rb'"id"\s*:\s*"([^"\\]{1,256})"')
_FLAT: Final = re.compile(rb'"usage"\s*:\s*(\{[^{}]{0,1024}(?:\{[^{}]{0,1024}\}[^{}]{0,1024}){0,4}\})')
_TOTAL: Final = rb'"total_tokens"\s*:\s*[0-9]{1,9}\s*'
_PLAIN: Final = re.compile(  # the format of most servers
    rb'"usage"\s*:\s*\{\s*"prompt_tokens"\s*:\s*([0-9]{1,9})\s*,\s*(?:%b,\s*)?'
    rb'"completion_tokens"\s*:\s*([0-9]{1,9})\s*(?:,\s*%b)?\}' % (_TOTAL, _TOTAL)
)
_MAX_USAGE_BYTES: Final = 4_096
_MAX_BRACES: Final = 32
_MAX_SPACE_BYTES: Final = 32  # between a name and its object
_HEAD_BYTES: Final = 4_096
_TAIL_BYTES: Final = 16_384
_MAX_COUNT: Final = 10**9


def find_usage(data: bytes) -> Usage | None:
    """The last usage object in a piece of JSON text, or None. The piece may begin and end anywhere.

    A model's output cannot forge a usage object: inside strings the quotes of `"usage"` are escaped.
    """
    end = len(data)
    while (at := data.rfind(USAGE, 0, end)) >= 0:
        plain = _PLAIN.match(data, at)
        if plain and data[at - 1 : at] != b"\\":
            return Usage(int(plain[1]), int(plain[2]))
        flat = _FLAT.match(data, at)
        if flat and data[at - 1 : at] != b"\\":
            usage = _read(_parsed(flat[1]))  # the usual case
            if usage is not None:
                return usage
        found = _USAGE.match(data, at)
        if found and (at == 0 or data[at - 1] != 0x5C):
            usage = _read(_object_at(data, found.end() - 1))
            if usage is not None:
                return usage
        end = at
    return None


def whole_usages(data: bytes) -> tuple[list[Usage], bytes]:
    """The whole usage objects in this piece of JSON text, and the rest to put before the next piece."""
    found, begin = list[Usage](), 0
    while (at := data.find(USAGE, begin)) >= 0:
        begin = at + len(USAGE)
        if at and data[at - 1] == 0x5C:  # in a string
            continue
        opened = _USAGE.match(data, at)
        if opened is None and len(data) - at < _MAX_SPACE_BYTES:
            return found, data[at:]
        payload = _object_at(data, opened.end() - 1) if opened is not None else None
        if payload is None and opened is not None and len(data) - at < _MAX_USAGE_BYTES:
            return found, data[at:]
        usage = _read(payload)
        if usage is not None:
            found.append(usage)
    return found, data[max(begin, len(data) - len(USAGE)) :]


def _object_at(data: bytes, start: int) -> Any:
    """The object that begins at `start` and ends at the first brace that makes it valid JSON."""
    limit = start + _MAX_USAGE_BYTES
    end = start
    for _ in range(_MAX_BRACES):
        end = data.find(b"}", end, limit) + 1
        if not end:
            return None
        if data.count(b"{", start, end) <= data.count(b"}", start, end):
            payload = _parsed(data[start:end])
            if payload is not None:
                return payload
    return None


def _parsed(data: bytes) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return None


def _read(payload: Any) -> Usage | None:
    """A usage object of any API."""
    if type(payload) is not dict:
        return None
    if "prompt_tokens" in payload or "completion_tokens" in payload:
        details = payload.get("prompt_tokens_details")
        cached = _count(details, "cached_tokens") if details else 0
        return Usage(
            _bounded(payload.get("prompt_tokens")), _bounded(payload.get("completion_tokens")), cached
        )
    if "input_tokens" in payload or "output_tokens" in payload:
        return _read_input_output(payload)
    if "total_tokens" in payload:  # rerankers and some embedding servers
        return Usage(_count(payload, "total_tokens"))
    return None


def _read_input_output(payload: dict[str, Any]) -> Usage:
    """Usage with input and output tokens. The Responses API includes cached tokens, Anthropic's does not."""
    read = _count(payload, "cache_read_input_tokens")
    prompt = _count(payload, "input_tokens") + read + _count(payload, "cache_creation_input_tokens")
    cached = read or _count(payload.get("input_tokens_details"), "cached_tokens")
    return Usage(prompt, _count(payload, "output_tokens"), cached)


def _count(payload: Any, name: str) -> int:
    return _bounded(payload.get(name)) if type(payload) is dict else 0


def _bounded(value: Any) -> int:
    if type(value) is not int or value < 0:
        return 0
    return value if value < _MAX_COUNT else _MAX_COUNT


def _merged(old: Usage | None, new: Usage) -> Usage:
    """Merge two reports: Anthropic's stream reports the prompt first, the output last; counts only grow."""
    if old is None:
        return new
    return Usage(
        max(old.prompt_tokens, new.prompt_tokens),
        max(old.completion_tokens, new.completion_tokens),
        max(old.cached_tokens, new.cached_tokens),
    )


class Meter(Protocol):
    """Reads the body of a response while it is relayed, in bounded memory."""

    usage: Usage | None  # the latest reported usage
    response_id: str  # id in the Responses API, for `previous_response_id`; else empty
    ended: bool  # the stream's own last event was read; for plain bodies the length marks the end
    content: bytes  # bytes that mark an event of content; empty = events are not counted

    def feed(self, chunk: bytes) -> int:
        """Read the next bytes of the body. Returns the number of content chunks in them (about tokens)."""

    @property
    def is_between_events(self) -> bool:
        """Whether a next event with `content` in its first `TYPE_BYTES` and without usage is only counted."""

    def finish(self) -> None:
        """End the body."""


def meter_for(endpoint: Endpoint, content_type: str) -> Meter:
    """The meter of a response with this Content-Type."""
    if content_type[:17].lower() == "text/event-stream":
        return StreamMeter(endpoint.kind, endpoint.dialect)
    return BodyMeter(endpoint.kind)


class BodyMeter:
    """Reads usage and id of a plain JSON response from its first 4 KiB and its last 16 KiB."""

    __slots__ = ("_head", "_kind", "_tail", "ended", "response_id", "usage")

    content = b""
    is_between_events = False

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self._head = b""
        self._tail = b""
        self.usage: Usage | None = None
        self.response_id = ""
        self.ended = False

    def feed(self, chunk: bytes) -> int:
        """Read the next bytes. No content chunks are counted before the end."""
        if len(self._head) < _HEAD_BYTES:
            self._head += chunk[: _HEAD_BYTES - len(self._head)]
        tail = self._tail + chunk if self._tail and len(chunk) < _TAIL_BYTES else chunk
        self._tail = tail[-_TAIL_BYTES:] if len(tail) > 2 * _TAIL_BYTES else tail
        return 0

    def finish(self) -> None:
        """End the body: search the usage in its end, then in its beginning."""
        self.usage = find_usage(self._tail) or find_usage(self._head)
        if self._kind is _RESPONSE:
            self.response_id = _top_level_id(self._head)
        self._head = self._tail = b""
        self.ended = True


def read_answer(kind: Kind, body: bytes) -> tuple[Usage | None, str]:
    """Usage and response id of a complete plain JSON response."""
    if len(body) <= _TAIL_BYTES:
        return find_usage(body), _top_level_id(body[:_HEAD_BYTES]) if kind is _RESPONSE else ""
    meter = BodyMeter(kind)
    meter.feed(body)
    meter.finish()
    return meter.usage, meter.response_id


def _top_level_id(head: bytes) -> str:
    scan = JsonScan({"id": 300})
    scan.feed(head)
    value = _parsed(scan.raw("id") or b"null")
    return value if type(value) is str else ""


class StreamMeter:
    """Reads usage, content chunks, id and end of an event stream."""

    __slots__ = ("_kind", "_last", "_splitter", "content", "ended", "response_id", "usage")

    def __init__(self, kind: Kind, dialect: Dialect) -> None:
        self._kind = kind
        self._splitter = sse.EventSplitter()
        self.usage: Usage | None = None
        self.response_id = ""
        self.ended = False
        if dialect is Dialect.ANTHROPIC:
            self.content: bytes = b"content_block_delta"
            self._last: tuple[bytes, ...] = (b"message_stop",)
        elif kind in (Kind.CHAT, Kind.COMPLETION):
            self.content = _CHOICES
            self._last = (b"[DONE]",)
        else:
            self.content = b".delta"
            self._last = _LAST_TYPES

    def feed(self, chunk: bytes) -> int:
        """Read the next bytes. Returns the number of content events that they complete."""
        content = 0
        for event in self._splitter.feed(chunk):
            content += self._meet(event)
        return content

    @property
    def is_between_events(self) -> bool:
        """Whether all input so far was whole events, and the id is known (Responses API)."""
        return self._splitter.is_empty and (self.response_id != "" or self._kind is not _RESPONSE)

    def finish(self) -> None:
        """End the stream. A last event without its empty line counts too."""
        for event in self._splitter.finish():
            self._meet(event)

    def _meet(self, event: bytes) -> int:
        if USAGE in event:
            usage = find_usage(event)
            if usage is not None:
                self.usage = _merged(self.usage, usage)
                if self.content == _CHOICES:
                    return 0
        if self._kind is _RESPONSE and not self.response_id:
            self.response_id = _stream_id(event)
        if event.find(self.content, 0, TYPE_BYTES) >= 0:
            return 1
        if not self.ended:
            head = event[:TYPE_BYTES]
            self.ended = any(last in head for last in self._last)
        return 0


_CHOICES: Final = b'"choices"'
_LAST_TYPES: Final = (
    b"response.completed",
    b"response.failed",
    b"response.incomplete",
    b"image_generation.completed",
    b"image_edit.completed",
    b"speech.audio.done",
    b"transcript.text.done",
    b"[DONE]",
)


def _stream_id(event: bytes) -> str:
    """The id in `response.created`: the first key of the object `response`."""
    at = event.find(b'"response"')
    found = _ID.search(event, at, at + _HEAD_BYTES) if at >= 0 else None
    return found[1].decode("utf-8", "replace") if found else ""
