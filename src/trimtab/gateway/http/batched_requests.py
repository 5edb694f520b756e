"""Requests for embeddings that come within a window, or wait for a node, and go to it as one.

A batch has requests of one tenant only, which agree in all but their texts. If a node refuses or loses it,
each request goes on alone: one request cannot fail the others. Where all of them are answered alone, their
number was refused, and later batches of the model are smaller.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Any, Final

from trimtab.gateway.api.batch_body import divided, joined
from trimtab.gateway.api.errors import final_refusal
from trimtab.gateway.api.usage import read_answer
from trimtab.gateway.http.framing import ResponseHead
from trimtab.gateway.http.inner_exchange import InnerExchange
from trimtab.gateway.http.proxied_exchange import ProxiedExchange
from trimtab.gateway.model import DEADLINE_CODE, Cause, Facts, Kind, Node, Outcome, Refusal

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
