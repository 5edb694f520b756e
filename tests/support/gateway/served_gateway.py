"""A gateway that serves, as a process or in the test's own loop, and a backend there that counts."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from support import waiting
from support.gateway.app_backend import AppBackend
from support.served import START_S, WAIT_S, Served, spawn
from trimtab.gateway.app.assembly import GatewayCore
from trimtab.gateway.app.http_plane import HttpPlane
from trimtab.gateway.config import parse_config

OPEN = {"listen": "127.0.0.1:0", "admin": {"listen": "127.0.0.1:0"}, "insecure_no_auth": True}


class CountingBackend(AppBackend):
    """Answers chat requests; those of the model "slow" wait until `let_go` is set."""

    def __init__(self) -> None:
        self.running = self.peak = self.served = 0
        self.service_s = 0.0
        self.let_go = asyncio.Event()
        self.models = ("m", "slow")

    def routes(self) -> Sequence[web.AbstractRouteDef]:
        return [
            web.get("/health", self._health),
            web.get("/v1/models", self._models),
            web.post("/v1/chat/completions", self._chat),
        ]

    async def __aexit__(self, *_: object) -> None:
        self.let_go.set()
        await super().__aexit__()

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _models(self, _request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": name} for name in self.models]})

    async def _chat(self, request: web.Request) -> web.Response:
        said = await request.json()
        self.running += 1
        self.peak = max(self.peak, self.running)
        try:
            if said["model"] == "slow":
                await self.let_go.wait()
            else:
                await asyncio.sleep(self.service_s)
        finally:
            self.running -= 1
        self.served += 1
        usage = {"prompt_tokens": 3, "completion_tokens": 2}
        return web.json_response({"id": "x", "choices": [], "usage": usage})


class ServedGateway:
    """A gateway that serves, in a process of its own, asked from the test's loop."""

    def __init__(self, served: Served) -> None:
        self.process, self.said = served.process, served.said
        self.url, self.admin = served.url, served.admin_url
        self.session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=WAIT_S), headers={"x-trimtab-admin": "1"}
        )

    async def chat(self, model: str = "m", **options: Any) -> int:
        """The status of one request on a connection of its own."""
        body = {"model": model, "messages": [{"role": "user", "content": "hello"}]}
        options.setdefault("headers", {"Connection": "close"})
        async with self.session.post(f"{self.url}/v1/chat/completions", json=body, **options) as answer:
            await answer.read()
            return answer.status

    async def ended(self) -> int:
        """Wait for the end of the first process."""

        async def is_over() -> bool:
            return self.process.poll() is not None

        await until(is_over, "it ends")
        return int(self.process.returncode)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)


async def until(condition: Callable[[], Any], what: str, within_s: float = WAIT_S) -> Any:
    """Wait until an asynchronous condition holds; returns what it gave. Failed connections are no answer."""

    async def answer() -> Any:
        with contextlib.suppress(aiohttp.ClientError):
            return await condition()
        return None

    return await waiting.until(answer, what, timeout_s=within_s, poll_s=0.02)


@contextlib.asynccontextmanager
async def serving(folder: Path, config: dict[str, Any]) -> AsyncIterator[ServedGateway]:
    """Write gateway.yaml and serve it; the loop runs on while it starts, for the backends in it."""
    process = spawn(folder, OPEN | config)

    async def is_up() -> bool:
        return process.is_up

    gateway = None
    try:
        await until(is_up, "it serves", START_S)
        gateway = ServedGateway(process)
        yield gateway
    finally:
        if gateway is not None:
            await gateway.session.close()
        process.end()


@contextlib.asynccontextmanager
async def serving_here(config: str, file: str = "g.yaml") -> AsyncIterator[tuple[GatewayCore, str]]:
    """A gateway in the test's own loop, and its URL."""
    gateway = GatewayCore(parse_config(config, file), asyncio.get_running_loop(), HttpPlane)
    sock = socket.create_server(("127.0.0.1", 0))
    await gateway.open(sock)
    try:
        yield gateway, f"http://127.0.0.1:{sock.getsockname()[1]}"
    finally:
        await gateway.close()


def node(backend: CountingBackend, name: str = "n1", capacity: int = 4) -> dict[str, Any]:
    """The entry of a node."""
    return {"name": name, "url": backend.url, "models": list(backend.models), "capacity": capacity}
