"""Parses nodes' responses: heads, and the framing of bodies."""

from __future__ import annotations

import re
from enum import Enum

MAX_HEAD_BYTES = 65_536
MAX_CHUNK_LINE_BYTES = 4_096
MAX_TRAILER_BYTES = 16_384
MAX_RETRY_AFTER_S = 3_600.0

_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_VALUE = rb"[^\x00-\x08\x0a-\x1f\x7f]*"
_HEAD = re.compile(
    rb"HTTP/1\.([01]) ([1-9][0-9][0-9])(?: "
    + _VALUE
    + rb")?\r\n(?:"
    + _TOKEN
    + rb":"
    + _VALUE
    + rb"\r\n)*\r\n"
)
_LINE = re.compile(_TOKEN + rb":" + _VALUE)
_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t]*;" + _VALUE + rb")?\r\n")
_PLAIN_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})\r\n")
_LENGTH = re.compile(rb"\r\n[Cc]ontent-[Ll]ength: ([0-9]{1,15})\r\n")
REMEMBERED_HEADS = 256
REMEMBERED_BYTES = 1_024  # longer heads are not cached

# Headers of one connection (hop-by-hop), and headers that the gateway writes itself.
_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
_OURS = frozenset((b"x-request-id", b"x-trimtab-node"))
_LOOKED_AT = _HOP | _OURS | {b"content-length", b"content-type", b"retry-after", b"content-encoding"}


# What the gateway's own lines hold → the prefix of a node's headers that they replace.
_REPLACED = ((b"x-ratelimit-", b"x-ratelimit-"), (b"vary: origin", b"access-control-"))


class BadResponseError(Exception):
    """The node's bytes are not HTTP, or they contradict each other."""


class Length(Enum):
    """How the end of a body is marked."""

    NONE = "none"
    COUNTED = "counted"
    CHUNKED = "chunked"
    CLOSE = "close"


_COUNTED, _CHUNKED, _CLOSE = Length.COUNTED, Length.CHUNKED, Length.CLOSE


class ResponseHead:
    """A final response's head, rewritten for the client. `lines`: the forwarded lines, each with its CRLF.

    It is immutable once it is parsed, because responses share it.
    """

    __slots__ = (
        "block",
        "coding",
        "content_length",
        "content_type",
        "is_plain",
        "json",
        "keep_alive",
        "length",
        "lines",
        "retry_after",
        "status",
        "status_line",
        "stream",
    )

    def __init__(self, status: int, status_line: bytes) -> None:
        self.status = status
        self.status_line = status_line  # with CRLF
        self.lines: list[bytes] = []
        self.block = b""  # status line and `lines`, joined
        self.length = Length.CLOSE
        self.content_length = 0
        self.content_type = b""
        self.stream = False  # server-sent events
        self.json = False
        self.retry_after = b""
        self.coding = b""  # content coding: gzip, …; b"" = none
        self.keep_alive = True
        self.is_plain = False  # counted body, no stream, no error of the node, keep-alive

    @property
    def retry_after_s(self) -> float:
        """The Retry-After header in seconds. Dates are ignored."""
        value = self.retry_after
        return min(float(value), MAX_RETRY_AFTER_S) if value.isdigit() and len(value) < 10 else 0.0

    def of_length(self, content_length: int) -> ResponseHead:
        """The same head with another body length."""
        head = _new(ResponseHead)
        head.status = self.status
        head.status_line = self.status_line
        head.lines = self.lines
        head.block = self.block
        head.length = _COUNTED
        head.content_length = content_length
        head.content_type = self.content_type
        head.stream = self.stream
        head.json = self.json
        head.retry_after = self.retry_after
        head.coding = self.coding
        head.keep_alive = self.keep_alive
        head.is_plain = self.is_plain
        return head

    def uncoded(self) -> ResponseHead:
        """The same head for a body without its content coding."""
        head = self.of_length(self.content_length)
        head.length, head.coding = self.length, b""
        head.lines = [line for line in self.lines if not line.lower().startswith(b"content-encoding:")]
        head.block = head.status_line + b"".join(head.lines)
        return head

    def block_beside(self, own: bytes) -> bytes:
        """`block` without the lines that `own`, header lines of the gateway, replace."""
        replaced = tuple(prefix for mark, prefix in _REPLACED if mark in own)
        if not replaced:
            return self.block
        return self.status_line + b"".join(
            line for line in self.lines if not line.lower().startswith(replaced)
        )


