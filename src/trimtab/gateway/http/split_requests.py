"""A client's request that several nodes serve in parts, and its answer, joined from theirs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trimtab.gateway.api.errors import final_refusal
from trimtab.gateway.api.split_body import join, split
from trimtab.gateway.api.usage import read_answer
from trimtab.gateway.http.inner_exchange import InnerExchange
from trimtab.gateway.http.proxied_exchange import ProxiedExchange
from trimtab.gateway.model import Cause, Facts


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
