"""Streams of events as nodes send them, for tests: usual ones, and all kinds of others."""

from __future__ import annotations

import random
from typing import Any

import httptools

from support.gateway.plane import CHAT

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
STREAMING = b'{"stream":true,' + CHAT[1:]
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2}}\n\n'
DONE = b"data: [DONE]\n\n"


def content(n_bytes: int, text: bytes = b"x") -> bytes:
    """An event of content of about so many bytes."""
    start, end = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"', b'"}}]}\n\n'
    return start + text * max(0, n_bytes - len(start) - len(end)) + end


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


CONTENTS = {
    b"/v1/chat/completions": content(70),
    b"/v1/completions": content(300),
    b"/v1/messages": b'event: content_block_delta\ndata: {"type":"content_block_delta","text":"a"}\n\n',
    b"/v1/responses": b'event: response.output_text.delta\ndata: {"delta":"a"}\n\n',
}
OTHERS = (
    b": ping\n\n",
    USAGE,
    b'data: {"choices":[{"delta":{}}],"usage":null}\n\n',
    b'data: {"choices":[]}\n\n',
    b"data: " + b"y" * 450 + b'"choices"\n\n',
    b"data: a\r\n\r\n",
    b'data: {"choices":[\rdata: 1]}\n\n',
    b'data: {"choices":[{}]}\n\ndata: {"choices":[{}]}\n\n',
    *CONTENTS.values(),
    b'event: response.created\ndata: {"type":"response.created","response":{"id":"r1"}}\n\n',
    b'event: message_delta\ndata: {"type":"message_delta","usage":{"output_tokens":9}}\n\n',
    DONE,
    b"data: without an end",
    b"\n\n",
    content(5_000),
)


def some_pieces(rng: random.Random, usual: bytes) -> list[bytes]:
    """A stream as it may come: mostly an event in a chunk in a piece."""
    pieces = [HEAD]
    for _ in range(rng.randrange(3, 40)):
        event = usual if rng.random() < 0.75 else rng.choice(OTHERS)
        framed = chunk(event)
        if rng.random() < 0.05:
            framed = b"0%X;a=b\r\n%b\r\n" % (len(event), event)
        cut = rng.randrange(1, len(framed))
        fate = rng.random()
        if fate < 0.1:
            pieces += [framed[:cut], framed[cut:]]
        elif fate < 0.2:
            pieces[-1] += framed
        elif fate < 0.25:
            pieces[-1] += framed[:cut]
            pieces.append(framed[cut:])
        elif fate < 0.26:
            pieces.append(framed[:cut] + framed[cut + 1 :])  # a byte is missing
        else:
            pieces.append(framed)
    end = rng.random()
    if end < 0.7:
        pieces.append(b"0\r\n\r\n")
    return [*pieces, b""]


class Body:
    """What llhttp reads of an answer."""

    def __init__(self, answer: bytes) -> None:
        self.body, self.is_whole = b"", False
        parser: Any = httptools.HttpResponseParser(self)
        parser.feed_data(answer)

    def on_body(self, piece: bytes) -> None:
        self.body += piece

    def on_message_complete(self) -> None:
        self.is_whole = True
