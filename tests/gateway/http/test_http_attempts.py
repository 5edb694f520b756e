"""Nodes that fail: what is tried again, what the client gets, and what is told to the dispatcher."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest

from support.gateway.plane import (
    CHAT,
    WAIT_S,
    Serve,
    admission,
    answers,
    closed,
    gateway,
    ok,
    post,
    read_request,
)
from support.ports import reserved_port
from support.waiting import until
from trimtab.gateway.http.connection_context import Settings, TenantBudget, Timeouts
from trimtab.gateway.model import DEADLINE_CODE, Cause, Outcome, Refusal

BUSY = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 7\r\ncontent-length: 4\r\n\r\nbusy"
LIMITED = BUSY.replace(b"503 Service Unavailable", b"429 Too Many Requests")
OVERLOADED = (
    b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 61\r\n\r\n"
    b'{"error": "Model is overloaded", "error_type": "overloaded" }'
)
BROKEN = BUSY.replace(b"503 Service Unavailable", b"500 Internal Server Error")
SSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
EVENT = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
DONE = b"data: [DONE]\n\n"
FAST = Timeouts(connect_s=0.3, first_byte_s=0.3, idle_s=0.3, total_s=5.0)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def says(*pieces: bytes, wait_s: float = 0.0, reset: bool = False) -> Serve:
    """A backend that reads a request, says these bytes, one after the other, waits, and closes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(0.05)
        await asyncio.sleep(wait_s)
        if reset:
            writer.transport.abort()

    return serve


@pytest.fixture
def dead_ports() -> Iterator[tuple[int, ...]]:
    """Nobody listens there, nor will."""
    with ExitStack() as held:
        yield tuple(held.enter_context(reserved_port()) for _ in range(4))


