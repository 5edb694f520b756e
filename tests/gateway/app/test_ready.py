"""/ready says yes once a node has answered and its models are known, and why not before that."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from support.gateway.served_gateway import CountingBackend, ServedGateway, serving, until
from support.ports import reserved_port
from trimtab.gateway.app.readiness import not_ready
from trimtab.gateway.http.connection_context import Settings


class _SlowList(CountingBackend):
    """Its list of models waits until `let_go` is set."""

    async def _models(self, request: web.Request) -> web.Response:
        await self.let_go.wait()
        return await super()._models(request)


async def _ready(gateway: ServedGateway) -> int:
    async with gateway.session.get(f"{gateway.url}/ready") as answer:
        return answer.status


async def _models(gateway: ServedGateway) -> list[str]:
    async with gateway.session.get(f"{gateway.url}/v1/models") as answer:
        return [model["id"] for model in (await answer.json())["data"]]


@pytest.mark.parametrize("timeout_s", [60.0, 0.1], ids=["one request", "repeated"])
def test_a_gateway_is_ready_when_a_node_is_known_with_its_models(tmp_path: Path, timeout_s: float) -> None:
    async def main(dead_port: int) -> None:
        async with _SlowList() as backend:
            urls = {"late": backend.url, "dead": f"http://127.0.0.1:{dead_port}"}
            nodes = [{"name": name, "url": url} for name, url in urls.items()]
            config = {"nodes": nodes, "health": {"timeout_s": timeout_s}}
            async with serving(tmp_path, config) as gateway:
                for _ in range(20):
                    assert await _ready(gateway) == 503
                    await asyncio.sleep(0.02)
                backend.let_go.set()

                async def is_ready() -> bool:
                    return await _ready(gateway) == 200

                await until(is_ready, "it is ready")
                assert await _models(gateway) == ["m", "slow"]

    with reserved_port() as port:
        asyncio.run(main(port))


async def test_a_process_that_still_compiles_says_so_and_leaves_the_socket_to_what_serves_then() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        async with aiohttp.ClientSession(headers={"Authorization": "Bearer any"}) as session:

            async def asked(method: str, path: str) -> tuple[int, str]:
                async with session.request(method, url + path, data=b"{}") as answer:
                    return answer.status, await answer.text()

            async with not_ready(listening, Settings(), "it compiles"):
                assert await asked("GET", "/health") == (200, '{"status":"ok"}')
                assert await asked("GET", "/ready") == (503, '{"ready":false,"reason":"it compiles"}')
                status, text = await asked("POST", "/v1/chat/completions")
                assert (status, '"code":"starting"' in text) == (503, True)
            async with not_ready(listening, Settings(), "later"):
                assert (await asked("GET", "/ready"))[1] == '{"ready":false,"reason":"later"}'
