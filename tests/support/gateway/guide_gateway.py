"""A gateway in the test's own loop for a configuration out of a guide, its nodes put on backends here."""

from __future__ import annotations

import asyncio
import textwrap
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from aiohttp import web

from support.gateway.app_backend import AppBackend
from support.gateway.served_gateway import serving_here
from trimtab.gateway.app.assembly import GatewayCore

PATIENT_S = 200.0


class Backend(AppBackend):
    """Serves chat, embeddings (after `service_s`), and the calls that load models of vLLM and adapters."""

    def __init__(self, *models: str, service_s: float = 0.0) -> None:
        self.models, self.service_s = models, service_s
        self.calls: list[tuple[str, Any]] = []
        self.is_asleep = True

    def routes(self) -> Sequence[web.AbstractRouteDef]:
        return [
            web.get("/health", self._ok),
            web.get("/v1/models", self._models),
            web.post("/v1/chat/completions", self._chat),
            web.post("/v1/embeddings", self._embed),
            web.get("/is_sleeping", self._is_sleeping),
            web.post("/wake_up", self._wake_up),
            web.post("/load", self._load),
        ]

    async def _ok(self, _: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": name} for name in self.models]})

    async def _chat(self, request: web.Request) -> web.Response:
        said = await request.json()
        self.calls.append(("chat", said["model"]))
        usage = {"prompt_tokens": 3, "completion_tokens": 2}
        return web.json_response({"id": "x", "model": said["model"], "choices": [], "usage": usage})

    async def _embed(self, request: web.Request) -> web.Response:
        given = (await request.json())["input"]
        texts = given if isinstance(given, list) else [given]
        self.calls.append(("embed", len(texts)))
        await asyncio.sleep(self.service_s)
        data = [{"index": k, "embedding": [1.0]} for k in range(len(texts))]
        usage = {"prompt_tokens": len(texts), "total_tokens": len(texts)}
        return web.json_response({"object": "list", "data": data, "usage": usage})

    async def _is_sleeping(self, _: web.Request) -> web.Response:
        return web.json_response({"is_sleeping": self.is_asleep})

    async def _wake_up(self, _: web.Request) -> web.Response:
        self.is_asleep = False
        return web.json_response({})

    async def _load(self, request: web.Request) -> web.Response:
        self.calls.append(("load", await request.json()))
        return web.json_response({})


class Served:
    """The gateway, and a client of it."""

    def __init__(self, gateway: GatewayCore, url: str, session: aiohttp.ClientSession) -> None:
        self.gateway, self._url, self._session = gateway, url, session

    async def chat(self, model: str, key: str = "") -> tuple[int, Any, Any]:
        """Status, headers and JSON of an answer."""
        return await self._ask("/v1/chat/completions", {"model": model, "messages": []}, key)

    async def embed(self, model: str) -> tuple[int, Any, Any]:
        """As `chat`."""
        return await self._ask("/v1/embeddings", {"model": model, "input": "a text"}, "")

    async def _ask(self, path: str, said: dict[str, Any], key: str) -> tuple[int, Any, Any]:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        async with self._session.post(self._url + path, json=said, headers=headers) as answer:
            return answer.status, answer.headers, await answer.json(content_type=None)


def settings_of(example: str, backends: Sequence[Backend]) -> dict[str, Any]:
    """The example's settings; its nodes, or as many as there are backends, at these.

    Backends share the gateway's loop: while a busy machine compiles a policy, checks time out that are no
    sign of a node's health, and requests wait for as long.
    """
    settings: dict[str, Any] = yaml.safe_load(textwrap.dedent(example))
    settings.setdefault("queue", {}).update(max_wait_s=PATIENT_S, max_wait_no_ready_node_s=PATIENT_S)
    settings.setdefault("health", {}).update(timeout_s=PATIENT_S)
    if "keys" not in settings:
        settings["insecure_no_auth"] = True
    named = [{"name": f"gpu-{k}", "capacity": 4} for k in range(1, len(backends) + 1)]
    for node, backend in zip(settings.setdefault("nodes", named), backends, strict=True):
        node["url"] = backend.url
        node.setdefault("models", list(backend.models))
    return settings


@asynccontextmanager
async def served(example: str, *backends: Backend, folder: Path = Path()) -> AsyncIterator[Served]:
    """Serve an example. Relative paths count from `folder`."""
    async with AsyncExitStack() as stack:
        for backend in backends:
            await stack.enter_async_context(backend)
        text = yaml.safe_dump(settings_of(example, backends))
        gateway, url = await stack.enter_async_context(serving_here(text, str(folder / "gateway.yaml")))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        yield Served(gateway, url, session)
