"""The ferry does to a stream what the loop's own way does: on real sockets, with all that ends it."""

from __future__ import annotations

import asyncio
import random
import re
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest
import uvloop

from support.gateway.plane import WAIT_S, Plane, Serve, closed, gateway, post, read_request
from support.gateway.streams import CONTENTS, DONE, HEAD, STREAMING, USAGE, Body, chunk, content, some_pieces
from trimtab.gateway.model import Exchange, Outcome
from trimtab.gateway.wire import ferry as ferries
from trimtab.gateway.wire import server
from trimtab.gateway.wire.context import Settings, Timeouts
from trimtab.gateway.wire.crossing import GONE, LANDED, ROWS, SPACE, payload_of
from trimtab.gateway.wire.ferry import Ferry, compile_ferry, open_ferry
from trimtab.gateway.wire.flow import Flow

pytestmark = pytest.mark.skipif(not ferries.IS_POSSIBLE, reason="there is no epoll here")

EVENT = content(150)
END = [chunk(USAGE), chunk(DONE), b"0\r\n\r\n"]
MAKE_LOOPS = (asyncio.new_event_loop, uvloop.new_event_loop)


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    compile_ferry()


@dataclass
class Crossings:
    """How chunks went."""

    in_python: int = 0
    aboard: int = 0


@pytest.fixture
def crossings(monkeypatch: pytest.MonkeyPatch) -> Crossings:
    counted = Crossings()
    passes, landed, counts = Flow.passes, Flow.landed, Ferry.counts

    def passed(self: Flow, data: bytes) -> bool:
        is_passed = passes(self, data)
        counted.in_python += is_passed
        return is_passed

    def landing(self: Flow, unsent: bytes, unread: bytes) -> None:
        counted.aboard += counts(self._ferry, self._row)[0]  # type: ignore[arg-type]
        landed(self, unsent, unread)

    monkeypatch.setattr(Flow, "passes", passed)
    monkeypatch.setattr(Flow, "landed", landing)
    return counted


def run(main: Coroutine[Any, Any, Any], make_loop: Callable[[], Any] = uvloop.new_event_loop) -> Any:
    with asyncio.Runner(loop_factory=make_loop) as runner:
        return runner.run(asyncio.wait_for(main, 3 * WAIT_S))


