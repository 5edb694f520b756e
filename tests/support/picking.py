"""`trimtab epp` in a process of its own, behind the real Envoy, before backends that say who they are."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from support.envoy import Envoy, envoy, free_port
from support.gateway.app_backend import AppBackend
from support.served import KEY, START_S, Served, config_of, spawn
from support.waiting import until

MODEL = "demo-chat"
COMMAND = ("epp", "--config")


class NamedBackend(AppBackend):
    """Answers chat requests, says its name, and keeps the heads that it got. It holds `slow` requests."""

    def __init__(self, name: str, service_s: float = 0.0) -> None:
        self.name, self.service_s = name, service_s
        self.heads: dict[str, dict[str, str]] = {}  # by request id
        self.bodies: dict[str, Any] = {}
        self.n_served, self.capacity = 0, 64
        self.status, self.is_asked = 200, False  # for its models
        self.let_go = asyncio.Event()

    def routes(self) -> Sequence[web.AbstractRouteDef]:
        return [
            web.get("/health", self._health),
            web.get("/v1/models", self._health),
            web.post("/v1/chat/completions", self._chat),
        ]

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Listen no more."""
        self.let_go.set()
        await super().__aexit__()

    def node(self) -> dict[str, Any]:
        """Its entry in gateway.yaml."""
        return {"name": self.name, "url": self.url, "models": [MODEL], "capacity": self.capacity}

    async def _health(self, _request: web.Request) -> web.Response:
        self.is_asked = True
        return web.json_response({"data": [{"id": MODEL}]})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        at = request.headers.get("x-request-id", "")
        self.heads[at] = {name.lower(): value for name, value in request.headers.items()}
        self.bodies[at] = asked
        self.n_served += 1
        if asked["messages"][0]["content"] == "slow":
            await self.let_go.wait()
        elif self.service_s:
            await asyncio.sleep(self.service_s)
        headers = {"x-backend": self.name}
        usage = {"prompt_tokens": 7, "completion_tokens": 3}
        if self.status != 200:
            return web.json_response({"error": {"message": "no"}}, status=self.status, headers=headers)
        if not asked.get("stream"):
            return web.json_response({"id": "x", "choices": [], "usage": usage}, headers=headers)
        response = web.StreamResponse(headers={**headers, "content-type": "text/event-stream"})
        await response.prepare(request)
        for k in range(3):
            await response.write(b'data: {"choices":[{"index":0,"delta":{"content":"%d"}}]}\n\n' % k)
            await asyncio.sleep(0.01)
        await response.write(b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}}\n\n')
        await response.write(b"data: [DONE]\n\n")
        return response


@dataclass(slots=True)
class Picking:
    """What a test holds."""

    picker: Served
    envoy: Envoy
    backends: Sequence[NamedBackend]
    session: aiohttp.ClientSession
    config: dict[str, Any]

    async def chat(self, content: str = "hello", *, model: str = MODEL, **more: Any) -> Answered:
        """One request of a client; `headers` go with it."""
        headers = {"Authorization": f"Bearer {KEY}", **more.pop("headers", {})}
        body = {"model": model, "messages": [{"role": "user", "content": content}], **more}
        headers["content-type"] = "application/json"
        url, data = f"{self.envoy.url}/v1/chat/completions", io.BytesIO(json.dumps(body).encode())
        async with self.session.post(url, data=data, headers=headers) as answer:
            found = {name.lower(): value for name, value in answer.headers.items()}
            return Answered(answer.status, found, await answer.read())

    async def receipt(self, request_id: str) -> dict[str, Any]:
        """Why a request went where it went."""
        return await asyncio.to_thread(self.picker.receipt, request_id)

    async def metric(self, name: str, **labels: str) -> float:
        """A metric of the picker."""
        return await asyncio.to_thread(lambda: self.picker.metric(name, **labels))

    def by_backend(self) -> Counter[str]:
        """How many requests each backend got."""
        return Counter({one.name: one.n_served for one in self.backends})

    async def restarted(self) -> None:
        """The picker again, in the same folder and on the same port."""
        self.picker = await _up(self.picker.folder, self.config, (), {})

    async def is_served(self, within_s: float = 30.0) -> None:
        """Wait until a request is served."""

        async def works() -> bool:
            return (await self.chat()).status == 200

        await until(works, "a request is served", timeout_s=within_s, poll_s=0.1)


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer that a client got."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def backend(self) -> str:
        """The backend that says it has answered."""
        return self.headers.get("x-backend", "")

    @property
    def node(self) -> str:
        """The node that the picker says it has learned from."""
        return self.headers.get("x-trimtab-node", "")


async def _up(
    folder: Path, config: dict[str, Any], arguments: Sequence[str], environ: dict[str, str]
) -> Served:
    picker = spawn(folder, config, *arguments, command=COMMAND, **environ)
    try:
        await until(lambda: picker.is_up, "the picker is up", timeout_s=START_S, poll_s=0.05)
    except BaseException:
        picker.end()
        raise
    return picker


@contextlib.asynccontextmanager
async def picking(
    folder: Path,
    *backends: NamedBackend,
    envoy_changes: dict[str, Any] | None = None,
    arguments: Sequence[str] = (),
    environ: dict[str, str] | None = None,
    **changes: Any,
) -> AsyncIterator[Picking]:
    """Backends, picker and Envoy; `changes` replace entries of gateway.yaml. Backends may be up already."""
    async with contextlib.AsyncExitStack() as stack:
        for backend in backends:
            if not backend.port:
                await stack.enter_async_context(backend)
        picker_at = {"listen": f"127.0.0.1:{free_port()}"} | changes.pop("picker", {})
        config = config_of(nodes=[one.node() for one in backends], picker=picker_at, **changes)
        del config["listen"]
        picker = await _up(folder, config, arguments, environ or {})
        ports = [one.port for one in backends]
        running = await asyncio.to_thread(
            lambda: stack.enter_context(
                envoy(folder, int(picker_at["listen"].rpartition(":")[2]), ports, **(envoy_changes or {}))
            )
        )
        connector = aiohttp.TCPConnector(limit=64)
        session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
        made = Picking(picker, running, backends, session, config)
        try:
            await made.is_served()
            yield made
        finally:
            made.picker.end()
    assert "Traceback" not in made.picker.said(), made.picker.said()
