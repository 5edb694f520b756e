"""A byte tunnel between a client and a node, after 101: WebSockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING

from trimtab.gateway.model import Cause, Outcome
from trimtab.gateway.wire.sweep import Sweep

if TYPE_CHECKING:
    from trimtab.gateway.wire.exchange import WireExchange
    from trimtab.gateway.wire.framing import ResponseHead
    from trimtab.gateway.wire.leg import NodeLeg
    from trimtab.gateway.wire.upstream import UpstreamConnection


class Tunnel:
    """Both directions of one tunnel, each at the speed of its slower side."""

    def __init__(
        self,
        client: asyncio.Transport,
        node: asyncio.Transport,
        sweep: Sweep,
        now_s: Callable[[], float],
        idle_s: float,
        closed: Callable[[Cause | None, int], None],
    ) -> None:
        self.tick = -1
        self._client = client
        self._node = node
        self._sweep = sweep
        self._now_s = now_s
        self._idle_s = idle_s
        self._closed: Callable[[Cause | None, int], None] | None = closed
        self._last_s = now_s()
        self._to_client_bytes = 0
        sweep.watch(self)

    def from_client(self, data: bytes) -> None:
        """Bytes for the node."""
        self._last_s = self._now_s()
        self._node.write(data)

    def from_node(self, data: bytes) -> None:
        """Bytes for the client."""
        self._last_s = self._now_s()
        self._to_client_bytes += len(data)
        self._client.write(data)

    def hold(self, client: bool, full: bool) -> None:
        """A write buffer, the client's or the node's, is full or no more: the other side waits, or not."""
        other = self._node if client else self._client
        if other.is_closing():
            return
        if full:
            other.pause_reading()
        else:
            other.resume_reading()

    def close(self, cause: Cause | None = None) -> None:
        """End both sides; what is written already still goes out."""
        closed, self._closed = self._closed, None
        if closed is None:
            return
        self._sweep.unwatch(self)
        self._client.close()
        self._node.close()
        closed(cause, self._to_client_bytes)

    def check(self, now_s: float) -> float:
        """Close a tunnel in which nothing moves."""
        if self._closed is None:
            return inf
        if now_s - self._last_s >= self._idle_s:
            self.close(Cause.IDLE)
            return inf
        return self._last_s + self._idle_s


def open_tunnel(
    exchange: WireExchange, leg: NodeLeg, connection: UpstreamConnection, response: ResponseHead, rest: bytes
) -> None:
    """A WebSocket is open: the bytes of its exchange go through from now on."""
    context = exchange.context
    exchange.committed = True
    exchange.response_status = 101
    leg.attempt.first_byte_s = context.loop.time()
    lines = exchange.lines(leg.pool.says)
    opened = b"%bconnection: Upgrade\r\nupgrade: websocket\r\n%b\r\n" % (response.block, lines)
    context.outbox.now(exchange.client.transport, opened)
    context.sweep.unwatch(exchange)
    exchange.client.switch(exchange, connection, rest)


def tunnel_closed(exchange: WireExchange, cause: Cause | None) -> None:
    """That was all of it; `cause` = how it was lost."""
    if exchange.over:
        return
    exchange.attempts[-1].ended_s = exchange.context.loop.time()
    exchange.attempts[-1].cause = cause
    if cause is not None:
        exchange.leg = None
        exchange.context.dispatcher.failed(exchange, cause)
        exchange.finish(Outcome.FAILED, close=True)
    else:
        exchange.done(closes=True)
