"""Reads multipart/form-data in pieces: whole small fields, and the size and first bytes of files."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

_BOUNDARY: Final = re.compile(
    r"""multipart/form-data\s*;(?:.*;)?\s*boundary=(?:"([^"]{1,70})"|([^\s;"]{1,70}))\s*(?:;|$)""",
    re.IGNORECASE,
)
_PARAMETER: Final = re.compile(rb';\s*([!#-+.\w-]+)=(?:"((?:[^"\\]|\\.)*)"|([^\s;"]+))\s*')
_DISPOSITION: Final = re.compile(rb"content-disposition:\s*form-data\s*(?=;)", re.IGNORECASE)
_MAX_PARTS: Final = 256
_MAX_HEADERS_BYTES: Final = 8_192
KEPT_BYTES: Final = 65_536
"""Kept bytes of a part: enough for a whole field, or for the beginning of a file."""


def boundary_of(content_type: str) -> bytes | None:
    """The boundary in a Content-Type of multipart/form-data, or None."""
    found = _BOUNDARY.match(content_type)
    if found is None:
        return None
    boundary: str = found[1] or found[2]
    return boundary.encode("ascii", "replace")


@dataclass(slots=True)
class Part:
    """One field or file of a form."""

    name: str
    is_file: bool
    at: int = 0  # start of its content, counted in all bytes fed
    size: int = 0  # bytes
    kept: bytearray = field(default_factory=bytearray)  # the first 64 KiB
    filename: str = ""

    @property
    def text(self) -> str:
        """The kept part of the field's text."""
        return self.kept.decode("utf-8", "replace")


class MultipartScan:
    """A scanner for one body. `parts`: its parts; `problem`: an error; `done`: whether its end was read."""

    __slots__ = ("_at", "_held", "_in_body", "_mark", "_part", "done", "parts", "problem")

    def __init__(self, boundary: bytes) -> None:
        self.parts: list[Part] = []
        self.problem = ""  # empty = no problem so far
        self.done = False
        self._mark = b"\r\n--" + boundary
        self._held = b"\r\n"  # so that the first boundary looks like the others
        self._at = -len(self._held)  # start of `_held`, counted in all bytes fed
        self._in_body = True
        self._part: Part | None = None  # None in the preamble

    def feed(self, chunk: bytes) -> None:
        """Scan the next bytes of the body."""
        data = self._held + chunk if self._held else chunk
        at: int | None = 0
        while at is not None and not self.problem and not self.done:
            begin = at
            at = self._body(data, begin) if self._in_body else self._headers(data, begin)
            if at is None:
                self._at += len(data) - len(self._held)
                return
        self._at += len(data)
        self._held = b""

    def _body(self, data: bytes, at: int) -> int | None:
        """Read to the next boundary. None = the data is used up; a possible start of a boundary is held."""
        end = data.find(self._mark, at)
        if end < 0:
            keep = max(at, len(data) - len(self._mark) + 1)
            self._add(data, at, keep)
            self._held = data[keep:]
            return None
        after = end + len(self._mark)
        if len(data) < after + 2:
            self._add(data, at, end)
            self._held = data[end:]
            return None
        self._add(data, at, end)
        return self._after_mark(data, after)

    def _after_mark(self, data: bytes, at: int) -> int:
        follows = data[at : at + 2]
        if follows == b"--":
            self.done = True
        elif follows == b"\r\n":
            self._in_body = False
        else:
            self.problem = "a boundary is followed by something else than a new line"
        return at + 2

    def _add(self, data: bytes, start: int, end: int) -> None:
        part = self._part
        if part is None or end <= start:
            return
        part.size += end - start
        room = KEPT_BYTES - len(part.kept)
        if room > 0:
            part.kept += data[start : min(end, start + room)]

    def _headers(self, data: bytes, at: int) -> int | None:
        end = data.find(b"\r\n\r\n", at)
        if end < 0:
            if len(data) - at > _MAX_HEADERS_BYTES:
                self.problem = "the headers of a part are too long"
            self._held = data[at:]
            return None
        self._begin_part(data[at:end], self._at + end + 4)
        self._in_body = True
        return end + 4

    def _begin_part(self, headers: bytes, at: int) -> None:
        names = _disposition(headers)
        if names is None or b"name" not in names:
            self.problem = "a part has no name"
            return
        if len(self.parts) >= _MAX_PARTS:
            self.problem = "it has too many parts"
            return
        name = names[b"name"].decode("utf-8", "replace")
        self._part = Part(name, b"filename" in names or b"filename*" in names, at)
        self._part.filename = names.get(b"filename", b"").decode("utf-8", "replace")
        self.parts.append(self._part)


def _disposition(headers: bytes) -> dict[bytes, bytes] | None:
    """The parameters of Content-Disposition; None = two servers could read them differently."""
    lines = headers.split(b"\r\n")
    if len(headers) > _MAX_HEADERS_BYTES or any(line[:1] in (b" ", b"\t") for line in lines):
        return None
    lines = [line for line in lines if line[:19].lower() == b"content-disposition"]
    start = _DISPOSITION.match(lines[0]) if len(lines) == 1 else None
    return _parameters(lines[0], start.end()) if start else None


def _parameters(line: bytes, at: int) -> dict[bytes, bytes] | None:
    found: dict[bytes, bytes] = {}
    while at < len(line):
        parameter = _PARAMETER.match(line, at)
        if parameter is None:
            return None
        name, at = parameter[1].lower(), parameter.end()
        if name in found or name == b"name*":
            return None
        found[name] = parameter[2] if parameter[2] is not None else parameter[3]
    return None if b"\\" in found.get(b"name", b"") else found
