"""Mutated HTTP: requests and responses that are almost right."""

from __future__ import annotations

import random

REQUESTS = (
    b"POST /v1/chat/completions?a=1 HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    b'Content-Length: 18\r\nx-mark: %s\r\n\r\n{"model":"%s"}',
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nx-mark: %s\r\n\r\n"
    b"6\r\n%s\r\n3;x=1\r\nabc\r\n0\r\n\r\n",
    b"GET /v1/models HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, x-hop\r\n"
    b"x-hop: 1\r\nx-mark: %s%.0s\r\n\r\n",
    b"POST /v1/images HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 6\r\n"
    b"x-mark: %s\r\n\r\n%s",
    b"GET /v1/realtime HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"x-mark: %s%.0s\r\n\r\n",
)
RESPONSES = (
    b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 13\r\n\r\n{"a":"abcde"}',
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"9\r\ndata: 1\n\n\r\nE;x=y\r\ndata: [DONE]\n\n\r\n0\r\nx-trailer: 1\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nuntil the end",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\nx-a: 1\r\n\r\n",
    b"HTTP/1.0 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 2\r\n\r\nno",
)
WORDS = (
    b"\r\n",
    b"\n",
    b"\r",
    b"\0",
    b" ",
    b"\t",
    b":",
    b"0\r\n\r\n",
    b"+5",
    b"1_0",
    b"-1",
    b"0x5",
    b"FFFFFFFFFFFFFFFFF",
    b"Content-Length: 5\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: identity, chunked\r\n",
    b"Transfer-Encoding : chunked\r\n",
    b" folded\r\n",
    b"Host: b\r\n",
    b"HTTP/1.1 200 OK\r\n\r\n",
    b"\xff\xfe",
    b";" * 40,
    b"Connection: close, upgrade\r\n",
    b"Upgrade: h2c\r\n",
    b"GET / HTTP/1.1\r\nHost: c\r\n\r\n",
    b"HTTP/2.0",
    b"http://a/",
)


def request(rng: random.Random, mark: bytes) -> bytes:
    """A right request that carries a mark of six bytes in its head and, where it has one, in its body."""
    return rng.choice(REQUESTS) % (mark, mark)


def mutated(rng: random.Random, data: bytes) -> bytes:
    """The same with a few changes: bytes turned, cut, doubled, moved, put in."""
    for _ in range(rng.choice((1, 1, 2, 3, 8))):
        at = rng.randrange(len(data) + 1)
        end = min(len(data), at + rng.choice((1, 1, 2, 4, 16, 64)))
        match rng.randrange(6):
            case 0:
                data = data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
            case 1:
                data = data[:at] + data[end:]
            case 2:
                data = data[:end] + data[at:end] + data[end:]
            case 3:
                data = data[:at] + rng.choice(WORDS) + data[at:]
            case 4:
                data = data[:at] + rng.choice(WORDS) + data[end:]
            case _:
                data = data[:at] + data[end:] + data[at:end]
    return data


def pieces(rng: random.Random, data: bytes) -> list[bytes]:
    """The data as it may come from a socket: cut anywhere."""
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.choice((1, 2, 5, 20))))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True) if b > a]
