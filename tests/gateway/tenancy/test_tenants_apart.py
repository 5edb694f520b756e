"""One tenant's requests that every node refuses or breaks at, beside another tenant: over real sockets."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from support.gateway.served_gateway import CountingBackend, ServedGateway, node, serving, until
from support.served import ADMIN_KEY, KEY, config_of, key_entry

OTHER_KEY = "tt-key-of-the-other-tenant-0123456789"
N_NODES = 4


class Poisoned(CountingBackend):
    """Refuses, or breaks off, what its client calls poison."""

    async def _chat(self, request: web.Request) -> web.Response:
        said = (await request.json())["messages"][0]["content"]
        if said == "refuse":
            error = {"error": {"message": "full", "type": "overloaded"}}
            return web.json_response(error, status=503, headers={"Retry-After": "10"})
        if said == "break":
            assert request.transport is not None
            request.transport.close()
        return await super()._chat(request)


async def _say(gateway: ServedGateway, key: str, said: str, model: str = "m") -> int:
    body = {"model": model, "messages": [{"role": "user", "content": said}]}
    headers = {"Authorization": f"Bearer {key}"}
    try:
        async with gateway.session.post(
            f"{gateway.url}/v1/chat/completions", json=body, headers=headers
        ) as answer:
            await answer.read()
            return answer.status
    except aiohttp.ClientError:
        return 0


@pytest.mark.parametrize(("poison", "history"), [("refuse", 0), ("break", 60)])
async def test_what_one_tenant_causes_leaves_all_nodes_to_the_other(
    tmp_path: Path, poison: str, history: int
) -> None:
    backends = [Poisoned() for _ in range(N_NODES)]
    for backend in backends:
        await backend.__aenter__()
    config: dict[str, Any] = config_of(
        keys=[key_entry("poison", KEY), key_entry("victim", OTHER_KEY)],
        nodes=[node(backend, f"n{k}", 1) for k, backend in enumerate(backends)],
        policy="least-connections",
    )
    async with serving(tmp_path, config | {"insecure_no_auth": False}) as gateway:
        assert await _say(gateway, OTHER_KEY, "hello") == 200
        for _ in range(history):
            assert await _say(gateway, KEY, "hello") == 200
        for _ in range(6):
            assert await _say(gateway, KEY, poison) >= 500
        headers = {"Authorization": f"Bearer {ADMIN_KEY}"}
        async with gateway.session.get(f"{gateway.admin}/admin/nodes", headers=headers) as answer:
            nodes = (await answer.json())["nodes"]
        assert [(one["health"], one["reason"]) for one in nodes] == [("up", "")] * N_NODES
        withheld = {name for one in nodes for name in one["withheld_from"]}
        assert withheld == {"poison"}, "and an operator sees whom which nodes are withheld from"
        # Each of four nodes takes one request at a time: all four are open to the other tenant at once.
        slow = [asyncio.ensure_future(_say(gateway, OTHER_KEY, "hello", "slow")) for _ in range(N_NODES)]

        async def all_run() -> bool:
            return all(backend.running == 1 for backend in backends)

        await until(all_run, "every node works for the other tenant")
        for backend in backends:
            backend.let_go.set()
        assert await asyncio.gather(*slow) == [200] * N_NODES
    for backend in backends:
        await backend.__aexit__()
