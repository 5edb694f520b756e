"""One attempt of an exchange on a node, with its upstream connection."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from math import inf
from typing import Any, Protocol

from trimtab.gateway.http.connection_context import Client, ConnectionContext
from trimtab.gateway.http.framing import Length, ResponseHead
from trimtab.gateway.http.request import Request
from trimtab.gateway.http.response_observer import ResponseObserver, plain_body
from trimtab.gateway.http.response_relay import Relay, StreamFastPath
from trimtab.gateway.http.upstream_connection import Pool, UpstreamConnection
from trimtab.gateway.http.usage_option import UsageOption
from trimtab.gateway.model import Attempt, Cause, Facts
from trimtab.gateway.nodes.node_state import cause_of_status, says_overloaded
from trimtab.gateway.nodes.planned_outages import Transfer

_COUNTED = Length.COUNTED
KEPT_BYTES = 65_536  # limit for a node's own error, which is relayed if no other node can answer
_WITH_BODY = frozenset(("POST", "PUT", "PATCH"))
JOINED_BYTES = 65_536  # bodies up to this size are written together with their head


class AttemptOwner(Protocol):
    """The part of an exchange that its attempts need."""

    id: str
    method: str
    target: bytes
    body: bytes | None
    replayable: bool
    response_bytes: int
    request: Request
    client: Client
    context: ConnectionContext
    facts: Facts | None
    asks_usage: bool

    def may_retry(self, cause: Cause, upstream: UpstreamAttempt) -> bool:
        """Whether another attempt is allowed after this loss."""

    def commit(self, upstream: UpstreamAttempt, response: ResponseHead) -> tuple[Relay, bytes]:
        """Commit to this node's response at its first body byte. Returns the relay and the head to write."""

    def commit_whole(self, upstream: UpstreamAttempt, response: ResponseHead, body: bytes) -> bool:
        """Write a response that arrived in one piece. Returns whether the client's connection closes."""

    def observed(self, observer: ResponseObserver) -> None:
        """Report new chunks of the body to the dispatcher."""

    def streamed(self, observer: ResponseObserver, payload_bytes: int, gaps_s: Sequence[float]) -> None:
        """Count body bytes and gaps of an observed stream, and report its new chunks."""

    def relayed(self, relay: Relay) -> None:
        """End a response that arrived in several pieces."""

    def attempt_done(self, upstream: UpstreamAttempt, closes: bool) -> None:
        """The attempt's whole response is written to the client."""

    def attempt_lost(self, upstream: UpstreamAttempt, cause: Cause, at_border: bool = False) -> None:
        """Handle a failed attempt."""

    def open_tunnel(
        self, upstream: UpstreamAttempt, connection: UpstreamConnection, response: ResponseHead, rest: bytes
    ) -> None:
        """Open a WebSocket tunnel. Its bytes are forwarded from now on."""


