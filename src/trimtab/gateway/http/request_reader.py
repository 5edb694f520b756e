"""Reads requests: heads, with stricter checks than the parser's, and bodies."""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Protocol

import httptools

from trimtab.gateway.api.endpoints import split_target
from trimtab.gateway.http.request import (
    HINTS,
    KEY_IN_PROTOCOL,
    REQUEST_ID,
    KnownHeads,
    MalformedError,
    Request,
    key_of,
    malformed,
)
from trimtab.gateway.model import Refusal

_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
_TARGET = re.compile(rb"/[!-\"$-~]*")

# Allowed at most once: with two of them, two programs could understand two different requests.
_SINGLE = frozenset(
    (
        b"authorization",
        b"content-length",
        b"content-type",
        b"expect",
        b"host",
        b"transfer-encoding",
        b"upgrade",
        b"x-api-key",
        b"x-request-id",
    )
)
# Never forwarded: headers of this connection, the client's secrets, or headers that the gateway writes again.
_STOPS = frozenset(
    (
        b"accept-encoding",  # the gateway reads usage from responses, so they must not be compressed
        b"api-key",
        b"authorization",
        b"connection",
        b"content-length",
        b"cookie",
        b"expect",
        b"forwarded",
        b"host",
        b"http2-settings",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"sec-websocket-protocol",  # browsers can send a key in it: written again without the key
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"x-api-key",
        b"x-forwarded-for",
        b"x-forwarded-host",
        b"x-forwarded-proto",
        b"x-real-ip",
        b"x-request-id",
    )
)
_KEPT_WHEN_NAMED = frozenset((b"content-type", b"traceparent", b"tracestate"))
_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n"
_LENGTH = re.compile(rb"\r\n[Cc]ontent-[Ll]ength: ([0-9]{1,15})\r\n")
REMEMBERED_BYTES = 2_048  # longer heads are not cached


class Receiver(Protocol):
    """Takes requests from a reader. The reader calls it during `feed`."""

    def request_head(self, request: Request) -> None:
        """The head is complete and well-formed."""

    def request_body(self, request: Request, piece: bytes) -> None:
        """A piece of the body."""

    def request_complete(self, request: Request) -> None:
        """The request is complete."""


