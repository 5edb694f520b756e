"""A stream's steady state has a way of its own: it must do what the usual way does, to the byte."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest

from support.gateway.plane import admission, local, post
from support.gateway.streams import (
    CONTENTS,
    DONE,
    HEAD,
    STREAMING,
    USAGE,
    Body,
    chunk,
    content,
    some_pieces,
)
from support.gateway.stub_dispatcher import Notes, RoundRobin, node_at
from support.gateway.virtual import VirtualLoop, Wire, run_virtual
from trimtab.gateway.http.client_connection import ClientConnection
from trimtab.gateway.http.connection_context import Settings, Timeouts
from trimtab.gateway.http.data_plane import DataPlane, make_context
from trimtab.gateway.http.response_relay import StreamFastPath
from trimtab.gateway.http.timeouts import HORIZON_S, TICK_S
from trimtab.gateway.http.upstream_attempt import UpstreamAttempt
from trimtab.gateway.model import Outcome

STEP_S = 0.05


@dataclass
class Seen:
    """What client, dispatcher and observers saw of one stream."""

    written: list[tuple[float, bytes]]
    outcome: Outcome | None
    counts: tuple[int, int, int]  # bytes, chunks, chunks of which the dispatcher was told
    usage: Any
    log: list[Any]
    times: tuple[float, ...]
    passed: int

    @property
    def answer(self) -> bytes:
        return b"".join(data for _, data in self.written)


def stream(
    pieces: Iterable[bytes],
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_quick: bool,
    path: bytes = b"/v1/chat/completions",
    hides: bool = True,
    leaves_after: int = -1,
    **limits: float,
) -> Seen:
    """A stream whose node sends these pieces, one a step; the client may leave after so many writes."""
    passed = 0
    passes = StreamFastPath.passes

    def counted(self: StreamFastPath, data: bytes) -> bool:
        nonlocal passed
        is_passed = passes(self, data)
        passed += is_passed
        return is_passed

    async def main() -> Seen:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        dispatcher, notes = RoundRobin([node_at(1)]), Notes()
        settings = Settings(timeouts=Timeouts(**limits))
        context = make_context(loop, settings, admission(count_usage=hides), dispatcher, (notes,), local)
        written: list[tuple[float, bytes]] = []

        def answered(wire: Wire, data: bytes) -> None:
            for at, piece in enumerate(pieces, 1):
                comes = (wire.answer, piece) if piece else (wire.close,)
                loop.call_later(at * STEP_S, *comes)

        def received(wire: Wire, data: bytes) -> None:
            written.append((loop.time(), data))
            if len(written) == leaves_after:
                wire.close()

        loop.peers["127.0.0.1", 1] = answered
        client = ClientConnection(context)
        wire = Wire(loop, client, received)
        client.connection_made(wire)
        wire.answer(post(STREAMING, path, b"x-request-id: r\r\n"))
        async with asyncio.timeout(1e4):
            while not notes.ends:
                await asyncio.sleep(STEP_S / 3)
        await asyncio.sleep(STEP_S)
        await DataPlane(context).close()
        exchange = notes.ends[0]
        attempt, node = exchange.attempts[-1], dispatcher.nodes[0]
        return Seen(
            written,
            exchange.outcome,
            (exchange.response_bytes, exchange.streamed_chunks, dispatcher.progressed),
            (exchange.usage, exchange.response_id),  # type: ignore[attr-defined]
            dispatcher.log,
            (attempt.head_s, attempt.first_byte_s, attempt.ended_s, exchange.ended_s, node.last_byte_s),
            passed,
        )

    with monkeypatch.context() as patch:
        patch.setattr(StreamFastPath, "passes", counted)
        if not is_quick:
            patch.setattr(UpstreamAttempt, "flow", lambda self: None)
        return run_virtual(main())


def alike(pieces: list[bytes], monkeypatch: pytest.MonkeyPatch, **how: Any) -> Seen:
    """What is seen, the same whichever way it goes."""
    quick = stream(pieces, monkeypatch, is_quick=True, **how)
    usual = stream(pieces, monkeypatch, is_quick=False, **how)
    assert usual.passed == 0
    usual.passed = quick.passed
    assert quick == usual
    return quick


def test_chunks_of_content_pass_and_all_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    events = [content(100 + n) for n in range(40)]
    end = [chunk(USAGE), chunk(DONE), b"0\r\n\r\n"]
    seen = alike([HEAD, *map(chunk, events), *end], monkeypatch)
    body = Body(seen.answer)
    assert body.is_whole
    assert body.body == b"".join(events) + DONE
    assert seen.passed == 39  # the first comes with the answer's head
    assert seen.counts == (sum(map(len, [*events, USAGE, DONE])), 40, 40)
    assert seen.outcome is Outcome.DONE
    assert (seen.usage[0].prompt_tokens, seen.usage[0].completion_tokens) == (5, 2)


def test_the_dispatcher_hears_while_a_stream_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    monkeypatch.setattr(RoundRobin, "progress", lambda self, exchange, chunks: told.append(chunks))
    stream([HEAD, *[chunk(content(90))] * 60, chunk(DONE), b"0\r\n\r\n"], monkeypatch, is_quick=True)
    assert sum(told) == 60
    assert max(told) <= (HORIZON_S + TICK_S) / STEP_S + 1


@pytest.mark.parametrize("n_bytes", [*range(60, 62), *range(250, 266), 4_090, *range(4_093, 4_101), 9_000])
def test_sizes_around_another_digit(n_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    event = content(n_bytes)
    assert len(event) in (n_bytes, len(content(0)))
    seen = alike([HEAD, *[chunk(event)] * 3, chunk(DONE), b"0\r\n\r\n"], monkeypatch, hides=False)
    assert Body(seen.answer).body == event * 3 + DONE
    assert seen.passed == (2 if n_bytes < 4_096 else 0)


def test_a_wrong_size_is_never_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes are those of a whole event; what the size line says decides."""
    for n_bytes in (60, 255, 256, 300, 4_095, 4_096):
        event = content(n_bytes)
        for off in (-241, -16, -3, -2, -1, 1, 2, 3, 16, 241, 3_840):
            if len(event) + off > 0:
                wrong = b"%x\r\n%b\r\n" % (len(event) + off, event)
                seen = alike([HEAD, chunk(event), wrong, chunk(event), b""], monkeypatch)
                assert seen.passed == 0
    event = content(0xAB)
    for line in (b"AB", b"0ab", b"+ab", b"ab;x=y", b"ab ", b"a_b", b"0xab", b" ab"):
        seen = alike([HEAD, chunk(event), line + b"\r\n" + event + b"\r\n", chunk(event), b""], monkeypatch)
        assert seen.passed == (1 if line in (b"AB", b"0ab", b"ab;x=y") else 0)


@pytest.mark.parametrize("seed", range(4))
def test_streams_of_all_kinds_go_the_same_either_way(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    passed = 0
    for _ in range(60):
        path = rng.choice(list(CONTENTS))
        how: dict[str, Any] = {"path": path, "hides": rng.random() < 0.6}
        if rng.random() < 0.15:
            how["leaves_after"] = rng.randrange(1, 10)
        if rng.random() < 0.15:
            how["total_s"] = rng.uniform(0.2, 1.5)
        passed += alike(some_pieces(rng, CONTENTS[path]), monkeypatch, **how).passed
    assert passed > 200


def test_a_stream_that_stalls_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = [HEAD, *[chunk(content(90))] * 30]
    seen = alike(pieces, monkeypatch, idle_s=2.0)
    assert seen.outcome is Outcome.FAILED
    assert seen.passed == 29
    assert seen.counts[1:] == (30, 30)
    assert 2.0 <= seen.times[3] - 31 * STEP_S < 3.2  # it is looked at once a second
