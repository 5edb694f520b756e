"""The client's side of HTTP: framing, order, refusals, limits, and requests of two meanings."""

from __future__ import annotations

import asyncio
import errno
import resource
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from support.gateway.plane import CHAT, answers, closed, gateway, ok, post
from support.waiting import until
from trimtab.gateway.http.connection_context import LocalAnswer, Settings
from trimtab.gateway.http.spool import Body
from trimtab.gateway.model import Exchange, Outcome

P = b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nauthorization: Bearer k\r\n"
CHUNKED = P + b"transfer-encoding: chunked\r\n\r\n"

SMUGGLING = {
    "two lengths": P + b"content-length: 3\r\ncontent-length: 3\r\n\r\nabc",
    "length and coding": P + b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "coding and length": P + b"transfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n0\r\n\r\n",
    "bare LF after the request line": P.replace(b"HTTP/1.1\r\n", b"HTTP/1.1\n") + b"\r\n",
    "bare LF after a header": P + b"a: b\n\r\n",
    "signed length": P + b"content-length: +5\r\n\r\nabcde",
    "length with underscore": P + b"content-length: 1_0\r\n\r\nabcdeabcde",
    "list of lengths": P + b"content-length: 5, 5\r\n\r\nabcde",
    "negative length": P + b"content-length: -1\r\n\r\n",
    "empty length": P + b"content-length: \r\n\r\n",
    "huge length": P + b"content-length: 99999999999999999999\r\n\r\n",
    "folded header": P + b"a: b\r\n c\r\n\r\n",
    "NUL in a value": P + b"a: b\x00c\r\n\r\n",
    "NUL in a name": P + b"a\x00: b\r\n\r\n",
    "CR in a value": P + b"a: b\rc\r\n\r\n",
    "space before the colon": P + b"content-length : 3\r\n\r\nabc",
    "no colon": P + b"abc\r\n\r\n",
    "empty name": P + b": a\r\n\r\n",
    "unknown coding": P + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
    "two codings": P + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "coding twice": P + b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "coding with tab": P + b"transfer-encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
    "coding in HTTP/1.0": CHUNKED.replace(b"HTTP/1.1", b"HTTP/1.0") + b"0\r\n\r\n",
    "signed chunk size": CHUNKED + b"+3\r\nabc\r\n0\r\n\r\n",
    "chunk size with underscore": CHUNKED + b"1_0\r\nabc\r\n0\r\n\r\n",
    "chunk size 0x": CHUNKED + b"0x3\r\nabc\r\n0\r\n\r\n",
    "bare LF after a chunk size": CHUNKED + b"3\nabc\r\n0\r\n\r\n",
    "bare LF after a chunk": CHUNKED + b"3\r\nabc\n0\r\n\r\n",
    "chunk longer than its size": CHUNKED + b"3\r\nabcd\r\n0\r\n\r\n",
    "LF in a chunk extension": CHUNKED + b"3;a\nb\r\nabc\r\n0\r\n\r\n",
    "two hosts": P + b"host: h\r\ncontent-length: 0\r\n\r\n",
    "two keys": P + b"authorization: Bearer x\r\ncontent-length: 0\r\n\r\n",
    "two hints": P + b"x-trimtab-tenant: a\r\nx-trimtab-tenant: b\r\ncontent-length: 0\r\n\r\n",
    "no host": b"GET /health HTTP/1.1\r\n\r\n",
    "space in the target": b"GET /v1/models x HTTP/1.1\r\nhost: g\r\n\r\n",
    "target with an 8-bit byte": b"GET /v1/models\xff HTTP/1.1\r\nhost: g\r\n\r\n",
    "tunnel": b"CONNECT a:1 HTTP/1.1\r\nhost: g\r\n\r\nabc",
    "fragment": b"GET /health#x HTTP/1.1\r\nhost: g\r\n\r\n",
}


@pytest.mark.parametrize("name", SMUGGLING)
@pytest.mark.parametrize("step", [0, 1])
async def test_ambiguous_requests_are_refused_and_the_connection_ends(name: str, step: int) -> None:
    seen: list[tuple[bytes, bytes]] = []
    async with gateway(answers(ok(b"{}"), seen)) as g:
        data = SMUGGLING[name] + b"GET /health HTTP/1.1\r\nhost: g\r\n\r\n"
        if not step:
            answer = await g.raw(data)
        else:
            reader, writer = await g.connect()
            for i in range(len(data)):
                writer.write(data[i : i + 1])
                await asyncio.sleep(0)
            answer = await reader.read()
            await closed(writer)
    status = int(answer[9:12])
    assert status in (400, 501), answer
    assert answer.count(b"HTTP/1.1 ") == 1, "what followed was taken for a request"
    assert b"connection: close" in answer
    assert not seen