def sends(pieces: list[bytes], pause_s: float = 0.002, then: Callable[[Any], None] | None = None) -> Serve:
    """A node that answers each request with these pieces; at `b""` it closes, at their end does `then`."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            for piece in pieces:
                if not piece:
                    return
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(pause_s)
            if then is not None:
                then(writer)
                await reader.read()
                return

    return serve


async def ask(plane: Plane, path: bytes = b"/v1/chat/completions", close: bool = True) -> Any:
    reader, writer = await plane.connect()
    writer.write(post(STREAMING, path, b"x-request-id: r\r\n", close=close))
    return reader, writer


def one_aboard(plane: Plane) -> bool:
    ferry = plane.context.ferry
    assert ferry is not None
    return len(ferry._passengers) == 1


def counts(exchange: Exchange) -> tuple[int, int]:
    return exchange.response_bytes, exchange.streamed_chunks


@asynccontextmanager
async def ten_chunks_aboard() -> AsyncIterator[tuple[Plane, asyncio.StreamReader, asyncio.StreamWriter]]:
    """A client that has got ten chunks of a stream, which is aboard and goes on."""
    async with gateway(sends([HEAD, *[chunk(EVENT)] * 10], then=lambda writer: None)) as plane:
        reader, writer = await ask(plane)
        for _ in range(10):
            await reader.readuntil(EVENT)
        assert one_aboard(plane)
        yield plane, reader, writer


@pytest.mark.parametrize("make_loop", MAKE_LOOPS)
def test_usual_chunks_cross_and_all_is_counted(make_loop: Any, crossings: Crossings) -> None:
    events = [content(100 + n) for n in range(60)]
    whole = [b"".join(map(chunk, events[at : at + 5])) for at in range(40, 60, 5)]  # several in one read
    pieces = [HEAD + chunk(events[0]), *map(chunk, events[1:40]), *whole, *END]

    async def main() -> None:
        async with gateway(sends(pieces)) as plane:
            for _ in range(2):  # the second time the node's connection is used again
                reader, writer = await ask(plane, close=False)
                answer = await reader.readuntil(b"\r\n0\r\n\r\n")
                body = Body(answer)
                assert body.is_whole
                assert body.body == b"".join(events) + USAGE + DONE
                await closed(writer)
            await plane.until(lambda: len(plane.notes.ends) == 2)
            for exchange in plane.notes.ends:
                assert exchange.outcome is Outcome.DONE
                assert counts(exchange) == (sum(map(len, [*events, USAGE, DONE])), 60)
                assert exchange.usage is not None
                assert exchange.usage.completion_tokens == 2
            assert plane.dispatcher.progressed == 120
            assert len(plane.context.pools.of(plane.dispatcher.nodes[0]).open) == 1

    run(main(), make_loop)
    assert crossings.in_python <= 4
    assert crossings.aboard >= 100


def outcome_of(pieces: list[bytes], path: bytes, pause_s: float) -> tuple[Any, ...]:
    async def main() -> tuple[Any, ...]:
        async with gateway(sends(pieces, pause_s)) as plane:
            reader, writer = await ask(plane, path)
            answer = b""
            with suppress(OSError):  # where it broke off
                while more := await reader.read(65_536):
                    answer += more
            await closed(writer)
            await plane.until(lambda: plane.notes.ends)
            (exchange,) = plane.notes.ends
            if exchange.outcome is not Outcome.DONE:
                return exchange.outcome, plane.dispatcher.log  # how much had come is chance
            body = Body(answer)
            attempt = exchange.attempts[-1]
            assert attempt.head_s <= attempt.first_byte_s <= attempt.ended_s <= exchange.ended_s
            return (
                (body.body, body.is_whole),
                exchange.outcome,
                counts(exchange),
                plane.dispatcher.progressed,
                plane.dispatcher.log,
                (exchange.usage, exchange.response_id),  # type: ignore[attr-defined]
            )

    return cast(tuple[Any, ...], run(main()))


@pytest.mark.parametrize("seed", range(3))
def test_streams_of_all_kinds_go_the_same_either_way(
    seed: int, crossings: Crossings, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    n_done = 0
    for _ in range(15):
        path = rng.choice(list(CONTENTS))
        pieces, pause_s = some_pieces(rng, CONTENTS[path]), rng.choice([0.0, 0.002, 0.002])
        with monkeypatch.context() as patch:
            patch.setattr(server, "open_ferry", lambda loop: None)
            usual = outcome_of(pieces, path, pause_s)
        assert outcome_of(pieces, path, pause_s) == usual
        n_done += Outcome.DONE in usual
    assert n_done >= 2
    assert crossings.aboard > 0


def test_a_client_that_leaves_is_noticed_and_all_is_told() -> None:
    async def main() -> None:
        async with ten_chunks_aboard() as (plane, _, writer):
            writer.transport.abort()
            await plane.until(lambda: plane.notes.ends)
            assert not one_aboard(plane)
            (exchange,) = plane.notes.ends
            assert exchange.outcome is Outcome.CANCELLED
            assert counts(exchange) == (10 * len(EVENT), 10)
            assert plane.dispatcher.progressed == 10

    run(main())


@pytest.mark.parametrize("breaks", [lambda writer: writer.close(), lambda writer: writer.transport.abort()])
def test_a_node_that_breaks_off_is_told_in_the_stream(breaks: Any, crossings: Crossings) -> None:
    async def main() -> None:
        async with gateway(sends([HEAD, *[chunk(EVENT)] * 10], then=breaks)) as plane:
            reader, writer = await ask(plane)
            body = Body(await reader.read())
            await closed(writer)
            assert body.is_whole
            assert body.body.startswith(EVENT * 10)
            assert b'"error"' in body.body
            (exchange,) = plane.notes.ends
            assert exchange.outcome is Outcome.FAILED
            assert exchange.streamed_chunks == 10

    run(main())
    assert crossings.aboard >= 7


def test_a_connection_that_the_loop_gives_up_leaves_first() -> None:
    """As where more of the request cannot be written: nobody has called `abandon`."""

    async def main() -> None:
        async with ten_chunks_aboard() as (plane, reader, writer):
            (connection,) = plane.context.pools.of(plane.dispatcher.nodes[0]).open
            connection.transport.abort()
            await plane.until(lambda: plane.notes.ends)
            assert not one_aboard(plane)
            (exchange,) = plane.notes.ends
            assert exchange.outcome is Outcome.FAILED
            assert counts(exchange) == (10 * len(EVENT), 10)
            assert b'"error"' in await reader.read()
            await closed(writer)

    run(main())


async def numbered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A node whose events say whose they are; now and then it breaks off."""
    rng = random.Random(0)
    while True:
        head, _ = await read_request(reader)
        (own,) = re.findall(rb"x-request-id: (\w+)", head)
        writer.write(HEAD)
        for n in range(rng.randrange(1, 60)):
            writer.write(chunk(content(90, b"<%b:%d>" % (own, n))))
            await writer.drain()
            await asyncio.sleep(rng.choice([0, 0, 0.001]))
            if rng.random() < 0.003:
                return
        writer.write(b"".join(END))


