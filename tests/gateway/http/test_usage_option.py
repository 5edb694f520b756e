"""Nodes that refuse `stream_options`, and answers that are compressed though nobody asked for it."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import Callable

import pytest

from support.gateway.plane import admission, answers, gateway, ok, post, read_request
from support.gateway.streams import DONE, HEAD, STREAMING, USAGE, chunk, content
from trimtab.gateway.http.response_observer import Decoder
from trimtab.gateway.http.usage_option import UNASKED_S
from trimtab.gateway.model import Kind, Usage
from trimtab.gateway.observe.usage_observer import uncounted_reason

ASKS = b"include_usage"
EVENT = content(100)
REPORT = b'{"choices":[{"text":"a"}],"usage":{"prompt_tokens":5,"completion_tokens":2}}'


def refusal(status: int, says: bytes) -> bytes:
    return b"HTTP/1.1 %d No\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
        status,
        len(says),
        says,
    )


class Strict:
    """A backend that answers requests with the field in another way than those without."""

    def __init__(self, asked: bytes, unasked: bytes) -> None:
        self.asked, self.unasked = asked, unasked
        self.seen: list[bool] = []  # whether the field was there

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            _, body = await read_request(reader)
            self.seen.append(ASKS in body)
            writer.write(self.asked if self.seen[-1] else self.unasked)
            await writer.drain()


STREAM = HEAD + chunk(EVENT) + chunk(DONE) + b"0\r\n\r\n"
WITH_USAGE = HEAD + chunk(EVENT) + chunk(USAGE) + chunk(DONE) + b"0\r\n\r\n"


@pytest.mark.parametrize(
    "error",
    [
        refusal(400, b'{"error":{"message":"extra fields not permitted"}}'),
        refusal(422, b""),
        refusal(500, b"TypeError: unexpected keyword argument 'stream_options'"),
        b"HTTP/1.1 400 No\r\ntransfer-encoding: chunked\r\n\r\n"
        + chunk(b"not permitted: stream_")
        + chunk(b"options")
        + b"0\r\n\r\n",
    ],
    ids=["400", "422", "500 that names it", "chunked"],
)
async def test_what_refuses_the_field_gets_the_request_again_without_it(error: bytes) -> None:
    backend = Strict(error, STREAM)
    async with gateway(backend, look=admission(count_usage=True)) as g:
        for _ in range(2):
            answer = await g.raw(post(STREAMING))
            assert answer.startswith(b"HTTP/1.1 200")
            assert EVENT in answer
        assert backend.seen == [True, False, False]  # learned
        node = g.dispatcher.nodes[0]
        node.unasked_until_s["m"] -= UNASKED_S  # it may have been upgraded
        assert b" 200" in (await g.raw(post(STREAMING)))[:20]
        assert backend.seen[3:] == [True, False]
    assert [entry for entry in g.dispatcher.log if entry[0] != "submit"] == [("done", 200)] * 3
    assert {uncounted_reason(exchange) for exchange in g.notes.ends} == {"not_reported"}


@pytest.mark.parametrize("is_proven", [False, True])
async def test_an_error_that_is_the_requests_own_reaches_the_client(is_proven: bool) -> None:
    """A node that has taken the field is not asked twice."""

    error = refusal(400, b'{"error":{"message":"max_tokens is too large"}}')
    backend = Strict(WITH_USAGE if is_proven else error, error)
    async with gateway(backend, look=admission(count_usage=True)) as g:
        if is_proven:
            assert USAGE not in await g.raw(post(STREAMING))
            backend.asked = error
        answer = await g.raw(post(STREAMING))
        assert b" 400 " in answer[:20]
        assert answer.endswith(b'{"error":{"message":"max_tokens is too large"}}')
        assert backend.seen == ([True, True] if is_proven else [True, False])
        assert g.dispatcher.nodes[0].unasked_until_s.get("m") == (0.0 if is_proven else None)


async def test_a_long_error_is_passed_on() -> None:
    backend = Strict(refusal(400, b"x" * 200_000), STREAM)
    async with gateway(backend, look=admission(count_usage=True)) as g:
        answer = await g.raw(post(STREAMING))
    assert b" 400 " in answer[:20]
    assert answer.count(b"x") >= 200_000
    assert backend.seen == [True]


def _raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


@pytest.mark.parametrize(
    ("coding", "pack"),
    [(b"gzip", gzip.compress), (b"deflate", zlib.compress), (b"deflate", _raw_deflate)],
    ids=["gzip", "deflate", "raw deflate"],
)
async def test_compressed_answers_are_counted_and_come_as_they_are(
    coding: bytes, pack: Callable[[bytes], bytes]
) -> None:
    body = pack(REPORT)
    async with gateway(answers(ok(body, more=b"content-encoding: %b\r\n" % coding))) as g:
        answer = await g.raw(post())
    assert answer.endswith(b"\r\n\r\n" + body)
    assert g.notes.ends[0].usage == Usage(5, 2)


@pytest.mark.parametrize("piece_bytes", [1, 7, 10_000])
@pytest.mark.parametrize("asks_itself", [False, True])
async def test_the_usage_that_no_client_asked_for_is_removed_from_a_compressed_stream(
    piece_bytes: int, asks_itself: bool
) -> None:
    coded = gzip.compress(EVENT * 3 + USAGE + DONE)
    pieces = [coded[at : at + piece_bytes] for at in range(0, len(coded), piece_bytes)]
    stream = HEAD.replace(b"\r\n\r\n", b"\r\ncontent-encoding: gzip\r\n\r\n")
    stream += b"".join(map(chunk, pieces)) + b"0\r\n\r\n"
    asking = b'{"stream_options":{"include_usage":true},' + STREAMING[1:]

    async with gateway(answers(stream), look=admission(count_usage=True)) as g:
        answer = await g.raw(post(asking if asks_itself else STREAMING))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-encoding: gzip" in head
    expected = EVENT * 3 + (USAGE if asks_itself else b"") + DONE
    assert gzip.decompress(_unchunked(body)) == expected
    exchange = g.notes.ends[0]
    assert (exchange.usage, exchange.streamed_chunks) == (Usage(5, 2), 3)
    assert g.dispatcher.nodes[0].unasked_until_s == ({} if asks_itself else {"m": 0.0})


def _unchunked(body: bytes) -> bytes:
    found = b""
    while body:
        size, _, rest = body.partition(b"\r\n")
        found, body = found + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    return found


@pytest.mark.parametrize(
    ("coding", "body"), [(b"br", b"\x8b\x02\x80"), (b"gzip", b"no gzip at all")], ids=["unknown", "damaged"]
)
async def test_what_cannot_be_read_passes_and_is_told(coding: bytes, body: bytes) -> None:
    async with gateway(answers(ok(body, more=b"content-encoding: %b\r\n" % coding))) as g:
        answer = await g.raw(post())
    assert answer.endswith(body)
    (exchange,) = g.notes.ends
    assert exchange.endpoint is not None
    assert exchange.endpoint.kind is Kind.CHAT
    assert (exchange.usage, uncounted_reason(exchange)) == (None, "coding")


async def test_streams_that_cannot_be_read_are_asked_for_usage_once() -> None:
    stream = STREAM.replace(b"\r\n\r\n", b"\r\ncontent-encoding: br\r\n\r\n", 1)
    backend = Strict(stream, stream)
    async with gateway(backend, look=admission(count_usage=True)) as g:
        for _ in range(2):
            await g.raw(post(STREAMING))
    assert backend.seen == [True, False]


async def test_several_gzip_members_are_one_body_and_a_bomb_is_not_read() -> None:
    assert Decoder().feed(gzip.compress(b"a") + gzip.compress(b"b")) == b"ab"
    bomb = gzip.compress(b"\0" * (64 << 20))

    async with gateway(answers(ok(bomb, more=b"content-encoding: gzip\r\n"))) as g:
        assert (await g.raw(post())).endswith(bomb)
    assert uncounted_reason(g.notes.ends[0]) == "coding"