class UpstreamAttempt:
    """Sends the request to a node, and passes the node's response to the exchange's relay or keeps it."""

    __slots__ = (
        "_closes",
        "_exchange",
        "_flow",
        "_fresh",
        "_held",
        "_kept",
        "_option",
        "_pumping",
        "_relay",
        "_task",
        "_transfer",
        "_whole",
        "attempt",
        "connection",
        "method",
        "over",
        "paused",
        "pool",
        "refused_as",
        "response",
        "sending",
        "upgrade",
    )

    def __init__(self, exchange: AttemptOwner, attempt: Attempt, pool: Pool) -> None:
        self._exchange = exchange
        self.attempt = attempt
        self.pool = pool
        self.method = exchange.method
        self.upgrade = exchange.request.websocket
        self.sending = False
        self.connection: UpstreamConnection | None = None
        self.response: ResponseHead | None = None
        self.refused_as: Cause | None = None  # the node answered with its own error, which is kept
        self.over = False
        self.paused = False  # reading is paused until the client catches up
        self._task: asyncio.Task[None] | None = None
        self._held = b""  # framing bytes before the first body byte
        self._kept = b""
        self._whole = False  # the response arrived in one piece and is written to the client
        self._closes = False  # and the client's connection closes after it
        self._relay: Relay | None = None
        self._flow: StreamFastPath | None = None
        self._fresh = False
        self._pumping = False
        self._transfer: Transfer | None = None  # of a large body that is being sent
        self._option: UsageOption | None = None  # where the gateway asks for the usage

    def begin(self) -> None:
        """Send the request on an idle connection or on a new one."""
        connection = self.pool.take() if self._exchange.replayable and not self._fresh else None
        if connection is not None:
            self._send(connection)
        else:
            self._task = self._exchange.context.spawn(self._connect())

    def begin_after(self, loading: Coroutine[Any, Any, bool]) -> None:
        """Send the request once the node has loaded what it needs."""
        self._task = self._exchange.context.spawn(self._load(loading, self.attempt.begun_s))
        self.attempt.begun_s = inf

    async def _load(self, loading: Coroutine[Any, Any, bool], since_s: float) -> None:
        is_loaded = await loading
        self._task = None
        if self.over:
            return
        attempt = self.attempt
        attempt.begun_s = self.pool.time()
        attempt.load_s = attempt.begun_s - since_s
        if is_loaded:
            self._exchange.context.send(self)
        else:
            self.lost(Cause.LOAD)

    async def _connect(self) -> None:
        try:
            connection = await self.pool.connect()
        except (OSError, ValueError):  # no connection, or no host (UnicodeError)
            self._task = None
            if not self.over:
                self.lost(Cause.CONNECT)
            return
        self._task = None
        if self.over:
            connection.abandon()
        else:
            self._send(connection)

    def _send(self, connection: UpstreamConnection) -> None:
        self.connection = connection
        exchange = self._exchange
        pool = self.pool
        body = exchange.body
        if body is not None and exchange.asks_usage:
            body = self._asking(body)
        head = request_head(exchange, pool, body)
        if body is None:
            exchange.request.body.rewind()
            self.sending = True
            node_idx, size = self.attempt.node.idx, exchange.request.body.size
            self._transfer = exchange.context.links.begin(node_idx, size)
            connection.carry(self, head)
            self._pump()
            return
        if len(body) <= JOINED_BYTES:
            connection.carry(self, head + body)
        else:
            connection.carry(self, head)
            pool.outbox.now(connection.transport, body)
        self.attempt.sent_s = connection.last_s

    def _asking(self, body: bytes) -> bytes:
        facts = self._exchange.facts
        if self._option is None and facts is not None:
            self._option = UsageOption(self.attempt.node, facts.model, self.pool.time())
        return body if self._option is None else self._option.asking(body)

    @property
    def asks_usage(self) -> bool:
        """Whether the stream has usage that its client did not ask for."""
        return self._option is not None and self._option.is_asked

    def stop_asking(self) -> None:
        """The node's streams cannot be read."""
        if self._option is not None:
            self._option.stop(self.pool.time())

    def _pump(self) -> None:
        """Write the next piece of a spooled body. Each piece has its own turn of the loop."""
        connection = self.connection
        if self.over or connection is None or connection.full:
            self._pumping = False
            return
        piece = self._exchange.request.body.read()
        connection.last_s = self.pool.time()
        if piece:
            self._pumping = True
            self.pool.outbox.now(connection.transport, piece)
            if self._transfer is not None:
                self._transfer.sent(len(piece), connection.last_s)
            self._exchange.context.loop.call_soon(self._pump)
        else:
            self._pumping = self.sending = False
            self.attempt.sent_s = connection.last_s
            self._end_transfer(is_whole=True)

    def _end_transfer(self, *, is_whole: bool) -> None:
        if self._transfer is not None:
            self._transfer.end(self.pool.time(), is_whole=is_whole)
            self._transfer = None

    def resume_sending(self) -> None:
        """The node's write buffer has room for more of the request."""
        if self.sending and not self._pumping:
            self._pump()

    def head(self, head: ResponseHead) -> None:
        """Take a final head. It is relayed with the first body byte, or the node's own error is kept."""
        attempt = self.attempt
        attempt.head_s = self.connection.last_s if self.connection is not None else self.pool.time()
        attempt.status = head.status
        self.response = head
        if self._option is not None and self._option.takes_head(head.status, attempt.head_s):
            return
        if head.status < 429:
            return
        cause = cause_of_status(head.status, attempt.node)
        if cause is not None:
            attempt.retry_after_s = head.retry_after_s
            if self._exchange.may_retry(Cause.BUSY if cause is Cause.RATE_LIMITED else cause, self):
                self.refused_as = cause  # a 429 too: its body may say that the node is full

    def data(self, raw: bytes, payload: bytes) -> None:
        """Take response bytes. `raw`: as received, with framing; `payload`: the body bytes in them."""
        relay = self._relay
        exchange = self._exchange
        if relay is not None:
            relay.body(b"", raw, payload)
            exchange.response_bytes += len(payload)
            if relay.observer is not None:
                exchange.observed(relay.observer)
        elif self._option is not None and self._option.holds_back:
            if not self._option.keep(raw, payload):
                self._pass_on(self._option)
        elif self.refused_as is not None:
            self._keep(payload)
        elif payload:
            response = self.response
            assert response is not None
            if (
                response.length is _COUNTED
                and len(payload) == response.content_length
                and not response.stream
            ):
                self._whole = True
                self._closes = exchange.commit_whole(self, response, payload)
            else:
                self._commit(response, raw, payload)
        else:
            self._held += raw

    def whole(self, head: ResponseHead, body: bytes) -> None:
        """Take a head and its whole body, without an error status."""
        assert self.connection is not None
        self.attempt.head_s = self.connection.last_s
        self.attempt.status = head.status
        if self._option is not None and self._option.takes_head(head.status, self.attempt.head_s):
            self.response = head.of_length(len(body))
            self._option.keep(body, body)
            return
        self._whole = True
        self._closes = self._exchange.commit_whole(self, head, body)

    def _pass_on(self, option: UsageOption) -> None:
        """An error that was held back goes the way of all answers."""
        raw, payload = option.released()
        assert self.response is not None
        self.head(self.response)
        if raw:
            self.data(raw, payload)

    def _keep(self, payload: bytes) -> None:
        self._kept += payload
        if len(self._kept) > KEPT_BYTES:
            self._kept = b""
            self.response = None
            assert self.refused_as is not None
            self.lost(self.refused_as)

    def _commit(self, response: ResponseHead, raw: bytes, payload: bytes) -> None:
        exchange = self._exchange
        relay, head = exchange.commit(self, response)
        self._relay = relay
        if self._held:
            raw = self._held + raw
            self._held = b""
        relay.body(head, raw, payload)
        exchange.response_bytes += len(payload)
        observer = relay.observer
        if observer is not None:
            exchange.observed(observer)
            if observer.stream and relay.keeps_chunks and self.connection is not None:
                self._flow = StreamFastPath(observer, exchange.client.transport.write, exchange.streamed)

    def flow(self) -> StreamFastPath | None:
        """The fast path for the stream's next chunk; None = use `data`."""
        flow = self._flow
        return flow if flow is not None and flow.is_open else None

    def settle(self) -> None:
        """Report the counts of the fast path up to now."""
        if self._flow is not None:
            self._flow.settle()

    def end(self) -> None:
        """The response is complete. The connection is already back in its pool or closed."""
        option = self._option
        if option is not None and option.holds_back:
            assert self.response is not None
            if option.is_refused(self.response):
                self.connection = self.response = None
                self.begin()
                return
            self._pass_on(option)
        self.settle()
        self._end_transfer(is_whole=False)
        if self.paused:
            self.resume_reading()
        self.over = True
        if self._whole:
            self._exchange.attempt_done(self, self._closes)
            return
        if self.refused_as is not None:
            assert self.response is not None
            error = plain_body(self.response, self._kept) or b""
            if self.refused_as is Cause.RATE_LIMITED and says_overloaded(error):
                self.refused_as = Cause.BUSY
            self._exchange.attempt_lost(self, self.refused_as)
            return
        relay = self._relay
        if relay is None:
            assert self.response is not None
            self._commit(self.response, b"", b"")
            relay = self._relay
            assert relay is not None
        if relay.cut_short():
            self._exchange.attempt_lost(self, Cause.RESET, at_border=True)
        else:
            self._exchange.relayed(relay)
            self._exchange.attempt_done(self, relay.closes)

    def lost(self, cause: Cause) -> None:
        """The attempt failed. If a reused connection had already closed, try once more on a new one."""
        connection = self.connection
        if cause is Cause.CONNECT and connection is not None and not self._fresh:
            self._fresh = True
            self.connection = None
            self.begin()
            return
        at_border = connection is not None and connection.at_border()
        self.drop()
        if self.refused_as is not None and cause is not self.refused_as:
            cause, self.response = self.refused_as, None  # its own error was incomplete
        self._exchange.attempt_lost(self, cause, at_border)

    def timed_out(self, cause: Cause) -> None:
        """Fail the attempt after a timeout."""
        at_border = self.connection is not None and self.connection.at_border()
        self.drop()
        self.refused_as = None
        self._exchange.attempt_lost(self, cause, at_border)

    def kept(self) -> tuple[ResponseHead, bytes] | None:
        """The node's own error response, if it is complete."""
        if self.refused_as is None or self.response is None:
            return None
        return self.response, self._kept

    def broken(self, event: bytes, at_border: bool) -> bool:
        """End the client's stream with an error event. Returns False if the stream does not allow it."""
        return self._relay is not None and self._relay.broken(event, at_border)

    def drop(self) -> None:
        """Give up the attempt. Closing the connection makes the node stop."""
        self.over = True
        if self.attempt.begun_s == inf:
            self.attempt.begun_s = self.pool.time()  # its node is still loading
        self._end_transfer(is_whole=False)
        self.settle()
        if self._task is not None:
            self._task.cancel()
            self._task = None
        if self.connection is not None and self.connection.upstream is self:
            self.connection.abandon()

    def pause_reading(self) -> None:
        """Pause reading from the node, because the client reads slowly."""
        connection = self.connection
        if connection is not None and not self.paused and not connection.transport.is_closing():
            self.paused = True
            connection.transport.pause_reading()

    def resume_reading(self) -> None:
        """Resume reading from the node."""
        connection = self.connection
        if connection is not None and self.paused:
            self.paused = False
            connection.last_s = self.pool.time()
            if not connection.transport.is_closing():
                connection.transport.resume_reading()

    def switched(self, head: ResponseHead, rest: bytes) -> None:
        """The node answered 101: open the tunnel."""
        connection = self.connection
        assert connection is not None
        self.attempt.head_s = self.pool.time()
        self.attempt.status = head.status
        self._exchange.open_tunnel(self, connection, head, rest)


def request_head(exchange: AttemptOwner, pool: Pool, body: bytes | None) -> bytes:
    """The request head for a node, with this body or with one in a file."""
    request, client = exchange.request, exchange.client
    headers = request.headers
    forwarded = headers.get(b"x-forwarded-for")
    address = client.address if forwarded is None else forwarded + b", " + client.address
    size = request.body.size if body is None else len(body)
    end = b"\r\n"
    if size or exchange.method in _WITH_BODY:
        end = b"content-length: %d\r\n\r\n" % size
    elif request.websocket:
        end = b"connection: Upgrade\r\nupgrade: websocket\r\n\r\n"
    return (
        b"%b %b%b HTTP/1.1\r\n%b%bx-request-id: %b\r\nx-forwarded-for: %b\r\nx-forwarded-proto: %b\r\n%b"
        % (
            exchange.method.encode(),
            pool.base,
            exchange.target,
            pool.lines,
            request.lines or b"".join(request.forward),
            exchange.id.encode(),
            address,
            client.scheme,
            end,
        )
    )