@pytest.mark.parametrize("make_loop", MAKE_LOOPS)
def test_each_of_many_gets_its_own_whoever_else_comes_and_goes(make_loop: Any) -> None:
    """Descriptors are used again at once, while others' streams are aboard."""
    rng, seen = random.Random(1), 0

    async def one(plane: Plane, number: int) -> None:
        nonlocal seen
        reader, writer = await plane.connect()
        own, most = b"r%d" % number, rng.choice([500, 2_000, 1 << 30])
        writer.write(post(STREAMING, more=b"x-request-id: %b\r\n" % own))
        answer = b""
        with suppress(OSError):
            while len(answer) < most and (more := await reader.read(65_536)):
                answer += more
        writer.transport.abort()
        told = re.findall(rb"<(r\d+):(\d+)>", answer)
        numbers = [int(n) for _, n in told]
        assert {who for who, _ in told} <= {own}
        assert numbers == sorted(numbers)
        assert set(numbers) == set(range(len(set(numbers))))  # none is missing
        seen += len(set(numbers))

    async def client(plane: Plane, first: int) -> None:
        for number in range(first, first + 8):
            await one(plane, number)

    async def main() -> None:
        async with gateway(numbered, numbered) as plane:
            await asyncio.gather(*(client(plane, 10 * n) for n in range(30)))
            await plane.until(lambda: not plane.context.exchanges)
            ferry = plane.context.ferry
            assert ferry is not None
            assert not ferry._passengers
            await plane.until(lambda: not ferry._places["state"].any())

    run(main(), make_loop)
    assert seen > 1_000


def test_a_slow_client_gets_all_in_order() -> None:
    events = [content(2_000, b"%d " % n) for n in range(300)]

    async def main() -> None:
        async with gateway(sends([HEAD, *map(chunk, events), *END], 0.001)) as plane:
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8_192)
            sock.setblocking(False)
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", plane.port))
            await plane.until(lambda: plane.context.connections)
            (client,) = plane.context.connections
            client.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8_192)
            await asyncio.get_running_loop().sock_sendall(sock, post(STREAMING))
            await plane.until(client.transport.get_write_buffer_size)
            answer = b""
            while more := await asyncio.get_running_loop().sock_recv(sock, 65_536):
                answer += more
            sock.close()
            body = Body(answer)
            assert body.is_whole
            assert body.body == b"".join(events) + USAGE + DONE
            (exchange,) = plane.notes.ends
            assert exchange.streamed_chunks == len(events)

    run(main())


