"""A backend that takes time to load models and adapters, by the calls of vLLM or of Ollama."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from aiohttp import web

from support.gateway.app_backend import AppBackend

USAGE = {"prompt_tokens": 3, "completion_tokens": 2}


class LoadingBackend(AppBackend):
    """`calls` notes each call that loads or unloads; `fails` makes loads fail, `hangs` never end."""

    def __init__(self, load_s: float = 0.15, service_s: float = 0.01) -> None:
        self.load_s, self.service_s = load_s, service_s
        self.held: set[str] = set()
        self.calls: list[tuple[str, str]] = []
        self.served: list[str] = []
        self.cold: list[str] = []  # requests for what was not held
        self.fails = self.hangs = False

    def routes(self) -> Sequence[web.AbstractRouteDef]:
        return [
            web.get("/health", self._ok),
            web.post("/v1/chat/completions", self._chat),
            web.post("/wake_up", self._wake_up),
            web.post("/sleep", self._sleep),
            web.get("/is_sleeping", self._is_sleeping),
            web.post("/v1/load_lora_adapter", self._load_adapter),
            web.post("/v1/unload_lora_adapter", self._unload_adapter),
            web.post("/api/generate", self._generate),
            web.get("/api/ps", self._ps),
        ]

    async def _ok(self, _: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _load(self, item: str) -> web.Response:
        self.calls.append(("load", item))
        if self.fails:
            return web.Response(status=500, text="out of memory")
        await asyncio.sleep(3600.0 if self.hangs else self.load_s)
        self.held.add(item)
        return web.json_response({})

    def _unload(self, item: str) -> web.Response:
        self.calls.append(("unload", item))
        self.held.discard(item)
        return web.json_response({})

    async def _chat(self, request: web.Request) -> web.Response:
        model = (await request.json())["model"]
        if model not in self.held:
            self.cold.append(model)
            await asyncio.sleep(self.load_s)
            self.held.add(model)
        await asyncio.sleep(self.service_s)
        self.served.append(model)
        return web.json_response({"id": "x", "choices": [], "usage": USAGE})

    async def _wake_up(self, _: web.Request) -> web.Response:
        return await self._load("m")

    async def _sleep(self, request: web.Request) -> web.Response:
        assert request.query == {"level": "1"}
        return self._unload("m")

    async def _is_sleeping(self, _: web.Request) -> web.Response:
        return web.json_response({"is_sleeping": "m" not in self.held})

    async def _load_adapter(self, request: web.Request) -> web.Response:
        said: dict[str, Any] = await request.json()
        assert said["lora_path"] == f"/files/{said['lora_name']}"
        return await self._load(said["lora_name"])

    async def _unload_adapter(self, request: web.Request) -> web.Response:
        return self._unload((await request.json())["lora_name"])

    async def _generate(self, request: web.Request) -> web.Response:
        said = await request.json()
        if said["keep_alive"] == 0:
            return self._unload(said["model"])
        return await self._load(said["model"])

    async def _ps(self, _: web.Request) -> web.Response:
        models = [{"name": f"{item}:latest", "model": f"{item}:latest"} for item in sorted(self.held)]
        return web.json_response({"models": models})