class RequestReader:
    """Parses a client's bytes with llhttp. Cached heads are not parsed again."""

    __slots__ = (
        "_candidate",
        "_head_limit",
        "_header_limit",
        "_in_head",
        "_known",
        "_last",
        "_left",
        "_memory_bytes",
        "_parser",
        "_receiver",
        "_reset",
        "request",
    )

    def __init__(
        self,
        receiver: Receiver,
        head_bytes: int,
        header_count: int,
        memory_bytes: int,
        known: KnownHeads | None = None,
    ) -> None:
        self._receiver = receiver
        self._known = KnownHeads() if known is None else known
        self._candidate: tuple[bytes, bytes] | None = None  # the head that is being parsed
        self._left = 0  # bytes left of the body after a cached head
        self._last = False  # no further request may follow
        self._head_limit = head_bytes
        self._header_limit = header_count
        self._memory_bytes = memory_bytes
        self._parser = httptools.HttpRequestParser(self)
        self._in_head = True
        self._reset = False  # a synthetic head is fed, so that a new parser knows the framing of the body
        self.request: Request | None = None  # the request that is arriving

    def feed(self, data: bytes) -> bytes:
        """Parse bytes. Returns the bytes that follow an upgrade. Raises MalformedError."""
        if self._left:
            data = self._more(data)
        while data and self.request is None and not self._last:
            end = data.find(b"\r\n\r\n", 0, REMEMBERED_BYTES) + 4
            length = _LENGTH.search(data, 0, end)
            if end < 4 or length is None or end > self._head_limit:
                break
            start, stop = length.span(1)
            head = data[:start], data[stop:end]
            known = self._known.get(head)
            if known is None:
                self._candidate = head
                break
            data = self._again(known, int(length[1]), data, end)
        return self._parse(data) if data else b""

    def _again(self, known: Request, size: int, data: bytes, end: int) -> bytes:
        """Read a request with a cached head. Returns the bytes that follow it."""
        request = self.request = known.again(size, self._memory_bytes)
        receiver = self._receiver
        receiver.request_head(request)
        stop = end + size
        if stop > len(data):
            self._left = size
            return self._more(data[end:]) if end < len(data) else b""
        if size:
            receiver.request_body(request, data[end:stop])
        self.request = None
        request.complete = True
        receiver.request_complete(request)
        return data[stop:]

    def _more(self, data: bytes) -> bytes:
        """Read body bytes of a known length. Returns the bytes that follow the body."""
        request = self.request
        assert request is not None
        left = self._left - len(data)
        if left > 0:
            self._left = left
            self._receiver.request_body(request, data)
            return b""
        self._left = 0
        self._receiver.request_body(request, data[:left] if left else data)
        self.request = None
        request.complete = True
        self._receiver.request_complete(request)
        return data[left:] if left else b""

    def _parse(self, data: bytes) -> bytes:
        while True:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
                if self._after_upgrade():
                    return data
                if not data:
                    return b""
                continue
            except httptools.HttpParserCallbackError as error:
                if error.__context__ is not None:
                    raise error.__context__ from None
                raise malformed("malformed request") from None
            except httptools.HttpParserError as error:
                if data.startswith(_HTTP2_PREFACE):
                    raise malformed("only HTTP/1.1 is spoken here", 505, "http_version") from None
                raise malformed(f"malformed request: {error}") from None
            request = self.request
            if self._in_head and request is not None:
                request.head_bytes += len(data)
                if request.head_bytes > self._head_limit:
                    raise malformed("the request's head is too long", 431, "head_too_long")
            return b""

    def _after_upgrade(self) -> bool:
        """Begin a WebSocket. Any other upgrade is ignored, and its request is read as a normal one.

        Returns whether a WebSocket begins.
        """
        request = self.request
        assert request is not None
        if request.websocket:
            self.request = None
            request.complete = True
            self._receiver.request_complete(request)
            return True
        self._parser = httptools.HttpRequestParser(self)
        if not request.has_body:
            self.request = None
            self._in_head = True
            request.complete = True
            self._receiver.request_complete(request)
            return False
        framing = (
            b"transfer-encoding: chunked"
            if b"transfer-encoding" in request.headers
            else b"content-length: %d" % request.content_length
        )
        self._reset = True
        self._parser.feed_data(b"POST / HTTP/1.1\r\n" + framing + b"\r\n\r\n")
        self._reset = False
        return False

    def on_message_begin(self) -> None:
        """Parser: a request begins."""
        if self._reset:
            return
        self.request = Request(self._memory_bytes)
        self._in_head = True

    def on_url(self, url: bytes) -> None:
        """Parser: a piece of the target."""
        request = self.request
        if request is not None and not self._reset:
            request.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Parser: one header. Trailers are dropped."""
        request = self.request
        if request is None or not self._in_head:
            return
        request.header_count += 1
        low = name.lower()
        headers = request.headers
        if low in headers:
            if low in _SINGLE or low.startswith(b"x-trimtab-"):
                raise malformed(f"header given twice: {low.decode('latin-1')}")
            headers[low] += b", " + value
        else:
            headers[low] = value
        if low not in _STOPS and not low.startswith(b"x-trimtab-"):
            request.forward.append(b"%b: %b\r\n" % (name, value))

    def on_headers_complete(self) -> None:
        """Parser: the head is complete."""
        request = self.request
        if request is None or self._reset:
            return
        self._in_head = False
        self._check(request)
        self._last = not request.keep_alive
        head, self._candidate = self._candidate, None
        if head is not None:
            self._known.keep(head, request)
        self._receiver.request_head(request)

    def on_body(self, piece: bytes) -> None:
        """Parser: a piece of the body, without its framing."""
        request = self.request
        if request is not None:
            self._receiver.request_body(request, piece)

    def on_message_complete(self) -> None:
        """Parser: the request is complete."""
        request = self.request
        if request is None or self._parser.should_upgrade():
            return  # `feed` handles the upgrade
        self.request = None
        self._in_head = True
        request.complete = True
        self._receiver.request_complete(request)

    def _check(self, request: Request) -> None:
        parser = self._parser
        headers = request.headers
        if request.header_count > self._header_limit or _length(request) > self._head_limit:
            raise malformed("the request's head is too long", 431, "head_too_long")
        version = parser.get_http_version()
        if version != "1.1":
            if version != "1.0":
                raise malformed("HTTP version not supported", 505, "http_version")
            request.http10 = True
        request.method = parser.get_method().decode()
        if request.method not in _METHODS:
            raise malformed("unknown method", 501, "unknown_method")
        if _TARGET.fullmatch(request.target) is None:
            target = split_target(request.target)
            if isinstance(target, Refusal):
                raise MalformedError(target)
            request.target = target.origin
        request.path = request.target.partition(b"?")[0].decode()
        if b"host" not in headers and not request.http10:
            raise malformed("no host header")
        self._check_framing(request)
        request.keep_alive = parser.should_keep_alive()
        if b"connection" in headers:
            self._connection(request, headers[b"connection"].lower())
        expectation = headers.get(b"expect")
        if expectation is not None:
            if expectation.strip().lower() != b"100-continue":
                raise malformed("unknown expectation", 417, "expectation_failed")
            request.expects = request.has_body and not request.http10
        _read_headers(request)

    def _check_framing(self, request: Request) -> None:
        coding = request.headers.get(b"transfer-encoding")
        length = request.headers.pop(b"content-length", None)
        if coding is not None:
            if length is not None or request.http10 or coding.strip().lower() != b"chunked":
                raise malformed("transfer coding not supported")
            request.has_body = True
        elif length is not None:
            length = length.strip(b" \t")
            if not length.isdigit() or len(length) > 18:
                raise malformed("malformed content length")
            request.content_length = int(length)
            request.has_body = request.content_length > 0

    def _connection(self, request: Request, value: bytes) -> None:
        named = {token.strip() for token in value.split(b",")}
        if b"close" in named:
            request.keep_alive = False
        if b"upgrade" in named and request.headers.get(b"upgrade", b"").strip().lower() == b"websocket":
            request.websocket = request.method == "GET" and not request.has_body and not request.http10
            if request.websocket:
                request.keep_alive = False  # no other request can follow, accepted or not
        named -= {b"close", b"keep-alive", b"upgrade", b"", *_KEPT_WHEN_NAMED}
        if named:
            request.forward = [
                line for line in request.forward if line[: line.index(b":")].lower() not in named
            ]


def _read_headers(request: Request) -> None:
    """Extract the header values that admission needs."""
    headers = request.headers
    request.key_digest = sha256(key_of(headers)).digest()
    request.content_type = headers.get(b"content-type", b"").decode("latin-1")
    given = headers.get(b"x-request-id")
    if given is not None and REQUEST_ID.fullmatch(given):
        request.given_id = given.decode()
    request.hinted = not HINTS.isdisjoint(headers) or any(name.startswith(b"x-trimtab-") for name in headers)
    protocols = headers.get(b"sec-websocket-protocol")
    if protocols is not None:
        kept = [
            name for part in protocols.split(b",") if not (name := part.strip()).startswith(KEY_IN_PROTOCOL)
        ]
        if kept:
            request.forward.append(b"sec-websocket-protocol: %b\r\n" % b", ".join(kept))


def _length(request: Request) -> int:
    headers = request.headers
    return (
        len(request.target)
        + sum(map(len, headers))
        + sum(map(len, headers.values()))
        + 4 * request.header_count
    )