def test_what_a_client_did_not_take_goes_on_by_its_transport(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the thread had been refused a chunk that it would have sent."""
    take_out = Ferry._take_out

    def none_sent(self: Ferry, row: int) -> tuple[bytes, bytes]:
        unsent, unread = take_out(self, row)
        return (unread, b"") if unread == chunk(USAGE) else (unsent, unread)

    monkeypatch.setattr(Ferry, "_take_out", none_sent)

    async def main() -> None:
        pieces = [HEAD, *[chunk(EVENT)] * 5, chunk(USAGE), *[chunk(EVENT)] * 5, *END]
        async with gateway(sends(pieces, 0.02)) as plane:
            reader, writer = await ask(plane)
            assert Body(await reader.read()).body == EVENT * 5 + USAGE + EVENT * 5 + USAGE + DONE
            await closed(writer)

    run(main())


def test_a_stream_that_stalls_ends_and_one_that_goes_on_does_not() -> None:
    async def main() -> None:
        settings = Settings(timeouts=Timeouts(idle_s=0.6))
        pieces = [HEAD, *[chunk(EVENT)] * 12]
        async with gateway(sends(pieces, 0.1, then=lambda writer: None), settings=settings) as plane:
            reader, writer = await ask(plane)
            body = Body(await reader.read())
            await closed(writer)
            assert body.body.startswith(EVENT * 12)
            (exchange,) = plane.notes.ends
            assert exchange.outcome is Outcome.FAILED
            assert exchange.streamed_chunks == 12
            assert exchange.ended_s - plane.dispatcher.nodes[0].last_byte_s >= 0.6

    run(main())


def test_what_nodes_were_heard_of_is_known_before_they_are_judged() -> None:
    async def main() -> None:
        async with gateway(sends([HEAD, *[chunk(EVENT)] * 40, *END], 0.01)) as plane:
            reader, writer = await ask(plane)
            node, pulse = plane.dispatcher.nodes[0], plane.context.sweep.pulse
            await plane.until(lambda: one_aboard(plane))
            before_s, seen = node.last_byte_s, b""
            while seen.count(EVENT) < 5:
                seen += await reader.read(65_536)
            pulse.on_beat[0]()
            assert node.last_byte_s > before_s
            await reader.read()
            await closed(writer)

    run(main())


def test_draining_waits_for_who_is_aboard() -> None:
    async def main() -> None:
        async with gateway(sends([HEAD, *[chunk(EVENT)] * 40, *END], 0.01)) as plane:
            reader, writer = await ask(plane)
            await plane.until(lambda: one_aboard(plane))
            plane.plane.stop_accepting()
            draining = asyncio.create_task(plane.plane.drain(WAIT_S, 0.0))
            assert Body(await reader.read()).body == EVENT * 40 + USAGE + DONE
            assert await draining == 0
            await closed(writer)

    run(main())


def test_there_is_none_where_it_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ferries, "is_compiled", lambda kernel: False)
    assert open_ferry(cast(Any, None)) is None


# The ferry by itself


class Plain(asyncio.Transport):
    """A transport as far as a ferry sees it."""

    def __init__(self, sock: socket.socket, unsent: int = 0, **extra: Any) -> None:
        super().__init__({"socket": sock, **extra})
        self.unsent, self.is_paused = unsent, False

    def pause_reading(self) -> None:
        self.is_paused = True

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return self.unsent


class Rider:
    """A stream; what it was told."""

    content = b'"choices"'

    def __init__(self) -> None:
        self.landings: list[tuple[bytes, bytes]] = []

    def heard(self, at_s: float) -> None:
        """Not asked for here."""

    def landed(self, unsent: bytes, unread: bytes) -> None:
        self.landings.append((unsent, unread))


class Crossing:
    """A ferry with a node's and a client's socket."""

    def __init__(self) -> None:
        self.ferry = Ferry(asyncio.get_running_loop())
        self.node, self.from_node = socket.socketpair()
        self.to_client, self.client = socket.socketpair()
        for sock in (self.node, self.from_node, self.to_client, self.client):
            sock.setblocking(False)
        self.rider = Rider()

    def board(self, **how: Any) -> int:
        return self.ferry.board(self.rider, Plain(self.from_node), Plain(self.to_client, **how))

    def wait_for(self, state: int, row: int) -> None:
        """Until the thread has come so far; the loop stands still."""
        end_s = time.monotonic() + WAIT_S
        while self.ferry._columns.state[row] != state:
            assert time.monotonic() < end_s
            time.sleep(0.001)

    def close(self) -> None:
        self.ferry.close()
        for sock in (self.node, self.from_node, self.to_client, self.client):
            sock.close()


@pytest.fixture
def across() -> Callable[[Callable[[Crossing], Coroutine[Any, Any, None]]], None]:
    def run_with(main: Callable[[Crossing], Coroutine[Any, Any, None]]) -> None:
        async def inner() -> None:
            crossing = Crossing()
            try:
                await main(crossing)
            finally:
                crossing.close()

        run(inner())

    return run_with


def test_who_leaves_after_landing_hears_nothing_more(across: Any) -> None:
    async def main(crossing: Crossing) -> None:
        row = crossing.board()
        crossing.node.send(b"something else")
        crossing.wait_for(LANDED, row)
        assert crossing.ferry.leave(row) == b""  # what was read is nobody's any more
        assert crossing.ferry._columns.state[row] == GONE
        assert crossing.board() == -1  # not before the bell was heard
        await asyncio.sleep(0.05)
        assert crossing.rider.landings == []
        assert crossing.board() == row
        assert crossing.ferry.leave(row) == b""

    across(main)


def test_what_a_client_does_not_take_is_given_back(across: Any) -> None:
    async def main(crossing: Crossing) -> None:
        data, sent = chunk(content(3_000)), 0
        row = crossing.board()
        columns = crossing.ferry._columns
        while columns.state[row] != LANDED:
            if columns.chunks[row] == sent:  # the last one was taken
                crossing.node.send(data)
                sent += 1
            time.sleep(0.0005)
        unsent = crossing.ferry.leave(row)
        assert 0 < len(unsent) <= len(data)
        chunks, payload_bytes, at_s = crossing.ferry.counts(row)
        assert payload_bytes == 3_000 * chunks
        assert at_s <= time.monotonic()
        arrived = b""
        while len(arrived) + len(unsent) < len(data) * chunks:
            arrived += crossing.client.recv(65_536)
        assert arrived + unsent == data * chunks

    across(main)


def test_a_read_without_an_end_is_given_back_whole(across: Any) -> None:
    async def main(crossing: Crossing) -> None:
        data = chunk(content(1_000)) * 5
        row = crossing.board()
        crossing.node.send(data)
        crossing.wait_for(LANDED, row)
        await asyncio.sleep(0.05)
        assert crossing.rider.landings == [(b"", data[:SPACE])]
        assert crossing.from_node.recv(65_536) == data[SPACE:]

    across(main)


def test_only_plain_sockets_of_clients_that_keep_up_come_aboard(across: Any) -> None:
    async def main(crossing: Crossing) -> None:
        assert crossing.board(unsent=1) == -1
        ferry, node, client = crossing.ferry, Plain(crossing.from_node), Plain(crossing.to_client)
        assert ferry.takes(node, client)
        high = Plain(cast(Any, SimpleNamespace(fileno=lambda: ROWS)))
        for other in (Plain(crossing.from_node, sslcontext=object()), Plain(cast(Any, None))):
            assert not ferry.takes(other, client)
            assert not ferry.takes(node, other)
        assert not ferry.takes(high, client)
        assert crossing.ferry._thread is None

    across(main)


USUAL = re.compile(rb"([1-9a-f][0-9a-f]{1,2})\r\n(.*\n\n)\r\n", re.DOTALL)


def is_usual(data: bytes) -> bool:
    """One chunk of one event, framed as the relay would; whatever its event says."""
    found = USUAL.fullmatch(data)
    if found is None or int(found[1], 16) != len(found[2]):
        return False
    return b"\r\n" not in found[2] and (b"\n" + found[2]).find(b"\n\n") == len(found[2]) - 1


@pytest.mark.parametrize("seed", range(3))
def test_payloads_of_usual_chunks_only(seed: int) -> None:
    rng = random.Random(seed)
    found = 0
    for _ in range(4_000):
        data = bytearray(chunk(content(rng.choice([60, 62, 255, 256, 300, 4_060]))))
        if rng.random() < 0.3:
            data = bytearray(chunk(bytes(rng.choices(b"\r\na", k=rng.randrange(14, 19))) + b"\n\n"))
        for _ in range(rng.randrange(3)):
            at = rng.choice([rng.randrange(6), rng.randrange(len(data)), len(data) - 1 - rng.randrange(6)])
            data[at : at + rng.randrange(2)] = rng.choice(
                [b"\r", b"\n", b"0", b"A", b"f", b"", b"\r\n", b"\n\n"]
            )
        text = memoryview(b"x" + bytes(data) + b"\r\n\n")
        payload = payload_of(text, 1, 1 + len(data))
        is_whole = payload + (6 if payload < 256 else 7) == len(data)
        assert (payload > 0 and is_whole) == is_usual(bytes(data)), bytes(data)
        found += payload > 0
    assert found > 1_000
