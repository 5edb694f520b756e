"""SIGTERM with work under way: it is finished, and who comes meanwhile is told so at once."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import aiohttp

from support.gateway.served_gateway import CountingBackend, ServedGateway, node, serving, until

DRAIN_S = 60.0
FRESH = 10  # connections


async def _tells_everybody(gateway: ServedGateway) -> None:
    """Waits until it does: what is on its way as the signal comes is served."""
    await until(lambda: _all_are_told(gateway), "new requests are refused")


async def _all_are_told(gateway: ServedGateway) -> bool:
    for _ in range(FRESH):
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30.0)) as session:  # none hangs
            async with session.get(f"{gateway.url}/ready") as answer:
                if answer.status != 503 or answer.headers.get("Connection") != "close":
                    return False
            async with session.get(f"{gateway.url}/v1/models") as answer:
                if answer.status != 503:
                    return False
                assert (await answer.json())["error"]["code"] == "draining"
                assert answer.headers["Connection"] == "close"
    return True


async def test_while_a_request_ends_all_others_are_told(tmp_path: Path) -> None:
    config = {"drain_s": DRAIN_S}
    async with (
        CountingBackend() as backend,
        serving(tmp_path, config | {"nodes": [node(backend)]}) as gateway,
    ):
        slow = asyncio.ensure_future(gateway.chat("slow"))
        await until(lambda: _runs(backend, 1), "it is on its way")
        gateway.signal(signal.SIGTERM)
        await _tells_everybody(gateway)
        backend.let_go.set()
        assert await slow == 200
        assert await gateway.ended() == 0


async def test_jobs_are_drained_too(tmp_path: Path) -> None:
    """One job is sent, one waits for its place; after a restart none is lost and none has run twice."""
    async with CountingBackend() as backend:
        config = {"drain_s": DRAIN_S, "nodes": [node(backend, capacity=1)]}
        async with serving(tmp_path, config) as gateway:
            ids = [await _submit(gateway) for _ in range(2)]
            await until(lambda: _runs(backend, 1), "a job runs")
            gateway.signal(signal.SIGTERM)
            await _tells_everybody(gateway)
            backend.let_go.set()
            assert await gateway.ended() == 0
            assert backend.served == 1
        async with serving(tmp_path, config) as heir:
            for job in ids:
                assert await until(lambda job=job: _end(heir, job), "the job ends") == "done"
        assert backend.served == 2


async def _submit(gateway: ServedGateway) -> str:
    body, prefer = {"model": "slow", "messages": []}, {"Prefer": "respond-async"}
    async with gateway.session.post(f"{gateway.url}/v1/chat/completions", json=body, headers=prefer) as sent:
        assert sent.status == 202
        return str((await sent.json())["id"])


async def _end(gateway: ServedGateway, job: str) -> str:
    """How a job ended; "" = it has not."""
    async with gateway.session.get(f"{gateway.url}/v1/jobs/{job}") as answer:
        status = str((await answer.json())["status"])
    return "" if status in ("queued", "dispatched") else status


async def _runs(backend: CountingBackend, count: int) -> bool:
    return backend.running == count
