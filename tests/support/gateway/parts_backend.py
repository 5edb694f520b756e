"""A backend whose answer to each text, prompt or image follows from it alone."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any

from support.gateway.plane import read_request


def vector(text: Any) -> list[float]:
    """The embedding of a text or of its tokens."""
    return [float(len(str(text))), float(sum(map(ord, str(text))) % 997)]


def answer_to(path: str, said: dict[str, Any]) -> dict[str, Any]:
    """What the backend answers."""
    if path.startswith("/v1/embeddings"):
        texts = said["input"] if isinstance(said["input"], list) else [said["input"]]
        data = [{"object": "embedding", "index": i, "embedding": vector(t)} for i, t in enumerate(texts)]
        tokens = sum(len(str(text)) for text in texts)
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return {"object": "list", "model": said["model"], "data": data, "usage": usage}
    if path.startswith("/v1/completions"):
        prompts, n = said["prompt"], said.get("n", 1)
        choices = [{"index": k, "text": f"{prompts[k // n]}-{k % n}"} for k in range(len(prompts) * n)]
        details = {"cached_tokens": len(prompts)}
        usage = {"prompt_tokens": len(prompts), "completion_tokens": len(choices)}
        return {"id": "c", "choices": choices, "usage": usage | {"prompt_tokens_details": details}}
    return {"created": 1, "data": [{"b64_json": "x"}] * said["n"]}


class PartsBackend:
    """`asked` notes the bodies; `fails` makes the first so many requests fail, `refuses` answers 400.

    With `waits` it answers once `go` is set; `dropped` counts the requests that were given up before.
    """

    def __init__(
        self,
        fails: int = 0,
        refuses: str = "",
        waits: bool = False,
        chunked: bool = False,
        compresses: bool = False,
    ) -> None:
        self.asked: list[dict[str, Any]] = []
        self.fails, self.refuses, self.chunked = fails, refuses, chunked
        self.compresses = compresses
        self.go = asyncio.Event()
        if not waits:
            self.go.set()
        self.dropped = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head, body = await read_request(reader)
            path = head.split(b" ")[1].decode()
            if not body:  # a health check
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
                continue
            said = json.loads(body)
            self.asked.append(said)
            if self.fails:
                self.fails -= 1
                return
            if not self.go.is_set() and await self._is_dropped(reader):
                self.dropped += 1
                return
            if self.refuses and self.refuses in json.dumps(said):
                status, answer = "400 Bad Request", b'{"error": {"message": "bad text"}}'
            else:
                status, answer = "200 OK", json.dumps(answer_to(path, said)).encode()
            begin = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\n".encode()
            if self.compresses:
                begin, answer = begin + b"content-encoding: gzip\r\n", gzip.compress(answer)
            if self.chunked:
                writer.write(
                    begin + b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n" % (len(answer), answer)
                )
                await writer.drain()
                await asyncio.sleep(0.001)
                writer.write(b"0\r\n\r\n")
            else:
                writer.write(begin + b"content-length: %d\r\n\r\n" % len(answer) + answer)

    async def _is_dropped(self, reader: asyncio.StreamReader) -> bool:
        """Whether the gateway closes before `go` is set."""
        closes = asyncio.ensure_future(reader.read(1))
        goes = asyncio.ensure_future(self.go.wait())
        try:
            await asyncio.wait((closes, goes), return_when=asyncio.FIRST_COMPLETED)
            return closes.done()
        finally:
            closes.cancel()
            goes.cancel()
