"""A client's request in the data plane: attempts, commit point, timeouts, end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from trimtab.gateway.api.errors import final_event, final_refusal, response_bytes
from trimtab.gateway.api.usage import read_answer
from trimtab.gateway.http.cached_answers import ResultCache
from trimtab.gateway.http.connection_context import Client, ConnectionContext, Group, Timeouts
from trimtab.gateway.http.exchange_timeouts import look
from trimtab.gateway.http.framing import Length, ResponseHead
from trimtab.gateway.http.request import IncomingExchange, Request
from trimtab.gateway.http.response_observer import ResponseObserver, observer_for, plain_body
from trimtab.gateway.http.response_relay import Relay, connection_line
from trimtab.gateway.http.upstream_attempt import JOINED_BYTES, UpstreamAttempt
from trimtab.gateway.http.upstream_connection import UpstreamConnection, node_line
from trimtab.gateway.model import Attempt, Cause, Dialect, Node, Outcome, Refusal, Usage
from trimtab.gateway.nodes.node_state import cause_of_status
from trimtab.gateway.nodes.tenant_holds import name_of
from trimtab.gateway.stalled_streams import StreamGaps

MAX_LOST_NODES = 2  # a request that has lost this many nodes may itself crash them
_REFUSALS = (Cause.CONNECT, Cause.BUSY, Cause.RATE_LIMITED, Cause.LOAD)  # the node has done no work


class ProxiedExchange(IncomingExchange):
    """The data plane's exchange. `over`: its response is written, or the client has disconnected."""

    __slots__ = (
        "_cache_key",
        "_closes",
        "_kept",
        "_lost_nodes",
        "_ready",
        "_retries",
        "_unread",
        "client",
        "context",
        "group",
        "hedge_upstream",
        "limits",
        "over",
        "response_id",
        "submitted",
        "task",
        "tick",
        "upstream",
    )

    def __init__(self, context: ConnectionContext, client: Client, request: Request) -> None:
        IncomingExchange.__init__(self, request)
        self.context = context
        self.client = client
        self.tick = -1
        self.over = False
        self.group: Group | None = None  # the parts or the batch that it is served by
        self.submitted = False
        self.response_id = ""
        self.task: asyncio.Task[None] | None = None  # local work on the request
        self._ready: asyncio.Future[None] | None = None  # set when the client's write buffer has room
        self.upstream: UpstreamAttempt | None = None
        self.hedge_upstream: UpstreamAttempt | None = None
        self._kept: tuple[ResponseHead, bytes] | None = None
        self.limits: Timeouts = context.settings.timeouts
        self._lost_nodes = 0
        self._retries = 0
        self._unread = b""  # a whole response, from which the usage is not read yet
        self._cache_key = b""  # of the answer in the result cache; b"" = it is not kept
        self._closes = False  # the client's connection closes after the response

    # The dispatcher's side

    def submit(self, *, as_it_is: bool = False) -> None:
        """Submit the complete request to the dispatcher. `as_it_is`: neither cached, split nor batched."""
        context = self.context
        facts, own = self.facts, context.settings.model_timeouts
        if own and facts is not None and facts.model in own:
            self.limits = own[facts.model]
        has_other_ways = context.results is not None or context.grouping is not None
        if has_other_ways and not as_it_is and self._is_served_otherwise():
            return
        self.submitted = True
        payer = name_of(self.tenant)
        context.retries.earn(payer)
        if context.settings.hedge_delay_s:
            context.hedges.earn(payer)
        for tell in context.on_arrived:
            tell(self)
        context.dispatcher.submit(self)
        if not context.outbox.is_awaited:
            context.dispatcher.decide()

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for its first node."""
        return self.submitted and not self.attempts and not self.over

    def take_place_of(self, waiting: ProxiedExchange) -> None:
        """Wait in place of another exchange that `is_waiting`, or go on waiting with another size."""
        if waiting is not self:
            self.submitted, waiting.submitted = True, False
            self.limits, self.arrived_s = waiting.limits, waiting.arrived_s
            for tell in self.context.on_arrived:
                tell(self)
        self.context.dispatcher.replace(waiting, self)

    def _is_served_otherwise(self) -> bool:
        """Whether the result cache has the answer, or parts or a batch bring it."""
        results, grouping = self.context.results, self.context.grouping
        if results is not None and self._answered_before(results):
            return True
        return grouping is not None and grouping.take(self)

    def _answered_before(self, results: ResultCache) -> bool:
        """Answer from the result cache where it has the answer; else note the key for the node's answer."""
        key = results.key_of(self)
        if not key:
            return False
        now_s = self.context.loop.time()
        found = results.find(key, self, now_s)
        if found is None:
            self._cache_key = key
            return False
        age_s = int(now_s - found.kept_s)
        self.write_kept(found.head, found.body, b"x-trimtab-cache: hit\r\nage: %d\r\n" % age_s)
        return True

    def keep_result(self, head: ResponseHead, body: bytes) -> None:
        """Keep an answer in the result cache, where the request has a place there."""
        context = self.context
        if self._cache_key and context.results is not None:
            context.results.keep(self._cache_key, head, body, context.loop.time())

    def start(self, node: Node) -> None:
        """Send the request to this node."""
        if not self.over:
            self._begin(node)

    def _begin(self, node: Node, hedge: bool = False) -> None:
        context = self.context
        now_s = context.loop.time()
        attempt = Attempt(node, now_s)
        attempt.hedge = hedge
        if not self.attempts:
            self.started_s = now_s
        self.attempts.append(attempt)
        upstream = UpstreamAttempt(self, attempt, context.pools.of(node))
        if hedge:
            self.hedge_upstream = upstream
        else:
            self.upstream = upstream
        loader, facts = node.loader, self.facts
        missing = loader.missing(node, facts.model) if loader is not None and facts is not None else None
        if missing:
            upstream.begin_after(loader.bring(node, missing))
        else:
            context.send(upstream)
        context.scanner.watch(self)
        for tell in context.on_started:
            tell(self, attempt)

    @property
    def may_be_taken_back(self) -> bool:
        """Whether nothing of the answer was sent, and the request may be repeated."""
        is_open = self.upstream is not None and self.hedge_upstream is None and not self.committed
        return is_open and self.replayable and not self.request.websocket

    def take_back(self) -> None:
        """Drop the attempt. The node is not blamed, and it is no retry."""
        assert self.upstream is not None
        self.upstream.attempt.cause = Cause.PREEMPTED
        self._drop_attempts()

    def refuse(self, refusal: Refusal) -> None:
        """Answer with a refusal, or with the last node's own error response if one was kept."""
        if self.over:
            return
        kept = self._kept
        if kept is not None and not refusal.is_late:
            self.write_kept(*kept, node_line(self.attempts[-1].node))
            return
        self.refusal = refusal
        self.response_status = refusal.status
        close = self.closes()
        dialect = self.endpoint.dialect if self.endpoint is not None else Dialect.OPENAI
        response = response_bytes(
            refusal, dialect, self.id, head_only=self.method == "HEAD", close=close, own=self.own_lines
        )
        self.context.outbox.now(self.client.transport, response)
        if refusal.is_late:
            outcome = Outcome.EXPIRED
        else:
            outcome = Outcome.FAILED if self.attempts else Outcome.REFUSED
        self.finish(outcome, close)

    def answer(self, status: int, head: bytes, body: bytes) -> None:
        """Write a response of the gateway itself, and end the exchange."""
        self.response_status = status
        if self.method == "HEAD":
            body = b""
        self.response_bytes += len(body)
        close = self.closes()
        if head or body:
            self.context.outbox.now(self.client.transport, head + body)
        self.finish(_outcome(status), close)

    def write_kept(self, head: ResponseHead, body: bytes, says: bytes) -> None:
        """Write a whole response that came earlier. `says`: header lines about where it comes from."""
        if head.length is not Length.NONE:
            head = head.of_length(len(body))
        lines = self.lines(says)
        outbox = self.context.outbox
        relay = Relay(outbox, self.client.transport, head, None, self.request.http10, self.closes())
        self.response_status = head.status
        self.response_bytes = len(body)
        outbox.now(self.client.transport, relay.begin(lines, False) + body)
        self.finish(_outcome(head.status), relay.closes)

    # The attempts' side

    def may_retry(self, cause: Cause, upstream: UpstreamAttempt) -> bool:
        """Whether another attempt is allowed after this loss. `attempt_lost` checks the budget afterwards."""
        if self.committed or upstream.attempt.hedge or self.hedge_upstream is not None:
            return False
        if self._retries >= self.context.settings.max_retries or self.request.websocket:
            return False
        if self.context.loop.time() >= self.deadline_s:
            return False
        if cause is Cause.RATE_LIMITED:
            return self._may_try_other_rate()
        if cause in _REFUSALS:
            return True
        may_repeat = self.replayable and self._lost_nodes + 1 < MAX_LOST_NODES
        return may_repeat and self.context.dispatcher.has_another(self)

    def _may_try_other_rate(self) -> bool:
        """Whether to try a second node after a 429: its rate is its own, a third one says nothing new."""
        is_first = all(attempt.cause is not Cause.RATE_LIMITED for attempt in self.attempts[:-1])
        return is_first and self.context.dispatcher.has_another(self)

    def commit(self, upstream: UpstreamAttempt, response: ResponseHead) -> tuple[Relay, bytes]:
        """Commit to this node's response at its first body byte. Returns the relay and the head to write."""
        self._take(upstream, response)
        request = self.request
        observer = observer_for(self.endpoint, response.content_type, response.coding, upstream.asks_usage)
        if observer is None and response.coding:
            self.unread_coding = response.coding.decode("latin-1")
            upstream.stop_asking()
        if self._cache_key and observer is not None and not observer.stream:
            observer.kept = bytearray()
        transport, outbox = self.client.transport, self.context.outbox
        relay = Relay(outbox, transport, response, observer, request.http10, self.closes())
        if self.client.full:
            upstream.pause_reading()
        return relay, relay.begin(self.lines(upstream.pool.says), request.http10)

    def commit_whole(self, upstream: UpstreamAttempt, response: ResponseHead, body: bytes) -> bool:
        """Write a response that arrived in one piece. Returns whether the client's connection closes."""
        self._take(upstream, response)
        size = len(body)
        self.response_bytes += size
        closes = self.closes()
        head = b"%bcontent-length: %d\r\n%bx-request-id: %b\r\n%b\r\n" % (
            response.block_beside(own) if (own := self.own_lines) else response.block,
            size,
            connection_line(closes, self.request.http10),
            self.id.encode(),
            upstream.pool.says + own,
        )
        transport, outbox = self.client.transport, self.context.outbox
        if size <= JOINED_BYTES:
            outbox.put(transport, head + body)
        else:
            outbox.now(transport, head)
            transport.write(body)
        if self._cache_key:
            self.keep_result(response, body)
        if response.json and self.endpoint is not None:
            self._unread = self._read(response, body)  # for `read_usage`
        return closes

    def _read(self, response: ResponseHead, body: bytes) -> bytes:
        """The body without its content coding; b"" = it cannot be read."""
        plain = plain_body(response, body)
        if plain is None:
            self.unread_coding = response.coding.decode("latin-1")
        return plain or b""

    def _take(self, upstream: UpstreamAttempt, response: ResponseHead) -> None:
        """Make this attempt the one that answers, and drop the other of two hedged attempts."""
        if self.hedge_upstream is not None:
            other = self.hedge_upstream if upstream is self.upstream else self.upstream
            if other is not None and other is not upstream:
                other.drop()
                self.context.dispatcher.release(other.attempt.node, self)
            self._go_on_with(upstream)
        self.committed = True
        self.context.dispatcher.committed(self)
        self.response_status = response.status
        assert upstream.connection is not None
        upstream.attempt.first_byte_s = upstream.connection.last_s

    def _go_on_with(self, upstream: UpstreamAttempt) -> None:
        """Keep this one of two attempts. It becomes the last in `attempts`, because the last one counts."""
        self.upstream, self.hedge_upstream = upstream, None
        attempts = self.attempts
        if attempts[-1] is not upstream.attempt:
            attempts.remove(upstream.attempt)
            attempts.append(upstream.attempt)

    def closes(self) -> bool:
        """Whether the client's connection closes after the response."""
        request = self.request
        return not request.keep_alive or (request.has_body and not request.complete) or self.context.draining

    def lines(self, of_node: bytes) -> bytes:
        """The gateway's own header lines of a response."""
        return b"x-request-id: %b\r\n%b%b" % (self.id.encode(), of_node, self.own_lines)

    def observed(self, observer: ResponseObserver) -> None:
        """Report new chunks of the body to the dispatcher."""
        new = observer.chunks - self.streamed_chunks
        if new:
            self.streamed_chunks += new
            self.context.dispatcher.progress(self, new)

    def streamed(self, observer: ResponseObserver, payload_bytes: int, gaps_s: Sequence[float]) -> None:
        """Count body bytes and gaps of an observed stream, and report its new chunks."""
        self.response_bytes += payload_bytes
        if self.gaps is None:
            self.gaps = StreamGaps()
        self.gaps.add(gaps_s)
        if gaps_s:
            node = self.attempts[-1].node
            node.gap_s += sum(gaps_s)
            node.gaps += len(gaps_s)
        self.observed(observer)

    def relayed(self, relay: Relay) -> None:
        """End a response that arrived in several pieces."""
        relay.end()
        observer = relay.observer
        if observer is not None:
            self.usage = observer.usage
            self.response_id = observer.response_id
            if not observer.is_readable:
                self.unread_coding = relay.head.coding.decode("latin-1")
            if observer.kept is not None:
                self.keep_result(relay.head, bytes(observer.kept))

    def attempt_done(self, upstream: UpstreamAttempt, closes: bool) -> None:
        """The attempt's whole response is written to the client."""
        assert upstream.connection is not None
        upstream.attempt.ended_s = upstream.connection.last_s
        status = self.response_status
        cause = cause_of_status(status, upstream.attempt.node) if status >= 429 else None
        if cause is None:
            self.done(closes)
        else:
            self.upstream = None
            upstream.attempt.cause = cause
            self.read_usage()
            self.context.dispatcher.failed(self, cause)
            self.finish(_outcome(status), closes)

    def done(self, closes: bool) -> None:
        """A whole response without error: the context reads its usage, reports it and ends the exchange."""
        self.upstream = None
        self._closes = closes
        self.context.done(self)

    def read_usage(self) -> None:
        """Read the usage from a response that arrived in one piece."""
        body, self._unread = self._unread, b""
        if body and self.endpoint is not None:
            self.usage, self.response_id = read_answer(self.endpoint.kind, body)

    def end(self) -> None:
        """End the exchange. Called after the dispatcher has processed its completion."""
        self.finish(_DONE, self._closes)

    def attempt_lost(self, upstream: UpstreamAttempt, cause: Cause, at_border: bool = False) -> None:
        """Handle a failed attempt: continue the hedge, retry, or answer with an error."""
        context = self.context
        attempt = upstream.attempt
        attempt.cause = cause
        attempt.ended_s = context.loop.time()
        for tell in context.on_lost:
            tell(self, attempt)
        other = self.hedge_upstream if upstream is self.upstream else self.upstream
        if other is not None and other is not upstream:  # the other of two hedged attempts goes on
            self._go_on_with(other)
            context.dispatcher.release(attempt.node, self)
            return
        self.upstream = self.hedge_upstream = None
        if self.committed:
            self._break_off(upstream, cause, at_border)
            return
        retry = self.may_retry(cause, upstream) and context.retries.take(name_of(self.tenant))
        self._kept = upstream.kept()
        if cause not in _REFUSALS:
            self._lost_nodes += 1
        if retry:
            self._retries += 1
            context.dispatcher.lost(self, cause)
            return
        context.dispatcher.failed(self, cause)
        self.refuse(final_refusal(cause, attempt.retry_after_s))

    def move(self, attempt: Attempt) -> bool:
        """Move the request away from a node that seems frozen, if another is ready and a retry is allowed."""
        upstream = self.upstream
        if self.over or upstream is None or upstream.attempt is not attempt:
            return False
        has_retry = self.context.retries.has_one(name_of(self.tenant))
        if not has_retry or not self.may_retry(Cause.FIRST_BYTE, upstream):
            return False
        upstream.timed_out(Cause.FIRST_BYTE)
        return True

    def _break_off(self, upstream: UpstreamAttempt, cause: Cause, at_border: bool) -> None:
        self.context.dispatcher.failed(self, cause)
        event = final_event(cause, self.endpoint)
        reported = upstream.broken(event, at_border)
        self.finish(Outcome.FAILED, close=True, broken=not reported)

    # WebSockets

    def open_tunnel(
        self, upstream: UpstreamAttempt, connection: UpstreamConnection, response: ResponseHead, rest: bytes
    ) -> None:
        """Open a WebSocket tunnel. Its bytes are forwarded from now on."""
        context = self.context
        self.committed = True
        self.response_status = 101
        upstream.attempt.first_byte_s = context.loop.time()
        lines = self.lines(upstream.pool.says)
        block = response.block_beside(self.own_lines)
        opened = b"%bconnection: Upgrade\r\nupgrade: websocket\r\n%b\r\n" % (block, lines)
        context.outbox.now(self.client.transport, opened)
        context.scanner.unwatch(self)
        self.client.switch(connection, rest, self._tunnel_closed)

    def _tunnel_closed(self, cause: Cause | None, sent_bytes: int, usage: Usage | None) -> None:
        """End the exchange of a closed tunnel. `cause`: the reason of a loss; None = a normal end."""
        self.response_bytes, self.usage = sent_bytes, usage
        if self.over:
            return
        self.attempts[-1].ended_s = self.context.loop.time()
        self.attempts[-1].cause = cause
        if cause is not None:
            self.upstream = None
            self.context.dispatcher.failed(self, cause)
            self.finish(Outcome.FAILED, close=True)
        else:
            self.done(closes=True)

    # The client's side

    def client_gone(self) -> None:
        """The client disconnected: drop the attempts at once. The nodes are not blamed."""
        if self.over:
            return
        self._drop_attempts()
        if self.task is not None:
            self.task.cancel()
        if self.submitted:
            self.context.dispatcher.abort(self)
        self.finish(Outcome.CANCELLED, close=True)

    async def client_takes_more(self) -> None:
        """Wait while the client's buffer is full."""
        if self.client.full and not self.over:
            self._ready = self.context.loop.create_future()
            await self._ready

    def client_full(self) -> None:
        """The client reads slowly."""
        if self.upstream is not None and self.committed:
            self.upstream.pause_reading()

    def client_ready(self) -> None:
        """The client has caught up."""
        if self.upstream is not None:
            self.upstream.resume_reading()
        if self._ready is not None and not self._ready.done():
            self._ready.set_result(None)

    def finish(self, outcome: Outcome, close: bool, broken: bool = False) -> None:
        """End the exchange. `close`: close the client's connection; `broken`: reset it."""
        self.over = True
        self.outcome = outcome
        if self.group is not None:
            self.group.left(self)
        context = self.context
        self.ended_s = context.loop.time()
        context.scanner.unwatch(self)
        context.exchanges -= 1
        body = self.request.body
        context.buffered_bytes -= body.in_memory
        body.close()
        self.settle_limits()
        context.tell_ended(self)
        if broken:
            self.client.abort()
        else:
            self.client.answered(self, close)

    # Time

    def check(self, now_s: float) -> float:
        """Check timeouts and the time of a hedge."""
        context = self.context
        return look(self, now_s, context.scanner.stall_detector.since_s, context.settings.hedge_delay_s)

    def give_up(self, refusal: Refusal) -> None:
        """Stop all attempts and answer with this refusal. A response that has begun breaks off."""
        if self.over:
            return
        self._drop_attempts()
        if self.submitted:
            self.context.dispatcher.abort(self)
        self._kept = None
        if self.committed:
            self.finish(Outcome.FAILED, close=True, broken=True)
        else:
            self.refuse(refusal)

    def _drop_attempts(self) -> None:
        for upstream in (self.upstream, self.hedge_upstream):
            if upstream is not None:
                upstream.drop()
                upstream.attempt.ended_s = self.context.loop.time()
        self.upstream = self.hedge_upstream = None

    def try_hedge(self) -> None:
        """Send a hedge to a second node, if a node is free and the budget allows it."""
        context = self.context
        if context.hedges.take(name_of(self.tenant)):
            node = context.dispatcher.hedge(self)
            if node is not None:
                self._begin(node, hedge=True)


_DONE, _FAILED = Outcome.DONE, Outcome.FAILED


def _outcome(status: int) -> Outcome:
    return _DONE if status < 500 else _FAILED
