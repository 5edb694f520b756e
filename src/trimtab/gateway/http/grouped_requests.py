"""Requests of the gateway itself that stand for those of clients: the parts of one, or one for several.

An inner request has a decision, attempts and retries as any request; its answer goes to its owner, not to a
connection. A request is split where several nodes serve its parts, and its answer is joined from theirs.

Requests for embeddings that come within a window, or wait for a node, are batched: they go to it as one. A
batch has requests of one tenant only, which agree in all but their texts. If a node refuses or loses it, each
request goes on alone: one request cannot fail the others. Where all of them are answered alone, their number
was refused, and later batches of the model are smaller.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

from trimtab.gateway.api.errors import final_refusal
from trimtab.gateway.api.grouped_bodies import (
    batch_key,
    divided,
    items_of,
    join,
    joined,
    parsed,
    split,
    texts_of,
)
from trimtab.gateway.api.usage import read_answer
from trimtab.gateway.http.connection_context import ConnectionContext
from trimtab.gateway.http.framing import ResponseHead
from trimtab.gateway.http.proxied_exchange import ProxiedExchange
from trimtab.gateway.http.request import Request
from trimtab.gateway.http.response_observer import plain_body
from trimtab.gateway.http.response_relay import Relay
from trimtab.gateway.http.tunnel import Closed
from trimtab.gateway.http.upstream_attempt import UpstreamAttempt
from trimtab.gateway.http.upstream_connection import UpstreamConnection
from trimtab.gateway.model import DEADLINE_CODE, Cause, Exchange, Facts, Kind, Node, Outcome, Refusal


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

    def __init__(self, owner: SplitRequest | Batch, outer: ProxiedExchange) -> None:
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
        self, owner: SplitRequest | Batch, outer: ProxiedExchange, name: str, body: bytes, facts: Facts
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


class SplitRequest:
    """The parts of one request. A part that fails for good ends the request."""

    def __init__(self, outer: ProxiedExchange, request: dict[str, object], sizes: Sequence[int]) -> None:
        assert outer.endpoint is not None
        assert outer.facts is not None
        self._outer, self._kind = outer, outer.endpoint.kind
        total = sum(sizes)
        bodies = split(self._kind, request, sizes)
        self._parts = [
            InnerExchange(self, outer, str(k), body, _share(outer.facts, size / total))
            for k, (body, size) in enumerate(zip(bodies, sizes, strict=True), 1)
        ]
        self._left, self._is_over = len(self._parts), False

    def start(self) -> None:
        """Submit all parts."""
        self._outer.group = self
        for part in tuple(self._parts):
            if not self._is_over:
                part.submit(as_it_is=True)

    def left(self, outer: ProxiedExchange) -> None:
        """The client is gone or has another answer: drop the parts."""
        self._end()

    def inner_ended(self, inner: InnerExchange) -> None:
        """A part is over."""
        if self._is_over:
            return
        answer = inner.result
        if answer is None or not 200 <= answer[0].status < 300:
            self._fail(inner)
            return
        self._left -= 1
        if not self._left:
            self._join()

    def _fail(self, part: InnerExchange) -> None:
        self._end()
        outer = self._outer
        if part.result is not None:
            outer.write_kept(*part.result, b"")
        else:
            outer.refuse(part.refusal or final_refusal(Cause.RESET))

    def _join(self) -> None:
        outer = self._outer
        answers = [part.result for part in self._parts if part.result is not None]
        self._end()
        try:
            body = join(self._kind, [body for _, body in answers])
        except ValueError:
            outer.refuse(final_refusal(Cause.BAD_RESPONSE))
            return
        outer.usage, _ = read_answer(self._kind, body)
        outer.started_s = min(part.started_s for part in self._parts)
        outer.keep_result(answers[0][0].of_length(len(body)), body)
        outer.write_kept(answers[0][0], body, b"x-trimtab-parts: %d\r\n" % len(self._parts))

    def _end(self) -> None:
        self._is_over, self._outer.group = True, None
        for part in self._parts:
            if not part.over:
                part.client_gone()


def _share(facts: Facts, frac: float) -> Facts:
    return replace(
        facts,
        prompt_tokens=facts.prompt_tokens * frac if not facts.images else facts.prompt_tokens,
        answers=max(1, round(facts.answers * frac)),
        images=round(facts.images * frac),
        prefix_blocks=(),
    )


logger = logging.getLogger(__name__)

MOST_TEXTS: Final = 2048  # of a batch: what servers accept at once
_LATE: Final = Refusal(504, DEADLINE_CODE, "The deadline passed before a node had answered.")

_MAY_BE_ABOUT_NUMBER: Final = frozenset((400, 413, 422))
SMALLER_S: Final = 600.0  # until larger batches are tried again: a node may have been upgraded

BatchKey = tuple[object, ...]


class BatchSizes:
    """The most texts of a batch by model: servers have limits, and some take one text only."""

    def __init__(self) -> None:
        self._learned: dict[str, tuple[int, float]] = {}  # and until when

    def most(self, model: str, now_s: float) -> int:
        """The most texts that a batch may have."""
        most, until_s = self._learned.get(model, (MOST_TEXTS, now_s))
        return most if now_s < until_s else MOST_TEXTS

    def refused(self, node: Node, model: str, texts: int, now_s: float) -> None:
        """The node has refused so many texts together, and they were answered apart."""
        most = texts // 2
        self._learned[model] = most, now_s + SMALLER_S
        logger.warning(
            "node %s refuses %d texts in one request: batches of %s have at most %d for %.0f s",
            node.name,
            texts,
            model,
            most,
            SMALLER_S,
        )


class _Apart:
    """The requests of a batch that a node has refused, until each is answered alone."""

    def __init__(self, members: list[ProxiedExchange], node: Node, texts: int, sizes: BatchSizes) -> None:
        self._left, self._node, self._texts, self._sizes = len(members), node, texts, sizes
        for member in members:
            member.group = self

    def left(self, outer: ProxiedExchange) -> None:
        """A request is over. If one fails alone too, the refusal may have been about this one."""
        is_answered = outer.outcome is Outcome.DONE and outer.response_status < 300
        self._left = self._left - 1 if is_answered else -1
        if self._left == 0 and outer.facts is not None:
            now_s = outer.context.loop.time()
            self._sizes.refused(self._node, outer.facts.model, self._texts, now_s)


class Batch:
    """One batch, from its first request to the last answer.

    After its window it waits for a node as one request in the queue, in the place of its first, and takes
    further requests until a node has it.
    """

    def __init__(
        self,
        batches: dict[BatchKey, Batch],
        key: BatchKey,
        request: dict[str, Any],
        sizes: BatchSizes,
        most_texts: int,
    ) -> None:
        self._batches, self._key, self._request = batches, key, request
        self._sizes, self._most_texts = sizes, most_texts
        self._members: list[ProxiedExchange] = []
        self._texts: list[list[Any]] = []
        self._timers: list[asyncio.TimerHandle] = []
        self._inner: InnerExchange | None = None
        self._is_sent = False

    def add(self, exchange: ProxiedExchange, texts: list[Any]) -> int:
        """Take a request; returns how many there are."""
        exchange.group = self
        self._members.append(exchange)
        self._texts.append(texts)
        if exchange.deadline_s < float("inf"):
            loop = exchange.context.loop
            self._timers.append(loop.call_at(exchange.deadline_s, self._expire, exchange))
        if self._is_sent:
            self._resize()
        return len(self._members)

    def takes(self, texts: list[Any]) -> bool:
        """Whether no node has it yet, and these texts fit."""
        if self._is_sent and not (self._inner or self._members[0]).is_waiting:
            return False
        return self._n_texts + len(texts) <= self._most_texts

    @property
    def is_full(self) -> bool:
        """Whether no further text fits."""
        return self._n_texts >= self._most_texts

    @property
    def _n_texts(self) -> int:
        return sum(map(len, self._texts))

    def send_after(self, loop: asyncio.AbstractEventLoop, window_s: float) -> None:
        """Send it when its window ends, unless it is full before."""
        self._timers.append(loop.call_later(window_s, self._send))

    def fill(self) -> None:
        """Take no more requests: it is full, or the next one does not fit."""
        self._close()
        self._send()

    def _send(self) -> None:
        """Ask for a node. A request that is alone in it goes as it came, and waits for others meanwhile."""
        if self._is_sent:
            return
        self._is_sent = True
        first = self._members[0]
        if len(self._members) > 1:
            self._make_inner(first).submit(as_it_is=True)
        else:
            first.submit(as_it_is=True)

    def _make_inner(self, first: ProxiedExchange) -> InnerExchange:
        self._inner = inner = InnerExchange(self, first, "batch", b"", _facts_of(self._members))
        self._write(inner)
        return inner

    def _write(self, inner: InnerExchange) -> None:
        inner.body, inner.facts = joined(self._request, self._texts), _facts_of(self._members)
        inner.deadline_s = max(member.deadline_s for member in self._members)

    def _resize(self) -> None:
        """It waits for a node and has more requests than before, or fewer."""
        inner, first = self._inner, self._members[0]
        if inner is None:
            self._make_inner(first).take_place_of(first)
        else:
            self._write(inner)
            inner.take_place_of(inner)

    def _close(self) -> None:
        if self._batches.get(self._key) is self:
            del self._batches[self._key]

    def left(self, outer: ProxiedExchange) -> None:
        """A client is gone or has another answer; the batch goes on for the others."""
        outer.group, inner = None, self._inner
        if inner is None or inner.is_waiting:
            k = self._members.index(outer)
            del self._members[k], self._texts[k]
            if self._members and inner is not None:
                self._resize()
        if any(member.group is self for member in self._members):
            return
        self._stop_timers()
        self._close()
        self._is_sent = True
        if inner is not None and not inner.over:
            inner.client_gone()

    def inner_ended(self, inner: InnerExchange) -> None:
        """The batch is over."""
        self._close()
        result = inner.result
        if result is not None and 200 <= result[0].status < 300:
            try:
                bodies = divided(result[1], self._texts)
            except ValueError:
                self._go_on_alone(inner)
            else:
                self._answer(result[0], bodies, inner)
        elif inner.attempts:
            self._go_on_alone(inner)
        else:  # no node had room for it
            self._refuse(inner.refusal or final_refusal(Cause.BUSY))

    def _answer(self, head: ResponseHead, bodies: list[bytes], inner: InnerExchange) -> None:
        says = b"x-trimtab-batch: %d\r\n" % len(bodies) if len(bodies) > 1 else b""
        for member, body in zip(self._members, bodies, strict=True):
            if self._release(member):
                member.usage, _ = read_answer(Kind.EMBEDDING, body)
                member.started_s = inner.started_s
                member.keep_result(head.of_length(len(body)), body)
                member.write_kept(head, body, says)
        self._stop_timers()

    def _go_on_alone(self, inner: InnerExchange) -> None:
        self._stop_timers()
        members = [member for member in self._members if self._release(member)]
        if len(members) > 1 and inner.response_status in _MAY_BE_ABOUT_NUMBER:
            _Apart(members, inner.attempts[-1].node, self._n_texts, self._sizes)
        for member in members:
            member.submit(as_it_is=True)

    def _refuse(self, refusal: Refusal) -> None:
        self._stop_timers()
        for member in self._members:
            if self._release(member):
                member.refuse(refusal)

    def _release(self, member: ProxiedExchange) -> bool:
        """End the member's part in the batch; returns whether it is still waiting."""
        if member.group is not self:
            return False
        member.group = None
        return not member.over

    def _expire(self, member: ProxiedExchange) -> None:
        if member.group is self and not member.submitted:  # else the queue knows its deadline
            member.give_up(_LATE)

    def _stop_timers(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()


def _facts_of(members: list[ProxiedExchange]) -> Facts:
    facts = [member.facts for member in members if member.facts is not None]
    return replace(facts[0], prompt_tokens=sum(one.prompt_tokens for one in facts))


PartSizes = Callable[[Exchange, int], list[int]]
Batching = Callable[[Exchange], tuple[int, float]]  # most requests of a batch, and its window in seconds
_SPLIT = frozenset((Kind.EMBEDDING, Kind.COMPLETION, Kind.IMAGE))


def _unbatched(_: Exchange) -> tuple[int, float]:
    return 1, 0.0


@dataclass(frozen=True, slots=True)
class GroupedRequests:
    """Implements `connection_context.Grouping`. `split`, `batch`: models whose requests may be."""

    split: frozenset[str]
    part_sizes: PartSizes
    batch: frozenset[str] = frozenset()
    batching: Batching = _unbatched
    _open: dict[BatchKey, Batch] = field(default_factory=dict)
    _sizes: BatchSizes = field(default_factory=BatchSizes)

    def take(self, exchange: ProxiedExchange) -> bool:
        """Split or batch the request, where it can be and a plan says so."""
        facts, endpoint, body = exchange.facts, exchange.endpoint, exchange.body
        if facts is None or endpoint is None or not body or facts.stream or not endpoint.replayable:
            return False
        kind = endpoint.kind
        may_split = kind in _SPLIT and facts.model in self.split
        may_batch = kind is Kind.EMBEDDING and facts.model in self.batch
        if not may_split and not may_batch:
            return False
        request = parsed(body)
        return (may_split and self._split(exchange, kind, request)) or (
            may_batch and self._batch(exchange, facts.model, request)
        )

    def _split(self, exchange: ProxiedExchange, kind: Kind, request: dict[str, object]) -> bool:
        items = items_of(kind, request)
        exchange.parts_max = items
        sizes = self.part_sizes(exchange, items) if items > 1 else []
        if len(sizes) < 2:
            return False
        SplitRequest(exchange, request, sizes).start()
        return True

    def _batch(self, exchange: ProxiedExchange, model: str, request: dict[str, object]) -> bool:
        (most, window_s), most_texts = self.batching(exchange), self._sizes.most(model, exchange.arrived_s)
        texts, tenant = texts_of(request), exchange.tenant
        if min(most, most_texts) < 2 or not texts or tenant is None:
            return False
        about = exchange.target, exchange.route, exchange.session, exchange.priority, exchange.background
        key = (tenant.name, *about, batch_key(request, texts))
        batch = self._open.get(key)
        if batch is not None and not batch.takes(texts):
            batch.fill()
            batch = None
        if batch is None:
            batch = self._open[key] = Batch(self._open, key, request, self._sizes, most_texts)
            batch.send_after(exchange.context.loop, window_s)
        if batch.add(exchange, texts) >= most or batch.is_full:
            batch.fill()
        return True
