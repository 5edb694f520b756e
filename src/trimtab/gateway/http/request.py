"""Clients' requests, as read and before a node is chosen, and a cache of request heads."""

from __future__ import annotations

import re

from trimtab.gateway.api.parse_body import Change
from trimtab.gateway.http.spool import Body
from trimtab.gateway.model import Refusal
from trimtab.gateway.tenancy.admission import ClientExchange

# Heads with one of these headers do not repeat, or no plain body follows them: they are not cached.
_NOT_REMEMBERED = frozenset(
    (
        b"expect",
        b"idempotency-key",
        b"traceparent",
        b"transfer-encoding",
        b"upgrade",
        b"x-request-id",
    )
)
REMEMBERED_HEADS = 512
REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
HINTS = frozenset((b"traceparent", b"content-encoding"))  # headers that admission reads, besides x-trimtab-*


class MalformedError(Exception):
    """A request that is answered with a refusal, after which the connection closes."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


KEY_IN_PROTOCOL = b"openai-insecure-api-key."


def malformed(message: str, status: int = 400, code: str = "bad_request") -> MalformedError:
    """Make a MalformedError with this message."""
    return MalformedError(Refusal(status, code, message))


class Request:
    """One request. Header names are in lower case; `headers` leaves out the content length."""

    __slots__ = (
        "body",
        "complete",
        "content_length",
        "content_type",
        "expects",
        "forward",
        "given_id",
        "has_body",
        "head_bytes",
        "header_count",
        "headers",
        "hinted",
        "http10",
        "keep_alive",
        "key_digest",
        "lines",
        "method",
        "path",
        "target",
        "websocket",
    )

    def __init__(self, memory_bytes: int) -> None:
        self.method = ""
        self.target = b""  # path and query
        self.path = ""
        self.headers: dict[bytes, bytes] = {}
        self.forward: list[bytes] = []  # header lines for the node, with their CRLF
        self.lines = b""  # `forward`, joined
        self.head_bytes = 0
        self.header_count = 0
        self.http10 = False
        self.keep_alive = True
        self.expects = False  # 100-continue
        self.websocket = False
        self.has_body = False
        self.content_length = 0
        self.content_type = ""
        self.key_digest = b""  # SHA-256 of the client's key
        self.given_id = ""  # the client's request id, if well-formed
        self.hinted = False  # it has x-trimtab-* headers, a traceparent or a content coding
        self.complete = False
        self.body = Body(memory_bytes)

    def again(self, content_length: int, memory_bytes: int) -> Request:
        """A new request with the same head but another body length."""
        request = _new(Request)
        request.method = self.method
        request.target = self.target
        request.path = self.path
        request.headers = self.headers
        request.forward = self.forward
        request.lines = self.lines
        request.http10 = request.expects = request.websocket = request.complete = False
        request.keep_alive = True
        request.has_body = content_length > 0
        request.content_length = content_length
        request.content_type = self.content_type
        request.key_digest = self.key_digest
        request.given_id = ""
        request.hinted = self.hinted
        request.body = Body(memory_bytes)
        return request

    @property
    def awaits_body(self) -> bool:
        """Whether a part of its body is still to come."""
        return self.has_body and not self.complete


_new = object.__new__


def key_of(headers: dict[bytes, bytes]) -> bytes:
    """The client's key; b"" = none.

    A bearer token, the header of Anthropic's clients (x-api-key), or a WebSocket's subprotocol.
    """
    authorization = headers.get(b"authorization")
    if authorization is not None:
        scheme, _, key = authorization.strip().partition(b" ")
        return key.strip() if scheme.lower() == b"bearer" else b""
    key = headers.get(b"x-api-key", b"").strip()
    return key or _key_in_protocol(headers.get(b"sec-websocket-protocol", b""))


def _key_in_protocol(protocols: bytes) -> bytes:
    """The key that a browser sends as a subprotocol of a WebSocket: it can set no header."""
    for name in protocols.split(b","):
        if (name := name.strip()).startswith(KEY_IN_PROTOCOL):
            return name.removeprefix(KEY_IN_PROTOCOL)
    return b""


class KnownHeads:
    """Cache of request heads that clients have sent before. Heads may differ in the body length only.

    The cache holds parse results only, no decisions: each request's key is checked again. Like the
    connections' buffers, the cache holds keys in clear text.
    """

    __slots__ = ("_heads",)

    def __init__(self) -> None:
        self._heads: dict[tuple[bytes, bytes], Request] = {}

    def __len__(self) -> int:
        return len(self._heads)

    def get(self, key: tuple[bytes, bytes]) -> Request | None:
        """The request with this head. Make a new request from it with `again`."""
        return self._heads.get(key)

    def keep(self, key: tuple[bytes, bytes], request: Request) -> None:
        """Cache a head that was just parsed, if it is a plain one."""
        n_lines = key[0].count(b"\r\n") + key[1].count(b"\r\n")
        if n_lines != request.header_count + 2 or key[0].count(b"\n") + key[1].count(b"\n") != n_lines:
            return
        if request.http10 or not request.keep_alive or not _NOT_REMEMBERED.isdisjoint(request.headers):
            return
        if len(self._heads) >= REMEMBERED_HEADS:
            self._heads.clear()
        request.lines = b"".join(request.forward)
        self._heads[key] = request.again(0, 0)


class IncomingExchange(ClientExchange):
    """An exchange with its HTTP request. The data plane's subclass `ProxiedExchange` sends it to nodes."""

    __slots__ = ()

    request: Request

    def __init__(self, request: Request) -> None:
        ClientExchange.__init__(self, request)
        self.method = request.method
        self.path = request.path
        self.target = request.target

    def change_spooled(self, change: Change) -> None:
        """Change a body that is not in memory."""
        self.request.body.change(*change)

    @property
    def body_bytes(self) -> int:
        """Size of its body, spooled or not."""
        return self.request.body.size if self.body is None else len(self.body)

    def read_usage(self) -> None:
        """Read the usage from a response that arrived in one piece."""
        raise NotImplementedError

    def end(self) -> None:
        """End the exchange. Called after the dispatcher has processed its completion."""
        raise NotImplementedError
