"""A client's request as Envoy shows it: its head, its decision, and what its response tells."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Final, Protocol

from trimtab.gateway.http.request import HINTS, REQUEST_ID, key_of
from trimtab.gateway.http.response_observer import ResponseObserver, observer_for
from trimtab.gateway.model import Attempt, Cause, Dispatcher, Node, ObserverCalls, Outcome, Refusal
from trimtab.gateway.nodes.node_state import cause_of_status
from trimtab.gateway.stalled_streams import StreamGaps
from trimtab.gateway.tenancy.admission import ClientExchange

OF_TRIMTAB: Final = "x-trimtab-"
SECRETS: Final = frozenset(("authorization", "x-api-key", "api-key"))  # the client's: not for backends


class PickedHead:
    """The head of a request, from Envoy's message. Names are in lower case, as in HTTP/2."""

    __slots__ = (
        "content_type",
        "given_id",
        "headers",
        "hinted",
        "key_digest",
        "method",
        "removed",
        "target",
        "websocket",
    )

    def __init__(self, message: Any) -> None:
        headers: dict[bytes, bytes] = {}
        removed = []
        for header in message.headers.headers:
            name, value = header.key, header.raw_value or header.value.encode()
            raw = name.encode()
            headers[raw] = value if raw not in headers else headers[raw] + b", " + value
            if name in SECRETS or name.startswith(OF_TRIMTAB):
                removed.append(name)
        self.method = headers.pop(b":method", b"GET").decode("latin-1")
        self.target = headers.pop(b":path", b"/")
        self.headers = headers
        self.removed = tuple(removed)  # headers that no backend gets
        self.content_type = headers.get(b"content-type", b"").decode("latin-1")
        given = headers.get(b"x-request-id", b"")
        self.given_id = given.decode() if REQUEST_ID.fullmatch(given) else ""
        self.key_digest = sha256(key_of(headers)).digest()
        self.hinted = not HINTS.isdisjoint(headers) or any(n.startswith(OF_TRIMTAB) for n in removed)
        self.websocket = headers.get(b"upgrade", b"").lower() == b"websocket"


class Parts(Protocol):
    """What an exchange needs of the picker."""

    loop: asyncio.AbstractEventLoop
    dispatcher: Dispatcher
    calls: ObserverCalls

    def done(self, exchange: PickedExchange) -> None:
        """A node has served it."""

    def tell_ended(self, exchange: PickedExchange) -> None:
        """It is over."""


