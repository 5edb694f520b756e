"""Chunked bodies and heads of responses, over every way to cut them, with another parser as the oracle."""

from __future__ import annotations

from itertools import pairwise

import httptools
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.gateway.http.framing import BadResponseError, Chunks, Length, parse_head, whole_head

PIECES = st.lists(st.binary(min_size=1, max_size=40), max_size=6)


def encode(pieces: list[bytes], trailer: bytes = b"") -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in pieces) + b"0\r\n" + trailer + b"\r\n"


def cut(data: bytes, at: list[int]) -> list[bytes]:
    places = [0, *sorted({place % (len(data) + 1) for place in at}), len(data)]
    return [data[a:b] for a, b in pairwise(places) if b > a]


def follow(parts: list[bytes]) -> tuple[Chunks, bytes, bytes]:
    chunks, raw, body = Chunks(), b"", b""
    for part in parts:
        raw += chunks.feed(part)
        body += chunks.payload
        if chunks.done:
            break
    return chunks, raw, body


@given(
    PIECES,
    st.lists(st.integers(0, 10_000), max_size=12),
    st.sampled_from([b"", b"x: y\r\n", b"a: b\r\nc: d\r\n"]),
)
@settings(deadline=None)
def test_any_cut_gives_the_same_body_and_no_trailer(
    pieces: list[bytes], at: list[int], trailer: bytes
) -> None:
    data = encode(pieces, trailer)
    chunks, raw, body = follow(cut(data, at))
    assert chunks.done
    assert not chunks.extra
    assert body == b"".join(pieces)
    assert raw == encode(pieces)


@given(PIECES, st.binary(min_size=1, max_size=10), st.lists(st.integers(0, 10_000), max_size=3))
@settings(deadline=None)
def test_what_follows_is_seen_and_not_handed_on(pieces: list[bytes], extra: bytes, at: list[int]) -> None:
    parts = cut(encode(pieces), at)
    parts[-1] += extra
    chunks, raw, _ = follow(parts)
    assert chunks.extra
    assert raw == encode(pieces)


class Oracle:
    def __init__(self) -> None:
        self.body = b""
        self.done = False

    def on_body(self, piece: bytes) -> None:
        self.body += piece

    def on_message_complete(self) -> None:
        self.done = True


@given(
    PIECES,
    st.integers(0, 200),
    st.sampled_from([b"", b"+", b"_", b"\n", b"\r", b"x", b"0", b" ", b";", b"\x00"]),
)
@settings(deadline=None, max_examples=400)
def test_never_more_lenient_than_llhttp(pieces: list[bytes], place: int, junk: bytes) -> None:
    data = encode(pieces)
    place %= len(data)
    data = data[:place] + junk + data[place + 1 :]
    oracle = Oracle()
    parser = httptools.HttpResponseParser(oracle)
    parser.feed_data(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    try:
        parser.feed_data(data)
    except httptools.HttpParserError:
        if not oracle.done:
            oracle.body = b"bad"
    try:
        chunks, _, body = follow([data])
    except BadResponseError:
        return
    if chunks.done:
        assert oracle.done
        assert body == oracle.body


@pytest.mark.parametrize("extension", [b";E;:=y", b" ; a=b", b";\xc3\xa9", b";x", b';q="a;b"'])
def test_extensions_of_chunks_end_here(extension: bytes) -> None:
    plain = encode([b"hello", b"world!"])
    data = plain.replace(b"5\r\n", b"5" + extension + b"\r\n").replace(b"0\r\n", b"0" + extension + b"\r\n")
    for parts in ([data], [data[i : i + 1] for i in range(len(data))], [data[:9], data[9:]]):
        chunks, raw, body = follow(parts)
        assert chunks.done
        assert body == b"helloworld!"
        assert raw == plain


def test_a_head_that_is_known_already_is_read_alike() -> None:
    raw = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n%b\r\n"
    lengths = (
        b"content-length: 5\r\n",
        b"Content-Length: 70\r\n",
        b"content-length:9\r\n",
        b"content-length: 70\r\n",
    )
    for _ in range(2):
        for line, size in zip(lengths, (5, 70, 9, 70), strict=True):
            head = parse_head(raw % line, "POST")
            assert (head.length, head.content_length) == (Length.COUNTED, size)
            assert head.block == b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
            assert head.json
            assert parse_head(raw % line, "HEAD").length is Length.NONE
        assert parse_head(raw % b"transfer-encoding: chunked\r\n", "POST").length is Length.CHUNKED
        assert parse_head(raw % b"", "POST").length is Length.CLOSE
        for size in (7, 8):
            not_modified = parse_head(
                b"HTTP/1.1 304 Not Modified\r\ncontent-length: %d\r\n\r\n" % size, "GET"
            )
            assert not_modified.lines == [b"content-length: %d\r\n" % size]


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\nserver: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nserver : x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nserver: x\r\n folded\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nserver: \x00\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nserver: a\rb\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: +5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1_0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5, 5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 20 OK\r\n\r\n",
        b"HTTP/2.0 200 OK\r\n\r\n",
        b"ICY 200 OK\r\n\r\n",
    ],
)
def test_heads_that_are_not_understood(raw: bytes) -> None:
    with pytest.raises(BadResponseError):
        parse_head(raw, "POST")


def test_heads_are_rewritten() -> None:
    head = parse_head(
        b"HTTP/1.0 200\r\nServer: x\r\nConnection: X-Hop, close\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\n"
        b"x-trimtab-secret: 1\r\nX-Request-Id: theirs\r\nContent-Type: Text/Event-Stream\r\n\r\n",
        "POST",
    )
    assert head.status_line == b"HTTP/1.1 200\r\n"
    assert head.lines == [b"Server: x\r\n", b"Content-Type: Text/Event-Stream\r\n"]
    assert head.length is Length.CLOSE
    assert not head.keep_alive
    assert parse_head(b"HTTP/1.1 304 Not Modified\r\ncontent-length: 9\r\n\r\n", "GET").length is Length.NONE
    assert parse_head(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n", "HEAD").length is Length.NONE


@pytest.mark.parametrize(
    ("status", "more", "is_known"),
    [
        (b"200 OK", b"X-Case: 1\r\n", True),
        (b"404 Not Found", b"X-Case: 2\r\n", True),
        (b"429 Too Many Requests", b"X-Case: 3\r\n", False),  # the node may be asked to be left alone
        (b"503 Service Unavailable", b"X-Case: 4\r\n", False),
        (b"304 Not Modified", b"X-Case: 5\r\n", False),  # has no body
        (b"200 OK", b"X-Case: 6\r\nConnection: close\r\n", False),
        (b"200 OK", b"X-Case: 7\r\nContent-Type: text/event-stream\r\n", False),
    ],
)
def test_a_head_that_was_read_before_is_known_again(status: bytes, more: bytes, is_known: bool) -> None:
    template = b"HTTP/1.1 " + status + b"\r\nContent-Length: %d\r\n" + more + b"\r\n"
    first, again = template % 5, template % 12
    assert whole_head(again + b"twelve bytes", len(again)) is None  # not read yet
    parse_head(first, "POST")
    known = whole_head(again + b"twelve bytes", len(again))
    assert (known is not None) == is_known
    if known is not None:
        read = parse_head(again, "POST")
        assert (known.status, known.block, known.json) == (read.status, read.block, read.json)
    assert whole_head(again + b"eleven byte", len(again)) is None
    assert whole_head(again + b"thirteen byte", len(again)) is None
    other = again.replace(b"X-Case", b"X-Other")
    assert whole_head(other + b"twelve bytes", len(other)) is None
