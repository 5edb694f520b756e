"""Requests whose head has been seen before are understood as those that are parsed; what goes upstream."""

from __future__ import annotations

import pytest

from support.gateway.plane import CHAT, answers, gateway, ok, post
from trimtab.gateway.http.request import KnownHeads, MalformedError, Request
from trimtab.gateway.http.request_reader import RequestReader

FIRST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nauthorization: Bearer k\r\n"
HEAD = FIRST + b"%bContent-Length: %d\r\n\r\n"
Seen = tuple[str, bytes, str, list[bytes], bytes, str, bytes, bool]


class Taker:
    def __init__(self) -> None:
        self.seen: list[Seen] = []

    def request_head(self, request: Request) -> None:
        pass

    def request_body(self, request: Request, piece: bytes) -> None:
        request.body.add(piece)

    def request_complete(self, request: Request) -> None:
        self.seen.append(
            (
                request.method,
                request.target,
                request.path,
                request.forward,
                request.key_digest,
                request.content_type,
                request.body.whole() or b"",
                request.keep_alive,
            )
        )


class CountingHeads(KnownHeads):
    """Counts how often a head was known."""

    __slots__ = ("hits",)

    def __init__(self) -> None:
        super().__init__()
        self.hits = 0

    def get(self, key: tuple[bytes, bytes]) -> Request | None:
        found = super().get(key)
        self.hits += found is not None
        return found


def read(pieces: list[bytes], known: KnownHeads) -> list[Seen]:
    taker = Taker()
    reader = RequestReader(taker, 32_768, 100, 1 << 20, known)
    for piece in pieces:
        reader.feed(piece)
    return taker.seen


def message(body: bytes, more: bytes = b"") -> bytes:
    return HEAD % (more, len(body)) + body


@pytest.mark.parametrize(
    "more", [b"", b"X-Custom: a b\r\n", b"connection: keep-alive, x-hop\r\nx-hop: 1\r\n"]
)
@pytest.mark.parametrize("step", [1, 7, 150, 10_000])
def test_known_heads_give_the_same_requests(more: bytes, step: int) -> None:
    known = CountingHeads()
    messages = [message(body, more) for body in (b"a", b"", b"bb" * 400, b"c\r\n\r\n", CHAT)]
    fresh = [read([one], KnownHeads())[0] for one in messages]
    data = b"".join(messages)
    assert [read([one], known)[0] for one in messages] == fresh
    assert known.hits == len(messages) - 1
    assert read([data[at : at + step] for at in range(0, len(data), step)], known) == fresh
    assert read([one[:-1] if one.endswith(b"c") else one for one in messages], known) == fresh


def test_heads_that_are_not_plain_are_parsed_each_time() -> None:
    known = CountingHeads()
    for more in (
        b"x-request-id: 1\r\n",
        b"expect: 100-continue\r\n",
        b"connection: close\r\n",
        b"upgrade: h2c\r\n",
    ):
        for _ in range(3):
            assert read([message(b"a", more)], known)
    for bad in (b"content-length: 1\r\n", b"transfer-encoding: chunked\r\n", b"a : b\r\n", b"a: b\n"):
        for _ in range(2):
            with pytest.raises(MalformedError):
                read([message(b"a", bad)], known)
    with pytest.raises(MalformedError):
        read([message(b"a"), (HEAD % (b"", 1)).replace(b": 1\r\n", b": \r\n")], known)
    assert known.hits == 0


def test_nothing_follows_a_request_that_closes() -> None:
    known = KnownHeads()
    read([message(b"a")], known)
    with pytest.raises(MalformedError):
        read([message(b"a", b"connection: close\r\n"), message(b"a")], known)


def test_known_heads_are_bounded() -> None:
    known = KnownHeads()
    for i in range(2_000):
        read([message(b"a", b"x-n: %d\r\n" % i)], known)
    assert len(known) <= 512