class PickedExchange(ClientExchange):
    """An exchange whose request and response pass through Envoy."""

    __slots__ = (
        "_chunk_s",
        "_failure",
        "_picker",
        "_waiter",
        "observer",
        "response_id",
        "submitted",
        "subset",
    )

    request: PickedHead

    def __init__(self, picker: Parts, head: PickedHead) -> None:
        super().__init__(head)
        self.method, self.target = head.method, head.target
        self.path = head.target.partition(b"?")[0].decode("latin-1")
        self.subset: frozenset[int] | None = None
        self.submitted = False
        self.observer: ResponseObserver | None = None
        self.response_id = ""
        self._picker = picker
        self._failure: Cause | None = None  # why no backend's answer came through
        self._waiter: asyncio.Future[None] | None = None
        self._chunk_s = 0.0  # when the latest piece of the response came

    # The dispatcher's side

    def submit(self) -> None:
        """Ask the dispatcher for a node. `attempts` or `refusal` tells what it says, maybe later."""
        picker = self._picker
        self.arrived_s = picker.loop.time()
        self.submitted = True
        for tell in picker.calls.arrived:
            tell(self)
        picker.dispatcher.submit(self)
        picker.dispatcher.decide()

    def start(self, node: Node) -> None:
        """This node was chosen."""
        now_s = self._picker.loop.time()
        self.started_s = self.started_s or now_s
        attempt = Attempt(node, now_s)
        self.attempts.append(attempt)
        for tell in self._picker.calls.started:
            tell(self, attempt)
        self._wake()

    def refuse(self, refusal: Refusal) -> None:
        """It goes to no node."""
        self.refusal, self.response_status = refusal, refusal.status
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    @property
    def over(self) -> bool:
        """Whether its outcome is known."""
        return self.outcome is not None

    @property
    def is_waiting(self) -> bool:
        """Whether it is held: neither a node nor a refusal."""
        return self.node_idx < 0 and self.refusal is None

    async def decided(self) -> None:
        """Wait for the decision."""
        while self.is_waiting:
            self._waiter = self._picker.loop.create_future()
            await self._waiter

    def lost(self, cause: Cause) -> None:
        """The latest attempt has failed before Envoy was told of it: decide again."""
        self._end_attempt(self.attempts[-1], cause)
        self._picker.dispatcher.lost(self, cause)

    def _end_attempt(self, attempt: Attempt, cause: Cause) -> None:
        attempt.cause, attempt.ended_s = cause, self._picker.loop.time()
        for tell in self._picker.calls.lost:
            tell(self, attempt)

    # The response

    def served_by(self, node: Node, tried: Sequence[Node]) -> None:
        """Envoy says which node it went to last. `tried`: the nodes that it was told, in their order."""
        attempt = self.attempts[-1]
        if node is attempt.node:
            return
        before = [attempt.node, *tried[1 : tried.index(node) if node in tried else None]]
        for failed in before:
            if failed is not attempt.node:
                attempt = self._add_attempt(failed)
            self._end_attempt(attempt, Cause.CONNECT)
        self._add_attempt(node)
        self._picker.dispatcher.moved(self, node)

    def _add_attempt(self, node: Node) -> Attempt:
        attempt = Attempt(node, self.attempts[-1].begun_s)
        self.attempts.append(attempt)
        for tell in self._picker.calls.started:
            tell(self, attempt)
        return attempt

    def answered(self, status: int, content_type: bytes, coding: bytes, failure: Cause | None) -> None:
        """The head of the response. `failure`: Envoy answers itself, since no node did."""
        attempt = self.attempts[-1]
        now_s = self._chunk_s = attempt.node.last_byte_s = self._picker.loop.time()
        self.response_status = status
        self.committed = True
        self._failure = failure
        if failure is not None:
            return
        attempt.head_s, attempt.status = now_s, status
        self.observer = observer_for(self.endpoint, content_type, coding, hides_usage=False)
        if self.observer is None and coding:
            self.unread_coding = coding.decode("latin-1")

    def piece(self, body: bytes) -> None:
        """A piece of the response's body."""
        if not body:
            return
        attempt, observer, size = self.attempts[-1], self.observer, len(body)
        now_s = attempt.node.last_byte_s = self._picker.loop.time()
        if not attempt.first_byte_s:
            attempt.first_byte_s = now_s
        self.response_bytes += size
        if observer is None:
            return
        observer.feed(body)
        if observer.stream:
            if self.gaps is None:
                self.gaps = StreamGaps()
            else:
                self.gaps.add((now_s - self._chunk_s,))
            self._chunk_s = now_s
        new = observer.chunks - self.streamed_chunks
        if new:
            self.streamed_chunks += new
            self._picker.dispatcher.progress(self, new)

    # The end

    def ended(self) -> None:
        """The response is whole."""
        attempt, observer = self.attempts[-1], self.observer
        attempt.ended_s = self._picker.loop.time()
        if observer is not None:
            observer.finish()
            self.usage, self.response_id = observer.usage, observer.response_id
        status = self.response_status
        cause = self._failure or (cause_of_status(status, attempt.node) if status >= 429 else None)
        if cause is None:
            self.outcome = Outcome.DONE
            self._picker.done(self)
            return
        attempt.cause = cause
        if self._failure is not None:
            self._end_attempt(attempt, cause)
        self._picker.dispatcher.failed(self, cause)
        self.finish(Outcome.DONE if status < 500 else Outcome.FAILED)

    def gone(self, outcome: Outcome) -> None:
        """Envoy has closed the stream before the end: the client left, Envoy gave up, or shows no more."""
        if self.submitted:
            self._picker.dispatcher.abort(self)
        if self.attempts:
            self.attempts[-1].ended_s = self._picker.loop.time()
        self.finish(outcome)

    def finish(self, outcome: Outcome) -> None:
        """It is over."""
        self.outcome = outcome
        self.ended_s = self._picker.loop.time()
        self.settle_limits()
        self._picker.tell_ended(self)
