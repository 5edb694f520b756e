"""Writes that are put off to the end of a turn: nothing overtakes them, nothing is lost at a close."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from support.gateway.plane import answers, gateway, ok, post
from trimtab.gateway.http.inbox import ALONE_S, Inbox, Outbox


class _Transport:
    def __init__(self, log: list[tuple[str, bytes]], name: str) -> None:
        self._log, self._name, self._closing = log, name, False

    def write(self, data: bytes) -> None:
        assert not self._closing
        self._log.append((self._name, data))

    def close(self) -> None:
        self._closing = True
        self._log.append((self._name, b"closed"))

    def is_closing(self) -> bool:
        return self._closing


def _two() -> tuple[list[tuple[str, bytes]], Any, Any]:
    log: list[tuple[str, bytes]] = []
    return log, cast(Any, _Transport(log, "a")), cast(Any, _Transport(log, "b"))


async def test_what_is_put_goes_out_at_the_end_of_the_turn_in_its_order() -> None:
    log, a, b = _two()
    outbox = Outbox(asyncio.get_running_loop())
    for turn in range(2):
        log.clear()
        outbox.put(a, b"1")
        outbox.put(b, b"2")
        outbox.put(a, b"3")
        assert log == []
        await asyncio.sleep(0)
        assert log == [("a", b"1"), ("b", b"2"), ("a", b"3")], turn


async def test_a_direct_write_and_a_close_do_not_overtake() -> None:
    log, a, b = _two()
    outbox = Outbox(asyncio.get_running_loop())
    outbox.put(a, b"1")
    outbox.now(a, b"2")
    assert log == [("a", b"1"), ("a", b"2")]
    outbox.put(b, b"3")
    outbox.close(b)
    assert log[2:] == [("b", b"3"), ("b", b"closed")]
    await asyncio.sleep(0)
    assert len(log) == 4  # each once


async def test_what_is_meant_for_a_closed_transport_is_dropped() -> None:
    log, a, b = _two()
    outbox = Outbox(asyncio.get_running_loop())
    outbox.put(a, b"1")
    outbox.put(b, b"2")
    a.close()
    await asyncio.sleep(0)
    assert log == [("a", b"closed"), ("b", b"2")]


class _Clock:
    """An event loop's turns with a time of the test's own."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.call_soon, self.call_exception_handler = loop.call_soon, loop.call_exception_handler
        self.now_s = 0.0

    def time(self) -> float:
        return self.now_s


class _Answering:
    """A receiver that answers what it is sent, and notes when it has done more."""

    def __init__(self, outbox: Outbox, log: list[tuple[str, bytes]], transport: Any) -> None:
        self.transport, self._outbox, self._log = transport, outbox, log

    def received(self, data: bytes) -> None:
        self._outbox.put(self.transport, data)
        self._outbox.put(self.transport, data.upper())
        self._log.append(("learned", data))


async def test_what_came_of_the_only_read_of_a_turn_is_written_before_anything_else_is_done() -> None:
    log, a, b = _two()
    clock = _Clock()
    outbox = Outbox(asyncio.get_running_loop())
    inbox = Inbox(cast(Any, clock), outbox)
    inbox.then = lambda: log.append(("told", b""))
    one, other = _Answering(outbox, log, a), _Answering(outbox, log, b)
    inbox.put(one, b"x")
    await asyncio.sleep(0)
    assert log == [("a", b"x"), ("a", b"X"), ("learned", b"x"), ("told", b"")]
    log.clear()
    inbox.put(one, b"x")
    inbox.put(other, b"y")
    await asyncio.sleep(0)
    written = [("a", b"x"), ("a", b"X"), ("b", b"y"), ("b", b"Y")]
    assert log == [("learned", b"x"), ("learned", b"y"), *written, ("told", b"")]
    log.clear()
    clock.now_s = 2 * ALONE_S  # a read after a pause shares its turn with no other
    inbox.put(one, b"x")
    assert log == [("a", b"x"), ("a", b"X"), ("learned", b"x"), ("told", b"")]
    log.clear()
    outbox.put(b, b"before")
    inbox.put(other, b"y")
    inbox.take()
    assert log == [("learned", b"y"), ("b", b"before"), ("b", b"y"), ("b", b"Y"), ("told", b"")]
    log.clear()
    a.close()
    inbox.put(one, b"x")
    inbox.take()
    assert log == [("a", b"closed"), ("learned", b"x"), ("told", b"")]


async def test_refusals_and_closing_answers_follow_the_answers_before_them() -> None:
    """Whole answers are put off; what follows them on the same connection is written directly."""

    async with gateway(answers(ok(b'"first"'))) as g:
        health = b"GET /health HTTP/1.1\r\nhost: g\r\n\r\n"
        unknown = b"GET /nowhere HTTP/1.1\r\nhost: g\r\n\r\n"
        one = post(close=False)
        data = one + unknown + one + health + one + b"\0\r\n\r\n"
        answer = await g.raw(data)
        lines = [line for line in answer.split(b"\r\n") if b"HTTP/1.1 " in line]
        statuses = [line.split(b"HTTP/1.1 ")[1][:3] for line in lines]
        assert statuses == [b"200", b"404", b"200", b"200", b"200", b"400"]
