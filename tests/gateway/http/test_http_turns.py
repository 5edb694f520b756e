"""A turn in stages: what all of its requests go through together, a fault with one is its own."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from support.gateway.plane import Plane, answers, closed, gateway, ok, post
from trimtab.gateway.http import proxied_exchange as exchanges
from trimtab.gateway.http.connection_context import Settings, Timeouts
from trimtab.gateway.http.upstream_attempt import UpstreamAttempt
from trimtab.gateway.model import Cause, Outcome

_USAGE = b'{"usage":{"prompt_tokens":3,"completion_tokens":%d}}'


def _problems() -> list[str]:
    """What the loop is told from now on."""
    told = cast(list[str], [])
    asyncio.get_running_loop().set_exception_handler(lambda loop, said: told.append(str(said["exception"])))
    return told


async def _asked_at_once(g: Plane, count: int) -> list[bytes]:
    """What so many clients are answered who ask in one turn of the loop."""
    clients = [await g.connect() for _ in range(count)]
    for _, writer in clients:
        writer.write(post())
    got = [await reader.read() for reader, _ in clients]
    for _, writer in clients:
        await closed(writer)
    return got


async def test_a_request_that_could_not_be_sent_leaves_the_others_of_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begin, faults = UpstreamAttempt.begin, [RuntimeError("no head")]

    def faulty(upstream: UpstreamAttempt) -> None:
        if faults:
            raise faults.pop()
        begin(upstream)

    settings = Settings(timeouts=Timeouts(connect_s=0.2))
    async with gateway(answers(ok(b"1")), answers(ok(b"2")), settings=settings) as g:
        problems = _problems()
        monkeypatch.setattr(UpstreamAttempt, "begin", faulty)
        got = await _asked_at_once(g, 4)
        assert [answer[-1:] for answer in got] == [b"2", b"2", b"1", b"2"], "the first was sent elsewhere"
        assert problems == ["no head"]
        assert g.notes.losses == [Cause.CONNECT]
        assert [end.outcome for end in g.notes.ends] == [Outcome.DONE] * 4
        assert g.context.exchanges == 0


async def test_an_answer_whose_usage_can_not_be_read_leaves_the_others_of_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read = exchanges.read_answer

    def faulty(kind: Any, body: bytes) -> Any:
        if b":1}" in body:
            raise RuntimeError("no usage")
        return read(kind, body)

    async with gateway(*(answers(ok(_USAGE % tokens)) for tokens in (1, 2))) as g:
        problems = _problems()
        monkeypatch.setattr(exchanges, "read_answer", faulty)
        got = await _asked_at_once(g, 2)
        assert [b"usage" in answer for answer in got] == [True, True]
        assert problems == ["no usage"]
        ends = sorted(g.notes.ends, key=lambda end: end.attempts[0].node.name)
        assert [end.outcome for end in ends] == [Outcome.DONE] * 2
        assert [end.usage and end.usage.completion_tokens for end in ends] == [None, 2]
        assert g.dispatcher.log.count(("done", 200)) == 2
