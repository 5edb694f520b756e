"""The demonstration's nodes: chat and images from small HTTP servers that answer after a known time.

The process of the demonstration's nodes, from inside and from outside.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import random
import struct
import subprocess
import sys
import time
import uuid
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

SIDE_PIXELS = 64  # the longer side of what is really made
ADDRESS = "127.0.0.1"
GRACE_S = 0.5  # for requests that run when the process is to end
STOP_TIMEOUT_S = 5.0


def base64_png(prompt: str, width: int, height: int) -> str:
    """A picture of this shape, made small, in base64."""
    scale = SIDE_PIXELS / max(width, height, SIDE_PIXELS)
    columns, rows = max(1, round(width * scale)), max(1, round(height * scale))
    digest = hashlib.sha256(prompt.encode()).digest()
    pixels = b"".join(b"\0" + _colour(digest, row / rows) * columns for row in range(rows))
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", columns, rows, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(pixels)),
        (b"IEND", b""),
    )
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"".join(map(_chunk, *zip(*chunks, strict=True)))).decode()


def _colour(digest: bytes, down_frac: float) -> bytes:
    return bytes(round(a + (b - a) * down_frac) for a, b in zip(digest[:3], digest[3:6], strict=True))


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


PREFILL_S = 0.0002  # per prompt token, at speed 1
OUTPUT_S = 0.01  # per output token, at speed 1
IMAGE_S = 0.4  # per megapixel, at speed 1
OUTPUT_TOKENS = 64  # of an answer, where the request asks for no fewer
KV_TOKENS = 65_536  # what the reported usage of the cache is a fraction of
CHARS_PER_TOKEN = 4
PROVERB = "a small tab on the trailing edge turns the whole rudder and that turns the ship"
WORDS = PROVERB.split()


@dataclass(frozen=True, slots=True)
class DemoNode:
    """A node of the demonstration."""

    name: str
    model: str
    slots: int  # requests served at a time; others wait in order of arrival
    speed: float = 1.0
    failing_frac: float = 0.0  # of the requests: answered with status 503


DEMO_NODES = (
    DemoNode("chat-fast", "demo-chat", slots=4, speed=2.0),
    DemoNode("chat-slow", "demo-chat", slots=2),
    DemoNode("chat-failing", "demo-chat", slots=2, speed=1.5, failing_frac=0.1),
    DemoNode("image", "demo-image", slots=1),
)


class DemoServer:
    """The HTTP server of one node."""

    def __init__(self, node: DemoNode) -> None:
        self._node = node
        self._slots = asyncio.Semaphore(node.slots)
        self._random = random.Random(node.name)
        self._running = self._waiting = self._served = 0
        self._held_tokens = self._prompt_tokens = self._output_tokens = 0

    def app(self) -> web.Application:
        """The application to be served."""
        app = web.Application(middlewares=[_answer_errors_in_json])
        app.add_routes(
            [
                web.get("/health", self._health),
                web.get("/v1/models", self._models),
                web.get("/metrics", self._metrics),
                web.post("/v1/chat/completions", self._chat),
                web.post("/v1/images/generations", self._image),
            ]
        )
        return app

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _models(self, request: web.Request) -> web.Response:
        model = {"id": self._node.model, "object": "model", "created": 0, "owned_by": "trimtab"}
        return web.json_response({"object": "list", "data": [model]})

    async def _metrics(self, request: web.Request) -> web.Response:
        """Under the names that vLLM uses."""
        gauges = {
            "num_requests_running": self._running,
            "num_requests_waiting": self._waiting,
            "kv_cache_usage_perc": min(1.0, self._held_tokens / KV_TOKENS),
        }
        counters = {
            "prompt_tokens_total": self._prompt_tokens,
            "generation_tokens_total": self._output_tokens,
            "request_success_total": self._served,
        }
        lines = [
            f'# TYPE vllm:{name} {kind}\nvllm:{name}{{model_name="{self._node.model}"}} {float(value)}\n'
            for kind, values in (("gauge", gauges), ("counter", counters))
            for name, value in values.items()
        ]
        return web.Response(text="".join(lines))

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await self._accepted(request)
        prompt_tokens = max(1, len(json.dumps(body.get("messages", ""))) // CHARS_PER_TOKEN)
        limit = body.get("max_completion_tokens") or body.get("max_tokens")
        output_tokens = max(1, min(OUTPUT_TOKENS, int(limit or OUTPUT_TOKENS)))
        answer = _ChatAnswer(self._node.model, prompt_tokens, output_tokens, is_cut=output_tokens == limit)
        async with self._slot(prompt_tokens + output_tokens):
            self._prompt_tokens += prompt_tokens
            await asyncio.sleep(prompt_tokens * PREFILL_S / self._node.speed)
            if body.get("stream") is True:
                wants_usage = (body.get("stream_options") or {}).get("include_usage") is True
                return await self._stream(request, answer, wants_usage)
            await asyncio.sleep(output_tokens * OUTPUT_S / self._node.speed)
            self._output_tokens += output_tokens
        return web.json_response(answer.whole())

    async def _stream(
        self, request: web.Request, answer: _ChatAnswer, wants_usage: bool
    ) -> web.StreamResponse:
        """Send each word when its time has come."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(answer.chunk({"role": "assistant", "content": ""}))
        for word in answer.words():
            await asyncio.sleep(OUTPUT_S / self._node.speed)
            await response.write(answer.chunk({"content": word}))
            self._output_tokens += 1
        await response.write(answer.chunk({}, finish_reason=answer.finish_reason))
        if wants_usage:
            await response.write(answer.usage_chunk())
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _image(self, request: web.Request) -> web.Response:
        body = await self._accepted(request)
        width, height = map(int, str(body.get("size", "1024x1024")).split("x"))
        number = int(body.get("n", 1))
        async with self._slot():
            await asyncio.sleep(number * width * height / 1e6 * IMAGE_S / self._node.speed)
        pictures = (base64_png(f"{body.get('prompt')} {k}", width, height) for k in range(number))
        data = [{"b64_json": picture} for picture in pictures]
        return web.json_response({"created": int(time.time()), "data": data})

    async def _accepted(self, request: web.Request) -> dict[str, Any]:
        """The body. Raises an HTTP error: for another model, and at random where the node is to fail."""
        body = await request.json()
        if body.get("model") != self._node.model:
            raise web.HTTPNotFound(text=f"The model `{body.get('model')}` does not exist.")
        if self._random.random() < self._node.failing_frac:
            raise web.HTTPServiceUnavailable(text="This node of the demonstration fails now and then.")
        return dict(body)

    @asynccontextmanager
    async def _slot(self, tokens: int = 0) -> AsyncIterator[None]:
        """Wait for a slot and hold it. A cancelled request leaves it."""
        self._waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self._waiting -= 1
        self._running += 1
        self._held_tokens += tokens
        try:
            yield
            self._served += 1
        finally:
            self._running -= 1
            self._held_tokens -= tokens
            self._slots.release()


