"""Upstream connections: kept alive between requests, with one pool per node."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from math import inf
from typing import Any, Protocol, cast

from trimtab.gateway.http.framing import (
    MAX_HEAD_BYTES,
    BadResponseError,
    Chunks,
    Length,
    ResponseHead,
    parse_head,
    whole_head,
)
from trimtab.gateway.http.inbox import Inbox, Outbox
from trimtab.gateway.http.response_relay import StreamFastPath
from trimtab.gateway.http.timeouts import TimeoutScanner
from trimtab.gateway.http.tunnel import Tunnel
from trimtab.gateway.model import Cause, Node

_NONE, _COUNTED, _CHUNKED, _CLOSE = Length.NONE, Length.COUNTED, Length.CHUNKED, Length.CLOSE
WRITE_HIGH_BYTES = 262_144


class ResponseReceiver(Protocol):
    """The part of an attempt that its connection needs. The last call is either `lost` or `end`, once."""

    method: str
    upgrade: bool  # status 101 is allowed
    sending: bool  # some of the request is still to be written

    def head(self, head: ResponseHead) -> None:
        """Take the head of the final response."""

    def data(self, raw: bytes, payload: bytes) -> None:
        """Take response bytes. `raw`: as received, with framing; `payload`: the body bytes in them."""

    def flow(self) -> StreamFastPath | None:
        """The fast path for the next chunk; None = use `data`. Called between two chunks."""

    def end(self) -> None:
        """The response is complete."""

    def whole(self, head: ResponseHead, body: bytes) -> None:
        """Take a head and its whole body in one call, instead of `head` and `data`.

        The head's content length may belong to another body.
        """

    def lost(self, cause: Cause) -> None:
        """The response failed."""

    def switched(self, head: ResponseHead, rest: bytes) -> None:
        """The node answered 101. The attempt owns the connection from now on."""

    def resume_sending(self) -> None:
        """The connection's write buffer has room for more of the request."""


