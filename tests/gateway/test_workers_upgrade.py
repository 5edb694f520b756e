"""A successor takes over the listening sockets under load: no request is refused, reset or lost."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from pathlib import Path

import aiohttp
import pytest

from support.gateway.worker_gateway import CountingBackend, ServedGateway, node, serving, until

REQUESTS_PER_S = 100
CONNECTIONS = 4


async def _upgraded(folder: Path, workers: int) -> None:
    async with (
        CountingBackend() as backend,
        serving(folder, {"workers": workers, "nodes": [node(backend, capacity=64)]}) as gateway,
    ):
        backend.service_s = 0.01
        ended = asyncio.Event()
        load = asyncio.create_task(_load(gateway, ended))
        kept = [asyncio.create_task(_keep_asking(gateway, ended)) for _ in range(CONNECTIONS)]
        await until(lambda: _served(backend, 50), "there is load")
        first = await gateway.process_started()
        gateway.signal(signal.SIGUSR2)
        assert await gateway.ended() == 0  # it has drained
        served = backend.served
        await until(lambda: _served(backend, served + 50), "the successor serves")
        ended.set()
        statuses = Counter(await load)
        for each in kept:
            statuses += await each
        assert statuses.keys() == {200}
        assert await gateway.process_started() > first


async def _served(backend: CountingBackend, count: int) -> bool:
    return backend.served >= count


async def _load(gateway: ServedGateway, ended: asyncio.Event) -> list[int]:
    """So many requests per second, each on a connection of its own."""
    loop, asked = asyncio.get_running_loop(), []
    due_s = loop.time()
    while not ended.is_set():
        asked.append(asyncio.create_task(gateway.chat()))
        due_s += 1 / REQUESTS_PER_S
        await asyncio.sleep(max(0.0, due_s - loop.time()))
    return list(await asyncio.gather(*asked))


async def _keep_asking(gateway: ServedGateway, ended: asyncio.Event) -> Counter[int]:
    """One request after the other, on a connection that is kept for as long as the gateway keeps it."""
    statuses: Counter[int] = Counter()
    body = {"model": "m", "messages": []}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as session:
        while not ended.is_set():
            await asyncio.sleep(0.05)  # not all the time busy: the machine is for the gateways
            async with session.post(f"{gateway.url}/v1/chat/completions", json=body) as answer:
                await answer.read()
                statuses[answer.status] += 1
    return statuses


@pytest.mark.parametrize("workers", [1, 2])
def test_no_request_is_lost_by_an_upgrade(tmp_path: Path, workers: int) -> None:
    asyncio.run(_upgraded(tmp_path, workers))


async def _failed(folder: Path) -> None:
    """A successor that cannot start changes nothing."""
    async with (
        CountingBackend() as backend,
        serving(folder, {"workers": 2, "nodes": [node(backend)]}) as gateway,
    ):
        (folder / "gateway.yaml").write_text("listen: nowhere")
        gateway.signal(signal.SIGUSR2)

        async def is_said() -> bool:
            return "this one goes on" in gateway.said()

        await until(is_said, "it says that there is no successor")
        assert Counter([await gateway.chat() for _ in range(4)]) == {200: 4}


def test_an_upgrade_that_fails_changes_nothing(tmp_path: Path) -> None:
    asyncio.run(_failed(tmp_path))
