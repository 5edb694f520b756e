"""Client connections: requests are answered in their order, one at a time."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from math import inf
from typing import cast

from trimtab.gateway.api.errors import response_bytes
from trimtab.gateway.http.connection_context import ConnectionContext
from trimtab.gateway.http.local_answers import answer_locally, validate
from trimtab.gateway.http.proxied_exchange import ProxiedExchange
from trimtab.gateway.http.request import MalformedError, Request
from trimtab.gateway.http.request_reader import RequestReader
from trimtab.gateway.http.tunnel import Closed, Tunnel
from trimtab.gateway.http.upstream_connection import UpstreamConnection
from trimtab.gateway.model import Dialect, Exchange, Kind, Refusal

_RESETS = struct.pack("ii", 1, 0)  # SO_LINGER: close at once, with a reset
_ALWAYS_ANSWERED = (Kind.HEALTH, Kind.READY)
WRITE_HIGH_BYTES = 262_144
PIPELINED_REQUESTS = 32
PIPELINED_BYTES = 65_536
BODY_BYTES_PER_S = 1_024.0  # slower senders are cut off
LINGER_S = 2.0  # after a refusal, input is read and dropped, so that no reset overtakes the response


class ClientConnection(asyncio.Protocol):
    """One connection. Pipelined requests wait until the current request is answered."""

    def __init__(self, context: ConnectionContext) -> None:
        settings = context.settings
        self.context = context
        self._inbox = context.inbox
        self.transport: asyncio.Transport = cast(asyncio.Transport, None)
        self.address = b"unknown"
        self.scheme = b"http"
        self.full = False
        self.full_since_s = inf
        self.tick = -1
        self._reader = RequestReader(
            self,
            settings.head_bytes,
            settings.header_count,
            settings.memory_body_bytes,
            context.known_heads,
        )
        self._exchange: ProxiedExchange | None = None
        self._waiting: deque[Request] = deque()  # parsed requests behind the current one
        self._backlog: deque[bytes] = deque()  # bytes that are not parsed yet
        self._backlog_bytes = 0
        self._feeding = False
        self._refused: Refusal | None = None  # refusal of malformed input behind the current request
        self._ignores_input = False  # input is ignored
        self._is_lingering = False  # lingering close: input is dropped for LINGER_S after the last response
        self._served = False  # at least one request was answered
        self._coming: Request | None = None  # a request that has arrived in part
        self._since_s = 0.0  # start of the state that the scanner checks
        self._tunnel: Tunnel | None = None

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection, or refuse it above the limit."""
        context = self.context
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self.address = str(peer[0]).encode()
        if transport.get_extra_info("sslcontext") is not None:
            self.scheme = b"https"
        context.connections.add(self)
        self._since_s = context.loop.time()
        if len(context.connections) > context.settings.connections:
            self._refuse_input(Refusal(503, "too_many_connections", "Too many connections.", 1.0))
            return
        context.scanner.watch(self)

    def data_received(self, data: bytes) -> None:
        """Store the bytes until this turn of the loop ends."""
        self._inbox.put(self, data)

    def received(self, data: bytes) -> None:
        """Parse the bytes now, or keep them until the current request is answered."""
        if self._tunnel is not None:
            self._tunnel.from_client(data)
            return
        if self._ignores_input:
            return
        exchange = self._exchange
        if exchange is not None and exchange.request.complete:
            self._backlog.append(data)
            self._backlog_bytes += len(data)
            if self._backlog_bytes > PIPELINED_BYTES:
                self.transport.pause_reading()
            return
        self._feed(data)

    def _feed(self, data: bytes) -> None:
        self._feeding = True
        try:
            rest = self._reader.feed(data)
            if rest:
                self._backlog.append(rest)  # for the tunnel that will open
        except MalformedError as error:
            self._refuse_input(error.refusal)
        finally:
            self._feeding = False
        coming = self._reader.request
        if coming is not self._coming:
            self._coming = coming
            if coming is not None:  # the timeout of a slow request starts now
                self._since_s = self.context.loop.time()

    def eof_received(self) -> bool:
        """Treat a half-closed connection as closed: both look the same on the wire."""
        self._inbox.take()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone: stop all work for it."""
        self._inbox.take()
        context = self.context
        context.connections.discard(self)
        context.scanner.unwatch(self)
        if self._tunnel is not None:
            self._tunnel.close()
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.client_gone()
        if self._reader.request is not None:
            self._drop_body(self._reader.request)
        for request in self._waiting:
            self._drop_body(request)
        self._waiting.clear()

    def _drop_body(self, request: Request) -> None:
        self.context.buffered_bytes -= request.body.in_memory
        request.body.close()

    def pause_writing(self) -> None:
        """The client's write buffer is full: pause its response."""
        self.full = True
        self.full_since_s = self.context.loop.time()
        if self._tunnel is not None:
            self._tunnel.hold(client=True, full=True)
        elif self._exchange is not None:
            self._exchange.client_full()

    def resume_writing(self) -> None:
        """The write buffer has room: resume the response."""
        self.full = False
        if self._tunnel is not None:
            self._tunnel.hold(client=True, full=False)
        elif self._exchange is not None:
            self._exchange.client_ready()

    # The reader's side

    def request_head(self, request: Request) -> None:
        """Begin a request at its head, or queue it behind the current request."""
        if self._ignores_input:
            return
        if self._exchange is None:
            self._begin(request)
        elif len(self._waiting) < PIPELINED_REQUESTS:
            self._waiting.append(request)
        else:
            raise MalformedError(
                Refusal(429, "too_many_pipelined", "Too many requests at once on one connection.")
            )

    def request_body(self, request: Request, piece: bytes) -> None:
        """Store body bytes. Raises MalformedError above the limits."""
        context = self.context
        if self._ignores_input:
            return
        body, settings = request.body, context.settings
        if body.size + len(piece) > settings.body_bytes:
            raise MalformedError(too_large(settings.body_bytes))
        try:
            context.buffered_bytes += body.add(piece)
        except OSError:
            context.buffered_bytes -= body.in_memory
            body.in_memory = 0
            raise MalformedError(
                Refusal(503, "no_space", "There is no space for a request of this size.", 1.0)
            ) from None
        if context.buffered_bytes > settings.buffered_bytes:
            raise MalformedError(
                Refusal(503, "too_much_buffered", "Too many bytes of requests are waiting.", 1.0)
            )

    def request_complete(self, request: Request) -> None:
        """The request is complete."""
        exchange = self._exchange
        if exchange is not None and exchange.request is request:
            self._go(exchange)

    # One request after the other

    def _begin(self, request: Request) -> None:
        context = self.context
        exchange = ProxiedExchange(context, self, request)
        context.exchanges += 1
        self._exchange = exchange
        refusal = context.admission.head(exchange)
        if refusal is None and context.refusing is not None and not _is_about_health(exchange):
            refusal = context.refusing
        if refusal is None and request.content_length > context.settings.body_bytes:
            refusal = too_large(context.settings.body_bytes)
        if refusal is not None:
            exchange.refuse(refusal)
        elif request.expects and not request.complete:
            context.outbox.now(self.transport, b"HTTP/1.1 100 Continue\r\n\r\n")

    def _go(self, exchange: ProxiedExchange) -> None:
        """Process a complete request."""
        context = self.context
        exchange.arrived_s = context.loop.time()
        if exchange.request.body.spooled and not exchange.is_local:
            exchange.task = context.spawn(validate(exchange))
            return
        if context.outbox.is_awaited:
            self._inbox.put_whole(self)
        elif self.validate():
            self.go_on()

    def validate(self) -> bool:
        """Validate the complete request. Returns whether it goes to the dispatcher."""
        context, exchange = self.context, self._exchange
        assert exchange is not None  # nothing else ends it while `Inbox.take` runs
        exchange.body = exchange.request.body.whole() or b""
        refusal = context.admission.body(exchange)
        if refusal is not None:
            exchange.refuse(refusal)
        elif exchange.is_local:
            exchange.task = context.spawn(answer_locally(exchange))
        else:
            return True
        return False

    def go_on(self) -> None:
        """Submit the request to the dispatcher."""
        assert self._exchange is not None
        self._exchange.submit()

    def answered(self, answered: Exchange, close: bool) -> None:
        """The response is written: start the next request, or close."""
        exchange = self._exchange
        if exchange is None or exchange is not answered:
            return
        self._exchange = None
        self._served = True
        if close:
            self._close(is_lingering=exchange.request.awaits_body)
            return
        self._since_s = exchange.ended_s
        more = self._waiting or self._backlog or self._refused is not None
        if more and not self._feeding:
            self._next()

    def _next(self) -> None:
        """Process the input that arrived while the last request was answered."""
        while not self._is_lingering and not self.transport.is_closing():
            exchange = self._exchange
            if exchange is not None and exchange.request.complete:
                return
            if self._waiting and exchange is None:
                self._take_up(self._waiting.popleft())
            elif self._refused is not None:
                self._refuse_input(self._refused)
            elif self._backlog:
                data = self._backlog.popleft()
                self._backlog_bytes -= len(data)
                self._feed(data)
            else:
                break
        if self._backlog_bytes <= PIPELINED_BYTES and not self.transport.is_closing():
            self.transport.resume_reading()

    def _take_up(self, request: Request) -> None:
        self._feeding = True  # so that its end returns to the loop in `_next`
        self._begin(request)
        exchange = self._exchange
        if request.complete and exchange is not None and exchange.request is request:
            self._go(exchange)
        self._feeding = False

    def _refuse_input(self, refusal: Refusal) -> None:
        """Refuse input that cannot be parsed. The refusal waits for the current request, then closes."""
        if self._ignores_input and refusal is not self._refused:
            return  # the connection is closing already: what follows a refusal is not read
        exchange = self._exchange
        if exchange is not None and exchange.request.complete:
            self._refused = refusal
            self._ignores_input = True
            return
        self._ignores_input = True
        if exchange is not None:
            exchange.request.keep_alive = False
            exchange.refuse(refusal)
            return
        request = self._reader.request
        if request is not None:
            self._drop_body(request)
        self.context.outbox.now(self.transport, response_bytes(refusal, Dialect.OPENAI, close=True))
        self._close(is_lingering=True)

    def _close(self, is_lingering: bool) -> None:
        self._ignores_input = True
        self._backlog.clear()
        self.context.outbox.flush()  # the response must go first
        if not is_lingering or self.transport.is_closing() or not self.transport.can_write_eof():
            self.transport.close()
            return
        self._is_lingering = True
        self.transport.write_eof()
        self._since_s = self.context.loop.time()
        self.context.scanner.watch(self)

    def abort(self) -> None:
        """Reset the connection after a broken response: in HTTP/1.0 a close would look like success."""
        self._exchange = None
        self.context.outbox.flush()  # earlier responses must go first
        sock = self.transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESETS)
        self.transport.abort()

    def switch(self, connection: UpstreamConnection, rest: bytes, closed: Closed) -> None:
        """Become a tunnel to a node (WebSocket)."""
        context = self.context
        tunnel = Tunnel(
            self.transport,
            connection.transport,
            context.scanner,
            context.loop.time,
            context.settings.tunnel_idle_s,
            closed,
        )
        context.scanner.unwatch(self)
        self._tunnel = connection.tunnel = tunnel
        if rest:
            tunnel.from_node(rest)
        while self._backlog:
            tunnel.from_client(self._backlog.popleft())
        if self._backlog_bytes > PIPELINED_BYTES:
            self.transport.resume_reading()
        self._backlog_bytes = 0

    # Time, and the end of the process

    def check(self, now_s: float) -> float:
        """Check for slow heads and bodies, idle connections, and clients that do not read."""
        settings = self.context.settings
        exchange = self._exchange
        if self._is_lingering and exchange is None:
            return self._end_at(self._since_s + LINGER_S, now_s)
        if self.full and exchange is not None:
            return self._end_at(self.full_since_s + settings.stalled_client_s, now_s)
        if exchange is None:
            if self._served and self._coming is None:
                return self._end_at(self._since_s + settings.keep_alive_s, now_s)
            return self._slow(self._since_s + settings.request_read_timeout_s, now_s)
        if not exchange.request.complete:
            grace_s = exchange.request.body.size / BODY_BYTES_PER_S
            return self._slow(self._since_s + settings.request_read_timeout_s + grace_s, now_s)
        return now_s + min(settings.keep_alive_s, settings.request_read_timeout_s, settings.stalled_client_s)

    def _end_at(self, due_s: float, now_s: float) -> float:
        if now_s < due_s:
            return due_s
        self.transport.abort()
        return inf

    def _slow(self, due_s: float, now_s: float) -> float:
        if now_s < due_s:
            return due_s
        self._refuse_input(Refusal(408, "slow_request", "The request came too slowly."))
        return now_s + LINGER_S if self._is_lingering else inf

    def drain(self) -> None:
        """Close an idle connection now. A busy connection closes with its response."""
        if self._exchange is None and self._tunnel is None and self._reader.request is None:
            self.context.outbox.close(self.transport)


def _is_about_health(exchange: ProxiedExchange) -> bool:
    """Whether it is answered from the process's start to its end."""
    return exchange.endpoint is not None and exchange.endpoint.kind in _ALWAYS_ANSWERED


def too_large(limit_bytes: int) -> Refusal:
    """The refusal of a body above the limit."""
    return Refusal(413, "body_too_large", f"The request's body is larger than {limit_bytes} bytes.")
