"""Requests for embeddings that come within a window and go to a node as one.

A batch has requests of one tenant only, which agree in all but their texts. If a node refuses or loses it,
each request goes on alone: one request cannot fail the others.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, Final

from trimtab.gateway.api.batch_body import divided, joined
from trimtab.gateway.api.usage import read_answer
from trimtab.gateway.http.final_errors import final_refusal
from trimtab.gateway.http.framing import ResponseHead
from trimtab.gateway.http.inner_exchange import InnerExchange
from trimtab.gateway.http.proxied_exchange import ProxiedExchange
from trimtab.gateway.model import DEADLINE_CODE, Cause, Facts, Kind, Refusal

MOST_TEXTS: Final = 2048  # of a batch: what servers accept at once
_LATE: Final = Refusal(504, DEADLINE_CODE, "The deadline passed before a node had answered.")

BatchKey = tuple[object, ...]


class Batch:
    """One batch, from its first request to the last answer."""

    def __init__(self, batches: dict[BatchKey, Batch], key: BatchKey, request: dict[str, Any]) -> None:
        self._batches, self._key, self._request = batches, key, request
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
        return len(self._members)

    def has_room(self, texts: list[Any]) -> bool:
        """Whether the texts of one more request fit."""
        return sum(map(len, self._texts)) + len(texts) <= MOST_TEXTS

    def send_after(self, loop: asyncio.AbstractEventLoop, window_s: float) -> None:
        """Send it when its window ends, unless it is full before."""
        self._timers.append(loop.call_later(window_s, self.send))

    def send(self) -> None:
        """Send it now. A request that is alone in it goes as it came."""
        if self._is_sent:
            return
        self._is_sent = True
        if self._batches.get(self._key) is self:
            del self._batches[self._key]
        pairs = [(m, t) for m, t in zip(self._members, self._texts, strict=True) if m.group is self]
        self._members, self._texts = [m for m, _ in pairs], [t for _, t in pairs]
        if len(pairs) < 2:
            self._go_on_alone()
            return
        first = self._members[0]
        body = joined(self._request, self._texts)
        self._inner = inner = InnerExchange(self, first, "batch", body, _facts_of(self._members))
        inner.deadline_s = max(member.deadline_s for member in self._members)
        inner.submit(as_it_is=True)

    def left(self, outer: ProxiedExchange) -> None:
        """A client is gone or has another answer; the batch goes on for the others."""
        outer.group = None
        if any(member.group is self for member in self._members):
            return
        self._stop_timers()
        if self._batches.get(self._key) is self:
            del self._batches[self._key]
        self._is_sent = True
        if self._inner is not None and not self._inner.over:
            self._inner.client_gone()

    def inner_ended(self, inner: InnerExchange) -> None:
        """The batch is over."""
        result = inner.result
        if result is not None and 200 <= result[0].status < 300:
            try:
                bodies = divided(result[1], self._texts)
            except ValueError:
                self._go_on_alone()
            else:
                self._answer(result[0], bodies, inner)
        elif inner.attempts:
            self._go_on_alone()
        else:  # no node had room for it
            self._refuse(inner.refusal or final_refusal(Cause.BUSY))

    def _answer(self, head: ResponseHead, bodies: list[bytes], inner: InnerExchange) -> None:
        says = b"x-trimtab-batch: %d\r\n" % len(bodies)
        for member, body in zip(self._members, bodies, strict=True):
            if self._release(member):
                member.usage, _ = read_answer(Kind.EMBEDDING, body)
                member.started_s = inner.started_s
                member.keep_result(head.of_length(len(body)), body)
                member.write_kept(head, body, says)
        self._stop_timers()

    def _go_on_alone(self) -> None:
        self._stop_timers()
        for member in self._members:
            if self._release(member):
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
        if member.group is self:
            member.give_up(_LATE)

    def _stop_timers(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()


def _facts_of(members: list[ProxiedExchange]) -> Facts:
    facts = [member.facts for member in members if member.facts is not None]
    return replace(facts[0], prompt_tokens=sum(one.prompt_tokens for one in facts))