class UpstreamConnection(asyncio.Protocol):
    """One connection to a node. It carries one request at a time."""

    __slots__ = (
        "_buffer",
        "_chunks",
        "_flow",
        "_head",
        "_inbox",
        "_left",
        "_pool",
        "full",
        "last_s",
        "reused",
        "silent",
        "transport",
        "tunnel",
        "upstream",
    )

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._inbox = pool.inbox
        self.transport: asyncio.Transport = cast(asyncio.Transport, None)
        self.upstream: ResponseReceiver | None = None
        self.reused = False
        self.silent = True  # no byte of the response has arrived
        self.full = False  # the write buffer is full
        self.last_s = 0.0  # time of the last byte in either direction
        self.tunnel: Tunnel | None = None
        self._buffer = b""
        self._head: ResponseHead | None = None
        self._chunks: Chunks | None = None
        self._flow: StreamFastPath | None = None  # set only if no bytes of this connection wait
        self._left = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)

    def carry(self, upstream: ResponseReceiver, request: bytes) -> None:
        """Send a request at the end of this turn, or only its head if `Outbox.now` sends the rest."""
        self.upstream = upstream
        self.silent = True
        self._head = None
        self.last_s = self._pool.time()
        self._pool.outbox.put(self.transport, request)

    def data_received(self, data: bytes) -> None:
        """Forward a chunk by the fast path, or store the bytes until this turn of the loop ends."""
        flow = self._flow
        if flow is not None:
            if flow.passes(data):
                pool = self._pool
                now_s = pool.node.last_byte_s = pool.time()
                flow.gaps_s.append(now_s - self.last_s)
                self.last_s = now_s
                return
            self._flow = None  # later bytes must not overtake these
        self._inbox.put_answer(self, data)

    def received(self, data: bytes) -> None:
        """Process response bytes."""
        pool = self._pool
        pool.node.last_byte_s = self.last_s = pool.time()
        if self.tunnel is not None:
            self.tunnel.from_node(data)
            return
        upstream = self.upstream
        if upstream is None:
            self.transport.abort()  # a node must not send without a request
            return
        self.silent = False
        try:
            if self._head is None:
                self._head_bytes(upstream, data)
            else:
                self._body_bytes(upstream, self._head, data)
        except BadResponseError:
            self._fail(Cause.BAD_RESPONSE)

    def _head_bytes(self, upstream: ResponseReceiver, data: bytes) -> None:
        if self._buffer:
            data = self._buffer + data
        while True:
            end = data.find(b"\r\n\r\n") + 4
            if end < 4:
                if len(data) > MAX_HEAD_BYTES or not b"HTTP/1.".startswith(data[:7]):
                    raise BadResponseError("no head")
                self._buffer = data
                return
            if end > MAX_HEAD_BYTES:
                raise BadResponseError("head too long")
            self._buffer = b""
            known = whole_head(data, end) if upstream.method != "HEAD" else None
            if known is not None:  # the usual case: the whole response in one read
                self._head = known
                upstream.whole(known, data[end:])
                if self.upstream is upstream:
                    self._whole(upstream, known, False)
                return
            head = parse_head(data[:end], upstream.method)
            if head.status == 101:
                self._switch(upstream, head, data[end:])
                return
            if head.status >= 200:
                break
            data = data[end:]
            if not data:
                return
        self._begin(upstream, head, data[end:])

    def _switch(self, upstream: ResponseReceiver, head: ResponseHead, rest: bytes) -> None:
        if not upstream.upgrade:
            raise BadResponseError("101 without being asked")
        self.upstream = None
        upstream.switched(head, rest)

    def _begin(self, upstream: ResponseReceiver, head: ResponseHead, rest: bytes) -> None:
        self._head = head
        self._chunks = Chunks() if head.length is _CHUNKED else None
        self._left = head.content_length
        upstream.head(head)
        if self.upstream is not upstream:
            return  # the attempt was dropped meanwhile
        if head.length is _NONE or (head.length is _COUNTED and not self._left):
            self._whole(upstream, head, bool(rest))
        elif rest:
            self._body_bytes(upstream, head, rest)

    def _body_bytes(self, upstream: ResponseReceiver, head: ResponseHead, data: bytes) -> None:
        chunks = self._chunks
        if chunks is not None:
            raw = chunks.feed(data)
            if raw:
                upstream.data(raw, chunks.payload)
            if self.upstream is not upstream:
                return
            if chunks.done:
                self._whole(upstream, head, chunks.extra)
            elif chunks.is_between:
                self._flow = upstream.flow()
        elif head.length is _COUNTED:
            left = self._left - len(data)
            self._left = left
            if left > 0:
                upstream.data(data, data)
                return
            body = data[:left] if left else data
            upstream.data(body, body)
            if self.upstream is upstream:
                self._whole(upstream, head, left < 0)
        else:
            upstream.data(data, data)

    def _whole(self, upstream: ResponseReceiver, head: ResponseHead, extra: bool) -> None:
        """The response is complete. Return the connection to its pool if it can be reused."""
        self.upstream = None
        if head.keep_alive and not extra and not upstream.sending:
            self._pool.give(self)
        else:
            self.transport.close()
        upstream.end()

    def at_border(self) -> bool:
        """Whether the forwarded bytes end with a whole chunk."""
        return self._chunks is not None and self._chunks.at_border

    def _fail(self, cause: Cause) -> None:
        upstream, self.upstream = self.upstream, None
        self.transport.abort()
        if upstream is not None:
            upstream.lost(cause)

    def abandon(self) -> None:
        """Close the connection, so that the node stops working on a response that has no receiver."""
        self.upstream = None
        self.tunnel = None
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The node closed the connection, or it broke."""
        self._inbox.take()
        self._pool.forget(self)
        if self.tunnel is not None:
            self.tunnel.close(None if exc is None else Cause.RESET)
            return
        upstream, self.upstream = self.upstream, None
        if upstream is None:
            return
        head = self._head
        if head is not None and head.length is _CLOSE and exc is None:
            upstream.end()
        elif self.silent and self.reused:
            upstream.lost(Cause.CONNECT)  # the node had closed it before it saw the request
        else:
            upstream.lost(Cause.RESET)

    def pause_writing(self) -> None:
        """The write buffer is full: the node reads more slowly than the client sends."""
        self.full = True
        if self.tunnel is not None:
            self.tunnel.hold(client=False, full=True)

    def resume_writing(self) -> None:
        """The write buffer has room."""
        self.full = False
        if self.tunnel is not None:
            self.tunnel.hold(client=False, full=False)
        if self.upstream is not None:
            self.upstream.resume_sending()


class Pool:
    """The idle connections of one node, newest first."""

    def __init__(
        self, node: Node, loop: asyncio.AbstractEventLoop, inbox: Inbox, outbox: Outbox, most_idle: int
    ) -> None:
        self.node = node
        self.inbox, self.outbox = inbox, outbox
        self.time = loop.time
        self._loop = loop
        self._most_idle = most_idle
        self._idle: deque[UpstreamConnection] = deque()
        self.open: set[UpstreamConnection] = set()
        self.closed = False
        name = node.server_name or node.host
        shown = f"[{name}]" if ":" in name else name
        usual = 443 if node.tls else 80
        host = shown if node.port == usual else f"{shown}:{node.port}"
        lines = f"host: {host}\r\n".encode()
        if node.authorization:
            lines += b"authorization: " + node.authorization + b"\r\n"
        self.lines = lines  # header lines of every request to this node
        self.base = node.base_path.rstrip("/").encode()
        self.says = node_line(node)  # header line of every response from it
        self._tls: dict[str, Any] = {"ssl": node.ssl, "server_hostname": name} if node.tls else {}

    def take(self) -> UpstreamConnection | None:
        """An idle connection, or None."""
        idle = self._idle
        while idle:
            connection = idle.pop()
            if not connection.transport.is_closing():
                connection.reused = True
                return connection
        return None

    async def connect(self) -> UpstreamConnection:
        """Open a new connection. Raises OSError (TLS errors included). Cancel the call to give up."""
        _, connection = await self._loop.create_connection(
            lambda: UpstreamConnection(self), self.node.host, self.node.port, **self._tls
        )
        self.open.add(connection)
        return connection

    def give(self, connection: UpstreamConnection) -> None:
        """Take back a connection that has served its request."""
        if self.closed or len(self._idle) >= self._most_idle:
            connection.transport.close()
            return
        self._idle.append(connection)

    def forget(self, connection: UpstreamConnection) -> None:
        """Remove a closed connection."""
        self.open.discard(connection)
        if connection.upstream is None:
            with suppress(ValueError):
                self._idle.remove(connection)

    def close_idle(self, before_s: float) -> None:
        """Close connections that have been idle since before `before_s`."""
        idle = self._idle
        while idle and idle[0].last_s < before_s:
            idle.popleft().transport.close()

    def close(self) -> None:
        """Close idle connections now, and busy ones when their request ends."""
        self.closed = True
        self.close_idle(inf)


def node_line(node: Node) -> bytes:
    """The response header line that names the node."""
    return b"x-trimtab-node: %b\r\n" % node.name.encode()


class Pools:
    """The pools of all nodes. A node's pool is made at its first request."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        scanner: TimeoutScanner,
        inbox: Inbox,
        outbox: Outbox,
        most_idle: int = 256,
        idle_s: float = 30.0,
    ) -> None:
        self.tick = -1
        self._loop = loop
        self._most_idle = most_idle
        self._idle_s = idle_s
        self._scanner = scanner
        self._inbox, self._outbox = inbox, outbox
        self._pools: dict[Node, Pool] = {}
        self._leaving: list[Pool] = []

    def of(self, node: Node) -> Pool:
        """The pool of a node."""
        pool = self._pools.get(node)
        if pool is None:
            pool = self._pools[node] = Pool(node, self._loop, self._inbox, self._outbox, self._most_idle)
            self._scanner.watch(self)
        return pool

    def remove(self, node: Node) -> None:
        """Remove a node's pool. Its open requests end normally."""
        pool = self._pools.pop(node, None)
        if pool is not None:
            pool.close()
            self._leaving.append(pool)
            self._scanner.watch(self)

    def check(self, now_s: float) -> float:
        """Close connections that have been idle for `idle_s`."""
        for pool in self._pools.values():
            pool.close_idle(now_s - self._idle_s)
        self._leaving = [pool for pool in self._leaving if pool.open]
        return now_s + self._idle_s / 2 if self._pools or self._leaving else inf

    def abort(self) -> None:
        """Close all connections at once."""
        for pool in (*self._pools.values(), *self._leaving):
            for connection in tuple(pool.open):
                connection.abandon()