_new = object.__new__


_known: dict[tuple[bytes, bytes | None], ResponseHead] = {}  # key: the bytes before and after the length


def parse_head(raw: bytes, method: str) -> ResponseHead:
    """Parse a head that ends with an empty line. Raises BadResponseError."""
    if len(raw) > REMEMBERED_BYTES or method == "HEAD":
        return _read(raw, method)
    length = _LENGTH.search(raw)
    key: tuple[bytes, bytes | None] = (raw, None)
    size = 0
    if length is not None:
        start, stop = length.span(1)
        key, size = (raw[:start], raw[stop:]), int(length[1])
    known = _known.get(key)
    if known is None:
        known = _read(raw, method)
        if known.length is _COUNTED or known.length is _CHUNKED:
            if len(_known) >= REMEMBERED_HEADS:
                _known.clear()
            _known[key] = known
        return known
    return known if length is None else known.of_length(size)


def whole_head(data: bytes, end: int) -> ResponseHead | None:
    """The cached head of a response that `data` holds completely; not for responses to HEAD.

    `data[:end]` is the head. None = the head is not cached or not `is_plain`, or `data` is longer or shorter
    than the response. The content length of the returned head may belong to another body.
    """
    length = _LENGTH.search(data, 0, end)
    if length is None:
        return None
    start, stop = length.span(1)
    known = _known.get((data[:start], data[stop:end]))
    if known is None or not known.is_plain or int(length[1]) != len(data) - end:
        return None
    return known


def _read(raw: bytes, method: str) -> ResponseHead:
    match = _HEAD.fullmatch(raw)
    if match is None:
        raise BadResponseError("malformed head")
    first, *lines = raw.split(b"\r\n")
    head = ResponseHead(int(match[2]), b"HTTP/1.1" + first[8:] + b"\r\n")
    head.keep_alive = match[1] == b"1"
    seen: dict[bytes, bytes] = {}
    keep = head.lines
    for line in lines[:-2]:
        name = line[: line.index(b":")].lower()
        if name in _LOOKED_AT:
            _note(seen, name, line[len(name) + 1 :].strip(b" \t"))
            if name in _HOP or name in _OURS or name == b"content-length":
                continue
        elif name.startswith(b"x-trimtab-"):
            continue
        keep.append(line + b"\r\n")
    head.content_type = seen.get(b"content-type", b"").lower()
    head.stream = head.content_type.startswith(b"text/event-stream")
    head.json = head.content_type.startswith(b"application/json")
    head.retry_after = seen.get(b"retry-after", b"")
    coding = seen.get(b"content-encoding", b"identity").lower()
    head.coding = b"" if coding == b"identity" else coding
    if b"connection" in seen:
        _connection(head, seen[b"connection"].lower())
    _frame(head, seen, method)
    head.block = head.status_line + b"".join(head.lines)
    counted = head.length is _COUNTED and head.content_length > 0
    head.is_plain = counted and head.keep_alive and not head.stream and 200 <= head.status < 429
    return head


def _note(seen: dict[bytes, bytes], name: bytes, value: bytes) -> None:
    if name in seen:
        if name == b"content-length":
            raise BadResponseError("two content lengths")
        value = seen[name] + b", " + value
    seen[name] = value


def _connection(head: ResponseHead, value: bytes) -> None:
    """Apply the connection header: keep-alive or close, and names of headers that are not forwarded."""
    named = {token.strip() for token in value.split(b",")}
    if b"close" in named:
        head.keep_alive = False
    elif b"keep-alive" in named:
        head.keep_alive = True
    named -= {b"close", b"keep-alive", b"content-type", b""}
    if named:
        head.lines = [line for line in head.lines if line[: line.index(b":")].lower() not in named]


def _frame(head: ResponseHead, seen: dict[bytes, bytes], method: str) -> None:
    """Determine where the body ends (RFC 9112, section 6.3)."""
    length = seen.get(b"content-length")
    coding = seen.get(b"transfer-encoding")
    if length is not None:
        if coding is not None or not length.isdigit() or len(length) > 18:
            raise BadResponseError("contradicting or malformed length")
        head.content_length = int(length)
    if coding is not None and coding.lower() != b"chunked":
        raise BadResponseError("unknown transfer coding")
    if method == "HEAD" or head.status in (204, 304):
        head.length = Length.NONE
        if length is not None and head.status != 204:
            head.lines.append(b"content-length: %d\r\n" % head.content_length)
    elif coding is not None:
        head.length = Length.CHUNKED
    elif length is not None:
        head.length = Length.COUNTED
    if head.length is Length.CLOSE:
        head.keep_alive = False