UPGRADE = b"connection: upgrade\r\nupgrade: websocket\r\n"


async def test_what_nodes_learn_of_the_client() -> None:
    seen: list[tuple[bytes, bytes]] = []
    async with gateway(answers(ok(b"{}"), seen)) as g:
        await g.raw(post())
        await g.raw(post(more=b"x-forwarded-proto: https\r\nx-forwarded-for: 192.0.2.7\r\n"))
        upgrade = b"connection: upgrade\r\nupgrade: websocket\r\nauthorization: Bearer k\r\n"
        protocols = b"sec-websocket-protocol: realtime, openai-insecure-api-key.SECRET, openai-beta.v1\r\n"
        await g.raw(b"GET /v1/realtime?model=m HTTP/1.1\r\nhost: g\r\n" + upgrade + protocols + b"\r\n")
    heads = [head for head, _ in seen]
    assert b"x-forwarded-proto: http\r\n" in heads[0]
    assert b"x-forwarded-proto: http\r\n" in heads[1], "what the client claims is not passed on"
    assert b"x-forwarded-for: 192.0.2.7, 127.0.0.1\r\n" in heads[1]
    assert b"SECRET" not in heads[2]
    assert b"sec-websocket-protocol: realtime, openai-beta.v1\r\n" in heads[2]


async def test_a_kept_connection_says_the_same_each_time() -> None:
    seen: list[tuple[bytes, bytes]] = []
    async with gateway(answers(ok(b'{"usage":{"prompt_tokens":3,"completion_tokens":4}}'), seen)) as g:
        answer = await g.raw(post(close=False) * 3 + post(CHAT[:-1] + b',"n":2}', close=False) + post())
        assert answer.count(b"HTTP/1.1 200 OK") == 5
        assert len({part[:32] for part in answer.split(b"x-request-id: ")[1:]}) == 5
    assert [body for _, body in seen[:3]] == [CHAT] * 3
    assert b"content-length: %d\r\n" % (len(CHAT) + 6) in seen[3][0]
    assert [end.usage.prompt_tokens for end in g.notes.ends if end.usage is not None] == [3] * 5


async def test_a_compressed_body_is_refused_and_not_taken_for_bad_text() -> None:
    async with gateway(answers(ok(b"{}"))) as g:
        for _ in range(2):  # a head that was seen before is refused too
            answer = await g.raw(post(more=b"content-encoding: gzip\r\n"))
            assert answer.startswith(b"HTTP/1.1 415")
            assert b'"content_encoding"' in answer
        assert (await g.raw(post(more=b"content-encoding: identity\r\n"))).startswith(b"HTTP/1.1 200")


async def test_http_2_is_refused_by_its_version() -> None:
    async with gateway(answers(ok(b"{}"))) as g:
        preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"
        assert (await g.raw(preface)).startswith(b"HTTP/1.1 505")


async def test_a_browser_sends_its_key_as_a_subprotocol() -> None:
    seen: list[tuple[bytes, bytes]] = []
    async with gateway(answers(ok(b"{}"), seen)) as g:
        head = b"GET /v1/realtime?model=m HTTP/1.1\r\nhost: g\r\n" + UPGRADE
        for key, status in ((b"k", b"200"), (b"other", b"401")):
            protocols = b"sec-websocket-protocol: realtime, openai-insecure-api-key.%b\r\n\r\n" % key
            assert (await g.raw(head + protocols))[9:12] == status
        assert b"sec-websocket-protocol: realtime\r\n" in seen[0][0]


async def test_a_realtime_session_names_its_model() -> None:
    async with gateway(answers(ok(b"{}"))) as g:
        head = b"GET /v1/realtime HTTP/1.1\r\nhost: g\r\n" + UPGRADE
        answer = await g.raw(head + b"authorization: Bearer k\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 400")
        assert b'"missing_required_parameter"' in answer
        assert g.dispatcher.log == []