class _ChatAnswer:
    """An answer to a chat request, whole or in chunks of a stream."""

    def __init__(self, model: str, prompt_tokens: int, output_tokens: int, is_cut: bool) -> None:
        self.finish_reason = "length" if is_cut else "stop"
        self._output_tokens = output_tokens
        self._usage = {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": output_tokens,
            "total_tokens": prompt_tokens + output_tokens,
        }
        self._head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}

    def words(self) -> list[str]:
        """One per token."""
        return [WORDS[k % len(WORDS)] + " " for k in range(self._output_tokens)]

    def whole(self) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        message = {"role": "assistant", "content": "".join(self.words())}
        choice = {"index": 0, "message": message, "finish_reason": self.finish_reason}
        return {**self._head, "object": "chat.completion", "choices": [choice], "usage": self._usage}

    def chunk(self, delta: dict[str, str], finish_reason: str | None = None) -> bytes:
        """An event with a piece of the answer."""
        return self._event(choices=[{"index": 0, "delta": delta, "finish_reason": finish_reason}])

    def usage_chunk(self) -> bytes:
        """The event with the tokens, at the stream's end."""
        return self._event(choices=[], usage=self._usage)

    def _event(self, **content: Any) -> bytes:
        event = {**self._head, "object": "chat.completion.chunk", **content}
        return b"data: " + json.dumps(event).encode() + b"\n\n"


@web.middleware
async def _answer_errors_in_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPException as error:
        status, message = error.status, error.text
    except (ValueError, TypeError, AttributeError):  # of a body that is not as it should be
        status, message = 400, "The body is not a valid request."
    kind = "invalid_request_error" if status < 500 else "server_error"
    return web.json_response({"error": {"message": message, "type": kind}}, status=status)


async def serve_nodes() -> None:
    """Serve all nodes until standard input ends. Prints their URLs as JSON when they listen."""
    runners = [
        # A client that goes away cancels the handler, which then leaves its slot
        web.AppRunner(DemoServer(node).app(), handler_cancellation=True, access_log=None)
        for node in DEMO_NODES
    ]
    try:
        urls = [await _listening(runner) for runner in runners]
        print(json.dumps(urls), flush=True)
        await _end_of_stdin()
    finally:
        for runner in runners:
            await runner.cleanup()


async def _listening(runner: web.AppRunner) -> str:
    await runner.setup()
    await web.TCPSite(runner, ADDRESS, 0, shutdown_timeout=GRACE_S).start()
    return f"http://{ADDRESS}:{runner.addresses[0][1]}"


async def _end_of_stdin() -> None:
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.read()


@contextmanager
def running_nodes() -> Iterator[dict[str, DemoNode]]:
    """The nodes by URL; their process ends with the block. Raises RuntimeError where it does not start."""
    # A session of its own: Ctrl-C is for the gateway, which drains before its nodes end.
    # The pipe ends with this process, however that ends, and the nodes with the pipe.
    process = subprocess.Popen(
        [sys.executable, "-m", "trimtab.gateway.demo"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        try:
            line = process.stdout.readline()
            if not line:
                raise RuntimeError("the nodes of the demonstration did not start; the reason is above")
            yield dict(zip(json.loads(line), DEMO_NODES, strict=True))
        finally:
            process.stdin.close()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:  # frozen, perhaps
                process.kill()