LOSSES = {
    "closes at once": (says(b""), Cause.RESET),
    "resets": (says(b"", reset=True), Cause.RESET),
    "garbage": (says(b"SSH-2.0-OpenSSH_9.2\r\n", wait_s=WAIT_S), Cause.BAD_RESPONSE),
    "head then nothing": (says(SSE, wait_s=WAIT_S), Cause.FIRST_BYTE),
    "nothing at all": (says(b"", wait_s=WAIT_S), Cause.FIRST_BYTE),
    "head then close": (says(SSE), Cause.RESET),
    "half a head": (says(b"HTTP/1.1 200 OK\r\ncontent-le"), Cause.RESET),
    "two lengths": (
        says(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 1\r\n\r\na"),
        Cause.BAD_RESPONSE,
    ),
    "length and coding": (
        says(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"),
        Cause.BAD_RESPONSE,
    ),
    "bad chunk size": (says(SSE + b"zz\r\n"), Cause.BAD_RESPONSE),
    "unasked 101": (says(b"HTTP/1.1 101 Switching\r\n\r\n"), Cause.BAD_RESPONSE),
    "500": (answers(BROKEN), Cause.SERVER_ERROR),
    "503": (answers(BUSY), Cause.BUSY),
    "429": (answers(LIMITED), Cause.RATE_LIMITED),
    "429 of a full node": (answers(OVERLOADED), Cause.BUSY),
}


@pytest.mark.parametrize("name", LOSSES)
async def test_a_replayable_request_is_tried_on_the_next_node(name: str) -> None:
    bad, cause = LOSSES[name]

    seen: list[tuple[bytes, bytes]] = []
    settings = Settings(timeouts=FAST)
    async with gateway(bad, answers(ok(b'"good"'), seen), settings=settings) as g:
        answer = await g.raw(post())
    assert answer.startswith(b"HTTP/1.1 200"), answer
    assert answer.count(b"HTTP/1.1") == 1
    assert b"x-trimtab-node: n1" in answer
    assert seen[0][1] == CHAT
    assert ("lost", cause) in g.dispatcher.log
    assert g.dispatcher.log[-1] == ("done", 200)
    exchange = g.notes.ends[0]
    assert exchange.outcome is Outcome.DONE
    assert [attempt.cause for attempt in exchange.attempts] == [cause, None]
    if name in ("503", "429"):
        assert exchange.attempts[0].retry_after_s == 7.0


async def test_a_node_that_cannot_be_reached_costs_nothing(dead_ports: tuple[int, ...]) -> None:
    async with gateway(ports=dead_ports) as g:
        answer = await g.raw(post())
        assert answer.startswith(b"HTTP/1.1 502")
        assert [entry for entry in g.dispatcher.log if entry[0] == "lost"] == [("lost", Cause.CONNECT)] * 2
        assert g.dispatcher.log[-1] == ("failed", Cause.CONNECT)
        assert g.notes.ends[0].outcome is Outcome.FAILED


async def test_what_is_not_replayable_is_tried_again_only_where_nothing_was_done(
    dead_ports: tuple[int, ...],
) -> None:
    cancel = b"/v1/responses/r1/cancel"
    for bad, status in ((says(b""), 502), (answers(BROKEN), 500), (answers(BUSY), 200)):
        async with gateway(bad, answers(ok(b"{}"))) as g:
            answer = await g.raw(post(b"", path=cancel))
            assert int(answer[9:12]) == status, answer
    async with gateway(answers(ok(b"{}")), ports=dead_ports[:1]) as g:
        g.dispatcher.nodes.reverse()
        assert (await g.raw(post(b"", path=cancel))).startswith(b"HTTP/1.1 200")


async def test_a_request_that_lost_two_nodes_gets_no_third() -> None:
    async with gateway(says(b""), says(b""), answers(ok(b"{}"))) as g:
        assert (await g.raw(post())).startswith(b"HTTP/1.1 502")
        assert len(g.notes.ends[0].attempts) == 2
    async with gateway(answers(BUSY), answers(BUSY), answers(ok(b"{}"))) as g:
        assert (await g.raw(post())).startswith(b"HTTP/1.1 200")


async def test_a_429_is_tried_on_one_other_node_and_not_on_all() -> None:
    async with gateway(answers(LIMITED), answers(LIMITED), answers(ok(b"{}"))) as g:
        answer = await g.raw(post())
        assert answer.startswith(b"HTTP/1.1 429")
        assert answer.endswith(b"busy"), "the node's own answer"
        assert [attempt.cause for attempt in g.notes.ends[0].attempts] == [Cause.RATE_LIMITED] * 2
    async with gateway(answers(LIMITED), answers(ok(b"{}"))) as g:
        g.dispatcher.is_alone = True
        assert (await g.raw(post())).startswith(b"HTTP/1.1 429")
        assert len(g.notes.ends[0].attempts) == 1


async def test_the_last_nodes_own_answer_is_relayed_when_nobody_else_can_answer() -> None:
    for response, status in ((BUSY, 503), (LIMITED, 429), (BROKEN, 500)):
        async with gateway(answers(response), answers(response)) as g:
            answer = await g.raw(post())
            assert int(answer[9:12]) == status
            assert answer.endswith(b"busy")
            assert b"retry-after: 7" in answer
            assert len(g.notes.ends[0].attempts) == 2


async def test_where_no_other_node_is_left_its_loss_is_answered_at_once() -> None:
    for bad, status in ((answers(BROKEN), 500), (says(b""), 502)):
        async with gateway(bad, answers(ok(b"{}"))) as g:
            g.dispatcher.is_alone = True
            assert int((await g.raw(post()))[9:12]) == status
            assert len(g.notes.ends[0].attempts) == 1
    async with gateway(answers(BUSY), answers(ok(b"{}"))) as g:
        g.dispatcher.is_alone = True
        assert (await g.raw(post())).startswith(b"HTTP/1.1 200"), "the same node may have room later"


async def test_retries_keep_to_their_budget() -> None:
    async with gateway(answers(BUSY), answers(BUSY)) as g:
        g.context.retries = TenantBudget(0.1, at_first=10.0)
        for _ in range(40):
            assert (await g.raw(post())).startswith(b"HTTP/1.1 503")
        assert 10 <= sum(entry[0] == "lost" for entry in g.dispatcher.log) <= 15


async def test_connections_are_kept_and_stale_ones_replaced() -> None:
    count = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        count += 1
        for _ in range(2):
            await read_request(reader)
            writer.write(ok(b"{}"))
        if count == 1:
            await read_request(reader)  # and closes without an answer, as at the end of its patience

    async with gateway(serve) as g:
        for _ in range(3):
            answer = await g.raw(post())
            assert answer.startswith(b"HTTP/1.1 200")
        assert count == 2
        assert not g.notes.losses


async def test_what_comes_after_a_response_is_never_relayed() -> None:
    count = 0

    def extra(response: bytes) -> Serve:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal count
            count += 1
            while True:
                await read_request(reader)
                writer.write(response)

        return serve

    for response in (
        ok(b"{}") + b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nEVIL",
        SSE + chunk(EVENT) + chunk(DONE) + b"0\r\n\r\nEVIL",
        SSE + chunk(EVENT) + chunk(DONE) + b"0\r\nEVIL: 1\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\n\r\nEVIL",
    ):
        async with gateway(extra(response)) as g:
            for _ in range(2):
                answer = await g.raw(post())
                assert b"EVIL" not in answer
                assert answer.count(b"HTTP/1.1") == 1
        assert count
        count = 0


async def test_interim_responses_are_skipped() -> None:
    interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"
    async with gateway(answers(interim + ok(b'"x"'))) as g:
        answer = await g.raw(post())
        assert answer.startswith(b"HTTP/1.1 200")
        assert b"link" not in answer


async def test_bodies_without_a_length_end_with_the_connection() -> None:
    bare = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n"
    async with gateway(says(bare + b'{"a":1}')) as g:
        answer = await g.raw(post())
        assert answer.endswith(b'7\r\n{"a":1}\r\n0\r\n\r\n')
        old = await g.raw(post().replace(b"HTTP/1.1", b"HTTP/1.0"))
        assert old.endswith(b'\r\n\r\n{"a":1}')


async def test_http_1_0_clients_get_chunked_answers_bare() -> None:
    async with gateway(answers(SSE + chunk(EVENT) + chunk(DONE) + b"0\r\n\r\n")) as g:
        old = await g.raw(post().replace(b"HTTP/1.1", b"HTTP/1.0"))
        assert old.endswith(b"\r\n\r\n" + EVENT + DONE)
        assert b"transfer-encoding" not in old


async def test_after_the_first_byte_a_stream_ends_with_an_error_event() -> None:
    cases = {
        "closes": (says(SSE + chunk(EVENT)), b"node_lost"),
        "stalls": (says(SSE + chunk(EVENT), wait_s=WAIT_S), b"idle_timeout"),
        "garbage": (says(SSE + chunk(EVENT), b"!!\r\n", wait_s=WAIT_S), b"bad_response"),
        "no length": (says(SSE.replace(b"transfer-encoding: chunked\r\n", b"") + EVENT), b"node_lost"),
    }
    for bad, code in cases.values():
        async with gateway(bad, answers(ok(b"{}")), settings=Settings(timeouts=FAST)) as g:
            answer = await g.raw(post())
            assert answer.startswith(b"HTTP/1.1 200")
            assert EVENT in answer
            assert b'data: {"error"' in answer
            assert code in answer
            assert b"[DONE]" not in answer
            assert answer.endswith(b"0\r\n\r\n")
            assert len(g.notes.ends[0].attempts) == 1
            assert g.dispatcher.log[-1][0] == "failed"


async def test_after_the_first_byte_other_bodies_break_off() -> None:
    broken = (
        ok(b"{}" * 50)[:-10],
        SSE + chunk(EVENT[:20]),
        SSE + chunk(EVENT) + b"40\r\ndata: ",
    )
    for response in broken:
        async with gateway(says(response)) as g:
            reader, writer = await g.connect()
            writer.write(post())
            assert await reader.readexactly(12) == b"HTTP/1.1 200"
            with pytest.raises(ConnectionResetError):
                await reader.read()
            await closed(writer)
            assert g.notes.ends[0].outcome is Outcome.FAILED
            assert g.dispatcher.log[-1] == ("failed", Cause.RESET)


async def test_a_client_that_leaves_stops_its_node_at_once() -> None:
    for data in (b"", SSE, SSE + chunk(EVENT)):
        stopped = asyncio.Event()

        async def serve(
            reader: asyncio.StreamReader,
            writer: asyncio.StreamWriter,
            data: bytes = data,
            stopped: asyncio.Event = stopped,
        ) -> None:
            await read_request(reader)
            writer.write(data)
            try:
                await reader.read()
            finally:
                stopped.set()

        async with gateway(serve) as g:
            _, writer = await g.connect()
            writer.write(post())
            await until(lambda g=g: g.notes.n_started == 1)
            await asyncio.sleep(0.05)
            await closed(writer)
            await asyncio.wait_for(stopped.wait(), WAIT_S)
            await until(lambda g=g: g.notes.ends)
            assert g.notes.ends[0].outcome is Outcome.CANCELLED
            assert g.dispatcher.log[-1][0] == "abort"
            assert not g.notes.losses


async def test_a_client_that_leaves_while_queued_is_taken_out() -> None:
    async with gateway(answers(ok(b"{}"))) as g:
        g.dispatcher.hold = True
        _, writer = await g.connect()
        writer.write(post())
        await until(lambda: g.dispatcher.held)
        await closed(writer)
        await until(lambda: g.notes.ends)
        assert g.dispatcher.log[-1][0] == "abort"
        g.dispatcher.held[0].start(g.dispatcher.nodes[0])  # too late: nothing happens
        assert g.notes.n_started == 0


async def test_deadlines_and_the_total_time() -> None:
    async with gateway(says(b"", wait_s=WAIT_S), answers(ok(b"{}"))) as g:
        answer = await g.raw(post(more=b"x-trimtab-deadline-ms: 200\r\n"))
        assert answer.startswith(b"HTTP/1.1 504")
        assert g.notes.ends[0].outcome is Outcome.EXPIRED
        assert g.dispatcher.log[-1][0] == "abort"
    settings = Settings(timeouts=Timeouts(), model_timeouts={"m": replace(FAST, total_s=0.2)})
    async with gateway(says(b"", wait_s=WAIT_S), settings=settings) as g:
        answer = await g.raw(post())
        assert answer.startswith(b"HTTP/1.1 503")  # another node is asked for, and there is none
        assert b"no_node" in answer
        assert g.notes.losses == [Cause.TOTAL]
        assert g.dispatcher.log[-1] == ("lost", Cause.TOTAL)


@pytest.mark.parametrize(
    ("refusal", "left_s", "outcome"),
    [
        (Refusal(504, DEADLINE_CODE, "Too late."), 60.0, Outcome.EXPIRED),
        (Refusal(503, "no_capacity", "No node."), -1.0, Outcome.REFUSED),
    ],
)
async def test_the_refusal_says_what_has_expired_and_not_the_clock(
    refusal: Refusal, left_s: float, outcome: Outcome
) -> None:
    async with gateway(answers(ok(b"{}"))) as g:
        g.dispatcher.hold = True
        _, writer = await g.connect()
        writer.write(post())
        await until(lambda: g.dispatcher.held)
        g.dispatcher.held[0].deadline_s = asyncio.get_running_loop().time() + left_s
        g.dispatcher.held[0].refuse(refusal)
        await until(lambda: g.notes.ends)
        assert g.notes.ends[0].outcome is outcome
        await closed(writer)


async def test_a_long_prefill_after_an_early_head_is_not_committed() -> None:
    may_end, loop = asyncio.Event(), asyncio.get_running_loop()

    async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(SSE)
        await may_end.wait()
        writer.write(chunk(EVENT) + chunk(DONE) + b"0\r\n\r\n")

    async with gateway(late) as g:
        reader, writer = await g.connect()
        writer.write(post())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.15)
        await until(lambda: g.notes.begun[0].attempts[0].head_s)
        let_go_s = loop.time()
        may_end.set()
        assert (await reader.read()).endswith(DONE + b"\r\n0\r\n\r\n")
        await closed(writer)
        attempt = g.notes.ends[0].attempts[0]
        assert attempt.head_s <= let_go_s <= attempt.first_byte_s


async def test_a_hedge_takes_over_and_the_loser_is_stopped() -> None:
    settings = Settings(hedge_delay_s=0.1, hedge_max_frac=0.05)
    async with gateway(says(b"", wait_s=WAIT_S), answers(ok(b'"second"')), settings=settings) as g:
        g.dispatcher.hedges = [g.dispatcher.nodes[1]]
        answer = await g.raw(post())
        assert answer.endswith(b'"second"')
        assert ("release", "n0") in g.dispatcher.log
        assert g.dispatcher.log[-1] == ("done", 200)
        assert [attempt.hedge for attempt in g.notes.ends[0].attempts] == [False, True]


def late(response: bytes, may_answer: asyncio.Event) -> Serve:
    """A backend that thinks before it answers."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            await may_answer.wait()
            writer.write(response)

    return serve


async def test_a_hedge_that_is_lost_leaves_the_first_attempt_alone() -> None:
    settings, may_answer = Settings(hedge_delay_s=0.05), asyncio.Event()
    async with gateway(late(ok(b'"first"'), may_answer), says(b""), settings=settings) as g:
        g.dispatcher.hedges = [g.dispatcher.nodes[1]]
        asking = asyncio.create_task(g.raw(post()))
        await until(lambda: g.notes.losses)
        may_answer.set()
        answer = await asking
        assert answer.endswith(b'"first"')
        assert b"x-trimtab-node: n0" in answer
        assert g.dispatcher.log[1:] == [("release", "n1"), ("done", 200)]
        assert g.notes.losses == [Cause.RESET]
        ended = [(attempt.node.name, attempt.cause) for attempt in g.notes.ends[0].attempts]
        assert ended == [("n1", Cause.RESET), ("n0", None)], "the one that answered comes last"


@pytest.mark.parametrize("host", ["a..b", "a" * 64 + ".test", "a\0b"])
async def test_a_host_that_is_none_is_a_node_that_does_not_connect(host: str) -> None:
    async with gateway(answers(ok(b'"first"')), answers(ok(b'"second"'))) as g:
        g.dispatcher.nodes[0].host = host
        assert (await g.raw(post())).endswith(b'"second"')
        assert g.notes.losses == [Cause.CONNECT]


async def test_where_the_first_attempt_wins_its_node_is_told() -> None:
    settings, may_answer = Settings(hedge_delay_s=0.05), asyncio.Event()
    second = says(b"", wait_s=WAIT_S)
    async with gateway(late(ok(b'"first"'), may_answer), second, settings=settings) as g:
        g.dispatcher.hedges = [g.dispatcher.nodes[1]]
        asking = asyncio.create_task(g.raw(post()))
        await until(lambda: g.notes.n_started == 2)
        may_answer.set()
        answer = await asking
        assert b"x-trimtab-node: n0" in answer
        assert g.dispatcher.log[1:] == [("release", "n1"), ("done", 200)]
        assert g.dispatcher.done_by == ["n0"]
        attempts = g.notes.ends[0].attempts
        assert [(attempt.node.name, attempt.hedge) for attempt in attempts] == [
            ("n1", True),
            ("n0", False),
        ]
        assert attempts[-1].first_byte_s > 0.0


async def test_hedges_keep_to_their_share() -> None:
    settings, may_answer = Settings(hedge_delay_s=0.01, hedge_max_frac=0.05), asyncio.Event()
    async with gateway(late(ok(b"{}"), may_answer), settings=settings) as g:
        g.dispatcher.hedges = g.dispatcher.nodes * 60
        asking = [asyncio.create_task(g.raw(post())) for _ in range(60)]
        await until(lambda: g.notes.n_started > 60)
        may_answer.set()
        answers = await asyncio.gather(*asking)
        assert all(answer.startswith(b"HTTP/1.1 200") for answer in answers)
        hedged = sum(attempt.hedge for end in g.notes.ends for attempt in end.attempts)
        assert 1 <= hedged <= 1 + 60 * 0.05
        assert sum(len(end.attempts) for end in g.notes.ends) == 60 + hedged


async def test_a_client_that_does_not_read_is_cut_off() -> None:
    big = b"HTTP/1.1 200 OK\r\ncontent-type: audio/wav\r\ncontent-length: 64000000\r\n\r\n"

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(big)
        for _ in range(64):
            writer.write(b"x" * 1_000_000)
            await writer.drain()

    async with gateway(flood, settings=Settings(stalled_client_s=0.3)) as g:
        _, writer = await g.connect()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(post())
        await until(lambda: g.notes.ends)
        assert g.notes.ends[0].outcome is Outcome.CANCELLED
        assert g.dispatcher.log[-1][0] == "abort"
        assert g.context.exchanges == 0
        writer.transport.abort()


async def test_usage_is_asked_for_and_hidden() -> None:
    seen: list[tuple[bytes, bytes]] = []
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2}}\n\n'
    response = SSE + chunk(EVENT) + chunk(EVENT) + chunk(usage) + chunk(DONE) + b"0\r\n\r\n"
    async with gateway(answers(response, seen), look=admission(count_usage=True)) as g:
        streaming = b'{"stream":true,' + CHAT[1:]
        answer = await g.raw(post(streaming))
        assert b"usage" not in answer
        assert answer.endswith(chunk(EVENT * 2 + DONE) + b"0\r\n\r\n")
        assert b'"include_usage":true' in seen[0][1]
        said = g.notes.ends[0].usage
        assert said is not None
        assert (said.prompt_tokens, said.completion_tokens) == (5, 2)
        assert g.dispatcher.progressed == 2
        asking = b'{"stream":true,"stream_options":{"include_usage":true},' + CHAT[1:]
        answer = await g.raw(post(asking))
        assert usage in answer
        assert seen[1][1] == asking


async def test_back_pressure_reaches_the_node() -> None:
    total = 64_000_000
    written = 0

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: audio/wav\r\ncontent-length: %d\r\n\r\n" % total)
        piece = b"x" * 1_000_000
        while written < total:
            writer.write(piece)
            await writer.drain()
            written += len(piece)

    async with gateway(flood) as g:
        reader, writer = await g.connect()
        writer.write(post())
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(0.5)
        assert written < total * 0.7, "the gateway took in what its client does not read"
        got = 0
        while piece := await reader.read(1_000_000):
            got += len(piece)
        assert got == total
        await closed(writer)


async def test_draining_finishes_what_is_begun() -> None:
    may_answer = asyncio.Event()
    async with gateway(late(ok(b"{}"), may_answer)) as g:
        _, idle = await g.connect()
        reader, writer = await g.connect()
        writer.write(post(close=False))
        await until(lambda: g.notes.n_started)
        await g.plane.stop_accepting()
        draining = asyncio.create_task(g.plane.drain(WAIT_S))
        await asyncio.sleep(0.1)
        assert not draining.done()
        may_answer.set()
        assert await draining == 0
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 200")
        assert b"connection: close" in answer
        await closed(writer)
        await closed(idle)
        with pytest.raises(OSError):  # noqa: PT011 refused or reset
            await g.connect()