async def test_chunked_bodies_arrive_whole_and_trailers_do_not() -> None:
    seen: list[tuple[bytes, bytes]] = []
    async with gateway(answers(ok(b"{}"), seen)) as g:
        body = b"%x;x=y\r\n%b\r\n%x\r\n%b\r\n0\r\nx-evil: 1\r\n\r\n" % (
            7,
            CHAT[:7],
            len(CHAT) - 7,
            CHAT[7:],
        )
        answer = await g.raw(
            CHUNKED[:-2] + b"content-type: application/json\r\nconnection: close\r\n\r\n" + body
        )
    assert answer.startswith(b"HTTP/1.1 200")
    head, got = seen[0]
    assert got == CHAT
    assert b"x-evil" not in head
    assert b"transfer-encoding" not in head.lower()


async def test_pipelined_requests_are_answered_in_their_order() -> None:
    async def slow_first(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from support.gateway.plane import read_request

        while True:
            head, _ = await read_request(reader)
            name = head.split(b"x-request-id: ")[1].split(b"\r\n")[0]
            await asyncio.sleep(0.1 if name == b"r0" else 0.0)
            writer.write(ok(b'"%b"' % name))

    async with gateway(slow_first) as g:
        data = b"".join(post(more=b"x-request-id: r%d\r\n" % i, close=i == 4) for i in range(5))
        for cut in (len(data), 300, 7):
            reader, writer = await g.connect()
            for at in range(0, len(data), cut):
                writer.write(data[at : at + cut])
                await asyncio.sleep(0)
            answer = await reader.read()
            await closed(writer)
            places = [answer.index(b'"r%d"' % i) for i in range(5)]
            assert places == sorted(places)
            assert answer.count(b"HTTP/1.1 200") == 5
        mixed = (
            post(close=False)
            + b"GET /health HTTP/1.1\r\nhost: g\r\n\r\n"
            + post(close=False)
            + b"BAD\r\n\r\n"
        )
        answer = await g.raw(mixed)
        assert answer.count(b"HTTP/1.1 200") == 3
        assert answer.count(b"HTTP/1.1 400") == 1
        assert answer.index(b"400 Bad") > answer.rindex(b"200 OK")


async def test_too_many_pipelined_requests_are_refused() -> None:
    async with gateway(answers(ok(b"{}"))) as g:
        answer = await g.raw(post(close=False) * 100)
        assert 1 <= answer.count(b"HTTP/1.1 200") <= 40
        assert b"429" in answer


async def test_http_1_0_and_head_and_keep_alive() -> None:
    async with gateway(answers(ok(b"{}"))) as g:
        old = await g.raw(post(close=False).replace(b"HTTP/1.1", b"HTTP/1.0"))
        assert old.startswith(b"HTTP/1.1 200")
        assert b"connection: close" in old
        kept = await g.raw(
            post(close=False, more=b"connection: keep-alive\r\n").replace(b"HTTP/1.1", b"HTTP/1.0")
            + post().replace(b"HTTP/1.1", b"HTTP/1.0")
        )
        assert kept.count(b"200 OK") == 2
        assert b"connection: keep-alive" in kept
        head = await g.raw(b"HEAD /health HTTP/1.1\r\nhost: g\r\nconnection: close\r\n\r\n")
        assert head.endswith(b"\r\n\r\n")
        assert b"content-length: 6" in head
        both = await g.raw(
            b"HEAD /nothing HTTP/1.1\r\nhost: g\r\n\r\n"
            + b"GET /health HTTP/1.1\r\nhost: g\r\nconnection: close\r\n\r\n"
        )
        assert b"HTTP/1.1 404" in both
        assert both.endswith(b"local ")


async def test_expect_is_answered_only_after_the_head_is_accepted() -> None:
    async with gateway(answers(ok(b"{}"))) as g:
        reader, writer = await g.connect()
        request = post(more=b"expect: 100-continue\r\n")
        head, body = request[: -len(CHAT)], request[-len(CHAT) :]
        writer.write(head)
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(body)
        assert (await reader.read()).startswith(b"HTTP/1.1 200")
        await closed(writer)
        refused = await g.raw(head.replace(b"Bearer k", b"Bearer no"))
        assert refused.startswith(b"HTTP/1.1 401")
        assert b"100 Continue" not in refused
        odd = await g.raw(post(more=b"expect: wonders\r\n"))
        assert odd.startswith(b"HTTP/1.1 417")


async def test_refusals_are_in_the_clients_dialect() -> None:
    async with gateway(answers(ok(b"{}"))) as g:
        for request, status, part in (
            (post().replace(b"Bearer k", b"Bearer x"), 401, b'"authentication_error"'),
            (post(path=b"/reset_prefix_cache"), 404, b"unknown_path"),
            (post(path=b"/v1/messages").replace(b"Bearer k", b"Bearer x"), 401, b'"type":"error"'),
            (
                b"DELETE /v1/chat/completions HTTP/1.1\r\nhost: g\r\nconnection: close\r\n\r\n",
                405,
                b"POST",
            ),
            (post(b'{"model":'), 400, b"invalid_json"),
            (post(b"[]"), 400, b"invalid_json"),
            (post(b'{"messages":[]}'), 400, b"model"),
            (post(more=b"x-trimtab-deadline-ms: soon\r\n"), 400, b"x-trimtab-deadline-ms"),
        ):
            answer = await g.raw(request)
            assert int(answer[9:12]) == status, answer
            assert part in answer, answer
    assert {end.outcome for end in g.notes.ends} == {Outcome.REFUSED}


async def test_limits_of_head_body_and_memory() -> None:
    settings = Settings(head_bytes=2_000, header_count=10, body_bytes=5_000, buffered_bytes=4_000)
    async with gateway(answers(ok(b"{}")), settings=settings) as g:
        assert (await g.raw(post(more=b"a: " + b"x" * 3_000 + b"\r\n"))).startswith(b"HTTP/1.1 431")
        assert (await g.raw(P + b"a: " + b"x" * 100_000)).startswith(b"HTTP/1.1 431")
        many = b"".join(b"h%d: 1\r\n" % i for i in range(20))
        assert (await g.raw(post(more=many))).startswith(b"HTTP/1.1 431")
        assert (await g.raw(post(b"x" * 6_000))).startswith(b"HTTP/1.1 413")
        body = b"%x\r\n%b\r\n" % (6_000, b"x" * 6_000)
        assert (await g.raw(CHUNKED + body)).startswith(b"HTTP/1.1 413")
        assert (await g.raw(post(b"x" * 4_500))).startswith(b"HTTP/1.1 503")
        assert (await g.raw(post())).startswith(b"HTTP/1.1 200")


async def test_slow_heads_and_bodies_and_idle_connections_are_cut_off() -> None:
    settings = Settings(request_read_timeout_s=0.2, keep_alive_s=0.2)
    async with gateway(answers(ok(b"{}")), settings=settings) as g:
        assert (await g.raw(b"POST /v1/ch")).startswith(b"HTTP/1.1 408")
        assert (await g.raw(b"")).startswith(b"HTTP/1.1 408")
        assert (await g.raw(post()[:-3])).startswith(b"HTTP/1.1 408")
        reader, writer = await g.connect()
        writer.write(post(close=False))
        await reader.readuntil(b"{}")
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        await closed(writer)


async def test_too_many_connections() -> None:
    async with gateway(answers(ok(b"{}")), settings=Settings(connections=1)) as g:
        _, writer = await g.connect()
        await until(lambda: len(g.context.connections) == 1)
        assert (await g.raw(b"")).startswith(b"HTTP/1.1 503")
        await closed(writer)


async def test_an_upgrade_that_is_not_taken_up_does_not_hide_the_body() -> None:
    seen: list[tuple[bytes, bytes]] = []
    upgrade = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAA\r\n"
    async with gateway(answers(ok(b"{}"), seen)) as g:
        data = post(close=False, more=upgrade) + post()
        assert (await g.raw(data)).count(b"200 OK") == 2
        chunked = CHUNKED[:-2] + b"content-type: application/json\r\n" + upgrade + b"\r\n"
        data = chunked + b"%x\r\n%b\r\n0\r\n\r\n" % (len(CHAT), CHAT) + post()
        assert (await g.raw(data)).count(b"200 OK") == 2
        get = b"GET /health HTTP/1.1\r\nhost: g\r\n" + upgrade + b"\r\n"
        assert (await g.raw(get + post())).count(b"200 OK") == 2
    assert [body for _, body in seen] == [CHAT] * 5
    assert not any(b"upgrade" in head.lower() or b"http2" in head.lower() for head, _ in seen)


@pytest.fixture
def full_disk() -> Iterator[int]:
    """No file grows beyond so many bytes: what goes over is written in part, as on a disk that fills up."""
    size = 300_000
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    yield size
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_a_body_that_does_not_fit_on_the_disk_is_refused_not_cut(full_disk: int) -> None:
    body = Body(1000)
    assert body.add(b"x" * 900) == 900
    assert body.add(b"x" * 200) == -900
    with pytest.raises(OSError, match="File too large"):
        body.add(b"x" * full_disk)
    body.close()

    seen: list[tuple[bytes, bytes]] = []
    async with gateway(answers(ok(b"{}"), seen), settings=Settings(memory_body_bytes=1000)) as g:
        answer = await g.raw(post(b"x" * (full_disk + 1)))
        assert answer.startswith(b"HTTP/1.1 503")
        assert b'"no_space"' in answer
        assert (await g.raw(post())).startswith(b"HTTP/1.1 200")
        assert len(seen) == 1, "what did not fit was sent nowhere"


async def test_a_body_for_which_no_file_can_be_made_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async with gateway(answers(ok(b"{}")), settings=Settings(memory_body_bytes=1000)) as g:
        monkeypatch.setattr(tempfile, "TemporaryFile", _no_space)
        assert b'"no_space"' in await g.raw(post(b"x" * 5000))
        assert g.context.buffered_bytes == 0


async def test_a_fault_of_the_gateway_itself_is_answered(caplog: pytest.LogCaptureFixture) -> None:
    def faulty(model: str) -> bool:
        raise KeyError(model)

    async def split(exchange: Exchange, body: bytes) -> LocalAnswer:
        return LocalAnswer(200, (("a", "b\r\nc: d"),))

    async def folder(exchange: Exchange, body: bytes) -> LocalAnswer:
        return LocalAnswer(200, (), Path("/"))

    async with gateway(answers(ok(b"{}")), settings=Settings(memory_body_bytes=10)) as g:
        g.context.admission.known = faulty
        asked = [post(), *[b"GET /health HTTP/1.1\r\nhost: g\r\nconnection: close\r\n\r\n"] * 2]
        for request, g.context.local in zip(asked, (split, split, folder), strict=True):
            answer = await g.raw(request)
            assert answer.startswith(b"HTTP/1.1 500")
            assert b'"internal_error"' in answer
            assert b"c: d" not in answer
        assert [end.outcome for end in g.notes.ends] == [Outcome.REFUSED] * 3
        assert g.dispatcher.log == []
    assert len(caplog.records) == 3


@pytest.mark.parametrize(
    "more", [b"POST", b"\x00\x01", b"x" * 5000, b"GET /a HTTP/1.1\r\na: b\r\na : b\r\n\r\n"]
)
async def test_what_follows_a_refused_request_in_its_segment_is_dropped_without_a_word(
    more: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    asked = b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\ncontent-length: 3\r\n\r\nabc"
    async with gateway(answers(ok(b"{}"))) as g:
        answer = await g.raw(asked + more)
        assert answer.startswith(b"HTTP/1.1 401")
        assert answer.count(b"HTTP/1.1") == 1
    assert caplog.records == []


def _no_space(**how: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


async def test_long_bodies_are_spooled_and_sent_whole() -> None:
    seen: list[tuple[bytes, bytes]] = []
    async with gateway(answers(ok(b"{}"), seen)) as g:
        body = b'{"model":"m","messages":[{"role":"user","content":"' + b"a" * 5_000_000 + b'"}]}'
        answer = await g.raw(post(body))
        assert answer.startswith(b"HTTP/1.1 200"), answer
    assert seen[0][1] == body
    exchange = g.notes.ends[0]
    assert exchange.facts is not None
    assert exchange.facts.model == "m"
    assert not exchange.replayable
