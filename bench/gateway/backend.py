"""Mock backends that cost little: fixed answers, streams at a rate. `python -m bench.gateway.backend COUNT`.

They listen on COUNT ports, say which in a line of JSON, and end with their standard input. What they answer
is set by `POST /_set` on any of the ports.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

import httptools
import uvloop

from bench.gateway.bodies import LAST_CHUNKS, MODEL, STAMP, chat_answer, chunk

MODELS = json.dumps({"object": "list", "data": [{"id": MODEL, "object": "model"}]}).encode()
INFO = json.dumps({"model_path": MODEL, "served_model_name": MODEL, "is_generation": True}).encode()
SSE_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
FIXED = {b"/health": b"ok", b"/health_generate": b"ok", b"/v1/models": MODELS}


class Answers:
    """The present answer."""

    def __init__(self) -> None:
        self.change({})

    def change(self, settings: dict[str, Any]) -> None:
        """Set size of whole answers in bytes, chunks of a stream, seconds between two."""
        self.whole = _response(chat_answer(int(settings.get("size", 1024))))
        self.chunks = int(settings.get("chunks", 100))
        self.interval_s = float(settings.get("interval_s", 0.05))


def _response(body: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % len(body) + body


class Connection(asyncio.Protocol):
    """One connection; requests come one after the other."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._parser: Any = httptools.HttpRequestParser(self)
        self._url, self._body = b"", b""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def on_url(self, url: bytes) -> None:
        self._url, self._body = url, b""

    def on_body(self, piece: bytes) -> None:
        self._body = self._body + piece if len(self._body) < 1024 else self._body

    def on_message_complete(self) -> None:
        if self._url == b"/_set":
            self._answers.change(json.loads(self._body))
            self._transport.write(_response(b"{}"))
        elif not self._url.startswith(b"/v1/chat/"):
            self._transport.write(_response(FIXED.get(self._url, INFO)))
        elif b'"stream":true' in self._body or b'"stream": true' in self._body:
            self._begin_stream()
        else:
            self._transport.write(self._answers.whole)

    def _begin_stream(self) -> None:
        self._transport.write(SSE_HEAD)
        self._left = self._answers.chunks
        self._due_s = asyncio.get_running_loop().time()
        self._next()

    def _next(self) -> None:
        if not self._left:
            self._transport.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(LAST_CHUNKS), LAST_CHUNKS))
            return
        self._left -= 1
        event = chunk(STAMP + b"%020d" % time.monotonic_ns())
        self._transport.write(b"%x\r\n%s\r\n" % (len(event), event))
        self._due_s += self._answers.interval_s
        self._timer = asyncio.get_running_loop().call_at(self._due_s, self._next)


async def _main(count: int) -> None:
    loop, answers = asyncio.get_running_loop(), Answers()
    servers = [
        await loop.create_server(lambda: Connection(answers), "127.0.0.1", 0, backlog=4096)
        for _ in range(count)
    ]
    print(json.dumps([server.sockets[0].getsockname()[1] for server in servers]), flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    uvloop.run(_main(int(sys.argv[1])))
