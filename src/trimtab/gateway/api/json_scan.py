"""Finds chosen top-level members of a large JSON object that arrives in pieces, in bounded memory.

The scanner follows valid JSON and does not validate: the backend refuses invalid text that the scanner
accepts. If a member occurs twice, the last one counts, as in Python's parsers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

import orjson

_SPACE: Final = re.compile(rb"[ \t\r\n]*+")
_FLAT: Final = re.compile(
    rb'(?:[^"{}\[\]]++|"[^"\\]{0,4096}+")*+'
)  # no bracket, no long or unfinished string
_SCALAR: Final = re.compile(rb"[^,}\]\s]*+")
_BASE64: Final = re.compile(rb"[A-Za-z0-9+/=_-]{64}")
_MEDIA_BYTES: Final = 4_096  # a longer string may be a picture's
_HEAD_BYTES: Final = 256  # inspected bytes of a string, and the limit of a member's name
_CLOSING: Final = re.compile(rb'(?<!\\)(?:\\\\)*+"')  # after an even number of backslashes
_MAX_FINDS: Final = 16  # `find` is faster for a few escaped quotes, the pattern for many
_MAX_STEPS: Final = 400_000  # brackets and long strings: bounds the time of one body

_NEAR: Final = 64  # nearly always, a row of backslashes is shorter
_QUOTE, _COLON, _COMMA, _BACKSLASH = b'":,\\'
_OPENERS: Final = b"{["
_CLOSERS: Final = b"}]"


class JsonScan:
    """A scanner for one object. After `feed`, read `found`, `raw`, `text_bytes` and `media`."""

    __slots__ = (
        "_begin",
        "_depth",
        "_escaped",
        "_fed",
        "_head",
        "_keep",
        "_key",
        "_open_value",
        "_state",
        "_steps",
        "_string_bytes",
        "_value",
        "_value_at",
        "_values",
        "done",
        "found",
        "media",
        "media_bytes",
        "problem",
    )

    def __init__(self, keep: Mapping[str, int]) -> None:
        """`keep`: wanted member → bytes of its value's text to keep."""
        self.found: dict[str, tuple[int, int]] = {}  # member → (start, end) of its value in all bytes fed
        self.problem = ""  # why the text is not a JSON object; empty = no problem so far
        self.done = False  # the object is closed
        self.media = 0  # number of strings that hold pictures or sound
        self.media_bytes = 0
        self._keep = keep
        self._values: dict[str, bytes] = {}
        self._fed = 0  # bytes of earlier chunks
        self._steps = 0
        self._state: Callable[[bytes, int], int] = self._before_object
        self._depth = 0
        self._head = b""  # the current string's first bytes
        self._string_bytes = 0
        self._escaped = False  # the last chunk ended in a backslash
        self._key = ""
        self._open_value = False
        self._value = bytearray()
        self._value_at = 0  # its start, counted in all bytes fed
        self._begin = 0  # the start of it, or of its rest, in the current chunk

    @property
    def text_bytes(self) -> int:
        """Bytes fed, except those of pictures and sound."""
        return self._fed - self.media_bytes

    def raw(self, key: str) -> bytes | None:
        """The text of a member's value; None = no such member, or its text is longer than the limit."""
        start, end = self.found.get(key, (0, -1))
        value = self._values.get(key, b"")
        return value if len(value) == end - start else None

    def beginning(self, key: str) -> bytes:
        """The kept beginning of the text of a member's value."""
        return self._values.get(key, b"")

    def feed(self, chunk: bytes) -> None:
        """Scan the next bytes of the text."""
        at, end = 0, len(chunk)
        while at < end and not self.problem:
            at = self._state(chunk, at)
            self._steps += 1
            if self._steps > _MAX_STEPS:
                self.problem = "it has too many parts"
        if self._open_value:
            self._take(chunk, end)
            self._begin = 0
        self._fed += end

    def _take(self, chunk: bytes, end: int) -> None:
        room = self._keep.get(self._key, 0) - len(self._value)
        if room > 0:
            self._value += chunk[self._begin : min(end, self._begin + room)]

    # The states. Each one reads from `at` in the chunk and returns the position that it has reached.

    def _before_object(self, chunk: bytes, at: int) -> int:
        at = _after_space(chunk, at)
        if at == len(chunk):
            return at
        if chunk[at] != _OPENERS[0]:
            self.problem = "it is no JSON object"
        self._state = self._before_key
        return at + 1

    def _before_key(self, chunk: bytes, at: int) -> int:
        at = _after_space(chunk, at)
        if at == len(chunk):
            return at
        if chunk[at] == _QUOTE:
            self._begin_string(self._in_key)
        elif chunk[at] == _CLOSERS[0]:
            self.done = True
            self._state = self._after_object
        elif chunk[at] != _COMMA:
            self.problem = "the name of a member is missing"
        return at + 1

    def _in_key(self, chunk: bytes, at: int) -> int:
        at, closed = self._through_string(chunk, at)
        if closed:
            self._key = self._decoded_key()
            self._state = self._before_colon
        return at

    def _decoded_key(self) -> str:
        if self._string_bytes > _HEAD_BYTES:
            return ""
        try:
            return str(orjson.loads(b'"' + self._head + b'"'))
        except orjson.JSONDecodeError:
            self.problem = "the name of a member is no valid string"
            return ""

    def _before_colon(self, chunk: bytes, at: int) -> int:
        at = _after_space(chunk, at)
        if at == len(chunk):
            return at
        if chunk[at] != _COLON:
            self.problem = "a colon is missing"
        self._state = self._before_value
        return at + 1

    def _before_value(self, chunk: bytes, at: int) -> int:
        at = _after_space(chunk, at)
        if at == len(chunk):
            return at
        self._open_value, self._value = True, bytearray()
        self._begin, self._value_at = at, self._fed + at
        if chunk[at] == _QUOTE:
            self._begin_string(self._in_value_string)
        elif chunk[at] in _OPENERS:
            self._depth, self._state = 1, self._in_nested
        else:
            self._state = self._in_scalar
            return at
        return at + 1

    def _in_value_string(self, chunk: bytes, at: int) -> int:
        at, closed = self._through_string(chunk, at)
        if closed:
            self._end_value(chunk, at)
        return at

    def _in_scalar(self, chunk: bytes, at: int) -> int:
        found = _SCALAR.match(chunk, at)
        at = found.end() if found else at
        if at < len(chunk):
            self._end_value(chunk, at)
        return at

    def _in_nested(self, chunk: bytes, at: int) -> int:
        found = _FLAT.match(chunk, at)
        at = found.end() if found else at
        if at == len(chunk):
            return at
        if chunk[at] == _QUOTE:
            self._begin_string(self._in_nested_string)
        elif chunk[at] in _OPENERS:
            self._depth += 1
        else:
            self._depth -= 1
            if not self._depth:
                self._end_value(chunk, at + 1)
        return at + 1

    def _in_nested_string(self, chunk: bytes, at: int) -> int:
        at, closed = self._through_string(chunk, at)
        if closed:
            self._state = self._in_nested
        return at

    def _after_object(self, chunk: bytes, at: int) -> int:
        if _after_space(chunk, at) != len(chunk):
            self.problem = "something follows the object"
        return len(chunk)

    def _end_value(self, chunk: bytes, end: int) -> None:
        self._take(chunk, end)
        self._open_value = False
        self._state = self._before_key
        if self._key in self._keep:
            self.found[self._key] = (self._value_at, self._fed + end)
            self._values[self._key] = bytes(self._value)

    # Strings, used by all states.

    def _begin_string(self, state: Callable[[bytes, int], int]) -> None:
        self._head, self._string_bytes, self._state = b"", 0, state

    def _through_string(self, chunk: bytes, at: int) -> tuple[int, bool]:
        """The position after the string's part in this chunk with its closing quote; whether it closed."""
        end = self._closing_quote(chunk, at)
        closed = end >= 0
        if not closed:
            end = len(chunk)
            self._escaped = self._is_escaped(chunk, at, end)
        if len(self._head) < _HEAD_BYTES:
            self._head += chunk[at : min(end, at + _HEAD_BYTES - len(self._head))]
        self._string_bytes += end - at
        if closed:
            self._escaped = False
            self._count_media()
        return end + closed, closed

    def _closing_quote(self, chunk: bytes, at: int) -> int:
        """The position of the quote that closes the string at `at`; −1 = not in this chunk."""
        end = chunk.find(b'"', at)
        for _ in range(_MAX_FINDS):
            if end < 0 or not self._is_escaped(chunk, at, end):
                return end
            end = chunk.find(b'"', end + 1)
        found = _CLOSING.search(chunk, chunk.rfind(b'"', at, end) + 1) if end >= 0 else None
        return found.end() - 1 if found else -1

    def _is_escaped(self, chunk: bytes, begin: int, at: int) -> bool:
        """Whether an odd number of backslashes precedes `at`, in a part of a string from `begin` on."""
        if at == begin:
            return self._escaped
        if chunk[at - 1] != _BACKSLASH:
            return False
        near = chunk[max(begin, at - _NEAR) : at]
        if not near.strip(b"\\"):
            near = chunk[begin:at]
        run = len(near) - len(near.rstrip(b"\\"))
        return (run + (self._escaped and run == at - begin)) % 2 == 1

    def _count_media(self) -> None:
        if self._string_bytes <= _MEDIA_BYTES:
            return
        if self._head.startswith(b"data:") or _BASE64.match(self._head):
            self.media += 1
            self.media_bytes += self._string_bytes


def _after_space(chunk: bytes, at: int) -> int:
    found = _SPACE.match(chunk, at)
    return found.end() if found else at