class Chunks:
    """Parses a chunked body from pieces with arbitrary borders.

    The body is forwarded unchanged, except that chunk extensions and trailers are removed.
    """

    __slots__ = ("_left", "_line", "_state", "_trailer", "done", "extra", "payload")

    def __init__(self) -> None:
        self._state = 0  # 0 size line, 1 data, 2 CRLF after data, 3 trailer
        self._left = 0  # bytes left of the chunk's data
        self._line = b""  # an incomplete size line or other incomplete piece
        self._trailer = 0
        self.payload = b""  # the body bytes of the last `feed`
        self.done = False
        self.extra = False  # bytes arrived after the end

    @property
    def at_border(self) -> bool:
        """Whether the forwarded bytes end with a whole chunk, so that a chunk may be inserted here."""
        return self._state in (0, 3)

    @property
    def is_between(self) -> bool:
        """Whether the input so far ends with a whole chunk that was not the last."""
        return self._state == 0 and not self._line

    def feed(self, data: bytes) -> bytes:
        """Parse bytes. Returns the bytes to forward; a partial size line waits. Raises BadResponseError."""
        if self._line:
            data = self._line + data
            self._line = b""
        if self._state == 0:
            match = _PLAIN_CHUNK_LINE.match(data)
            if match is not None:
                start = match.end()
                size = int(match[1], 16)
                if size and start + size + 2 == len(data) and data.endswith(b"\r\n"):
                    self.payload = data[start:-2]  # the usual case: one whole chunk
                    return data
        return self._walk(data)

    def _walk(self, data: bytes) -> bytes:
        pieces: list[bytes] = []
        out: list[bytes] = []  # forwarded bytes before `copied`
        at, end, copied = 0, len(data), 0
        handed = 0  # end of the bytes to forward; the last chunk and trailers are written again at the end
        while at < end and not self.done:
            if self._state == 1:
                taken = min(self._left, end - at)
                pieces.append(data[at : at + taken])
                at += taken
                self._left -= taken
                if not self._left:
                    self._state = 2
            else:
                after = self._piece(data, at)
                if after < 0:
                    self._line = data[at:]
                    break
                if self._state == 1 and not _PLAIN_CHUNK_LINE.fullmatch(data, at, after):
                    out += (data[copied:at], b"%x\r\n" % self._left)
                    copied = after
                at = after
            if self._state != 3:
                handed = at
        self.payload = b"".join(pieces)
        if self.done:
            self.extra = at < end
            out += (data[copied:handed], b"0\r\n\r\n")
        elif not copied:
            return data[:handed]
        else:
            out.append(data[copied:handed])
        return b"".join(out)

    def _piece(self, data: bytes, at: int) -> int:
        """Parse a size line, the CRLF after data, or a trailer line. Returns its end (-1 = incomplete)."""
        if self._state == 0:
            match = _CHUNK_LINE.match(data, at)
            if match is None:
                return self._incomplete(data, at, MAX_CHUNK_LINE_BYTES)
            self._left = int(match[1], 16)
            self._state = 1 if self._left else 3
            return match.end()
        if self._state == 2:
            if data[at : at + 2] == b"\r\n":
                self._state = 0
                return at + 2
            if data[at:] == b"\r":
                return -1
            raise BadResponseError("chunk longer than its size")
        line_end = data.find(b"\r\n", at)
        if line_end < 0:
            return self._incomplete(data, at, MAX_TRAILER_BYTES)
        if line_end == at:
            self.done = True
        else:
            if _LINE.fullmatch(data, at, line_end) is None:
                raise BadResponseError("malformed trailer")
            self._trailer += line_end - at
            if self._trailer > MAX_TRAILER_BYTES:
                raise BadResponseError("trailer too long")
        return line_end + 2

    def _incomplete(self, data: bytes, at: int, limit: int) -> int:
        if len(data) - at > limit or b"\n" in data[at:]:
            raise BadResponseError("malformed chunk")
        if self._state == 0 and not _CHUNK_START.fullmatch(data, at):
            raise BadResponseError("malformed chunk size")
        return -1


_CHUNK_START = re.compile(rb"[0-9A-Fa-f]{1,15}(?:[ \t]*(?:;" + _VALUE + rb")?)?\r?")
