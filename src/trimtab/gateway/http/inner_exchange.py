"""A request of the gateway itself for one or several clients' requests: a part, or a batch.

It has a decision, attempts and retries as any request. Its answer goes to its owner, not to a connection.
"""

from __future__ import annotations

import asyncio
from typing import Protocol, cast

from trimtab.gateway.http.connection_context import ConnectionContext
from trimtab.gateway.http.content_codings import plain_body
from trimtab.gateway.http.framing import ResponseHead
from trimtab.gateway.http.proxied_exchange import ProxiedExchange
from trimtab.gateway.http.request import Request
from trimtab.gateway.http.response_relay import Relay
from trimtab.gateway.http.tunnel import Closed
from trimtab.gateway.http.upstream_attempt import UpstreamAttempt
from trimtab.gateway.http.upstream_connection import UpstreamConnection
from trimtab.gateway.model import Exchange, Facts


class InnerOwner(Protocol):
    """The owner of an inner exchange, which waits for its answer."""

    def inner_ended(self, inner: InnerExchange) -> None:
        """The request is over. It has an answer, a refusal, or neither: it broke off."""


class _Nowhere:
    """A transport that drops what is written."""

    def write(self, data: bytes) -> None:
        """Drop bytes."""

    def is_closing(self) -> bool:
        """Whether nothing may be written."""
        return False


_NOWHERE = cast(asyncio.Transport, _Nowhere())


class _InnerClient:
    """The client of an inner request."""

    full = False
    full_since_s = 0.0

    def __init__(self, owner: InnerOwner, outer: ProxiedExchange) -> None:
        self.transport = _NOWHERE
        self.address, self.scheme = outer.client.address, outer.client.scheme
        self._owner = owner
        self.inner: InnerExchange | None = None

    def answered(self, answered: Exchange, close: bool) -> None:
        """Hand the answer to the owner."""
        self.abort()

    def abort(self) -> None:
        """Tell the owner that the request is over."""
        inner, self.inner = self.inner, None
        if inner is not None:
            self._owner.inner_ended(inner)

    def switch(self, connection: UpstreamConnection, rest: bytes, closed: Closed) -> None:
        """Never called: inner requests are no WebSockets."""
        raise NotImplementedError


class InnerExchange(ProxiedExchange):
    """An exchange whose client is the gateway. `result`: head and body, once it is over."""

    __slots__ = ("result",)

    is_inner = True

    def __init__(
        self, owner: InnerOwner, outer: ProxiedExchange, name: str, body: bytes, facts: Facts
    ) -> None:
        """`outer` is the request of a client that it is for, or the first of them."""
        context: ConnectionContext = outer.context
        client = _InnerClient(owner, outer)
        ProxiedExchange.__init__(self, context, client, _request_like(outer.request))
        client.inner = self
        context.exchanges += 1
        self.result: tuple[ResponseHead, bytes] | None = None
        self.id, self.traceparent = f"{outer.id}.{name}", outer.traceparent
        self.endpoint, self.tenant, self.route, self.session = (
            outer.endpoint,
            outer.tenant,
            outer.route,
            outer.session,
        )
        self.arrived_s, self.deadline_s = context.loop.time(), outer.deadline_s
        self.priority, self.background = outer.priority, outer.background
        self.parts_max = outer.parts_max
        self.body, self.facts, self.replayable = body, facts, outer.replayable

    def commit(self, upstream: UpstreamAttempt, response: ResponseHead) -> tuple[Relay, bytes]:
        """Keep the body of the answer while it comes in pieces."""
        relay, head = ProxiedExchange.commit(self, upstream, response)
        if relay.observer is not None:
            relay.observer.kept = bytearray()
        return relay, head

    def commit_whole(self, upstream: UpstreamAttempt, response: ResponseHead, body: bytes) -> bool:
        """Keep the answer."""
        self.result = _uncoded(response, body)
        return ProxiedExchange.commit_whole(self, upstream, response, body)

    def relayed(self, relay: Relay) -> None:
        """Keep the answer, which is whole now."""
        ProxiedExchange.relayed(self, relay)
        if relay.observer is not None and relay.observer.kept is not None:
            self.result = _uncoded(relay.head, bytes(relay.observer.kept))


def _uncoded(head: ResponseHead, body: bytes) -> tuple[ResponseHead, bytes]:
    """An answer that can be read and joined with others."""
    plain = plain_body(head, body) if head.coding else None
    return (head, body) if plain is None else (head.uncoded(), plain)


def _request_like(request: Request) -> Request:
    """The head of a request, without its body."""
    made = Request(0)
    made.method, made.target, made.path = request.method, request.target, request.path
    made.headers, made.forward, made.lines = request.headers, request.forward, request.lines
    made.content_type, made.complete, made.has_body = request.content_type, True, True
    return made
