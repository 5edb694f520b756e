"""Two gateways with one database: an upgrade by draining one after the other, without a failed request."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from support.databases import only
from support.gateway.served_gateway import CountingBackend, ServedGateway, node, serving, until
from support.ports import reserved_port

REQUESTS_PER_S = 80
CONNECTIONS = 4
RETRIES = 2  # of connections that broke before an answer, as the official clients do
CHECK_S = 0.1
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


@dataclass(slots=True)
class Load:
    """Requests on fresh and on kept connections until `stop`; `address` says where each one goes."""

    address: Callable[[], str]
    retries: int
    statuses: Counter[int] = field(default_factory=Counter)
    jobs: list[str] = field(default_factory=list)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._fresh())
            for _ in range(CONNECTIONS):
                tasks.create_task(self._kept())

    async def _fresh(self) -> None:
        loop = asyncio.get_running_loop()
        due_s, count = loop.time(), 0
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session,
            asyncio.TaskGroup() as tasks,
        ):
            while not self.ended.is_set():
                tasks.create_task(self._ask(session, is_job=count % 20 == 0))
                due_s, count = due_s + 1 / REQUESTS_PER_S, count + 1
                await asyncio.sleep(max(0.0, due_s - loop.time()))

    async def _kept(self) -> None:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as session:
            while not self.ended.is_set():
                await self._ask(session, is_job=False)
                await asyncio.sleep(0.05)

    async def _ask(self, session: aiohttp.ClientSession, *, is_job: bool) -> None:
        headers = {"Prefer": "respond-async"} if is_job else {}
        for attempt in range(self.retries + 1):
            try:
                url = f"{self.address()}/v1/chat/completions"
                async with session.post(url, json=CHAT, headers=headers) as answer:
                    said = await answer.json()
            except aiohttp.ClientConnectionError:
                if attempt == self.retries:
                    raise
                continue
            self.statuses[answer.status] += 1
            if is_job and answer.status == 202:
                self.jobs.append(said["id"])
            return


@contextlib.asynccontextmanager
async def _loaded(load: Load) -> AsyncIterator[None]:
    """Load beside the block; what fails there fails here."""
    running = asyncio.create_task(load.run())
    try:
        yield
    finally:
        load.ended.set()
        await running


async def _gets(backend: CountingBackend, count: int) -> None:
    """So many requests more are served."""
    wanted = backend.served + count

    async def is_so() -> bool:
        return backend.served >= wanted

    await until(is_so, "requests are served")


def _config(folder: Path, backend: CountingBackend, store: str, **more: Any) -> dict[str, Any]:
    return {
        "nodes": [node(backend, capacity=64)],
        "store": {"url": store, "results_folder": str(folder / "results")},
        **more,
    }


def _folder(parent: Path, name: str) -> Path:
    (parent / name).mkdir()
    return parent / name


async def _all_done(gateway: ServedGateway, jobs: list[str]) -> None:
    """Any replica knows every job."""

    async def state(job: str) -> str:
        async with gateway.session.get(f"{gateway.url}/v1/jobs/{job}") as answer:
            return str((await answer.json())["status"])

    for job in jobs:

        async def is_over(job: str = job) -> bool:
            return await state(job) not in ("queued", "dispatched")

        await until(is_over, "the job ends")
        assert await state(job) == "done"


async def _upgrade(first: ServedGateway, backend: CountingBackend) -> None:
    """Drain a replica under load."""
    await _gets(backend, 50)
    first.signal(signal.SIGTERM)
    assert await first.ended() == 0, first.said()
    await _gets(backend, 50)


async def _on_a_shared_port(folder: Path, store: str, port: int) -> None:
    async with CountingBackend() as backend:
        backend.service_s = 0.01
        config = _config(folder, backend, store, listen=f"127.0.0.1:{port}", reuse_port=True)
        async with (
            serving(_folder(folder, "old-1"), config) as first,
            serving(_folder(folder, "old-2"), config) as second,
        ):
            load = Load(lambda: first.url, RETRIES)
            async with _loaded(load):
                await _upgrade(first, backend)
                async with serving(_folder(folder, "new-1"), config) as fresh:
                    await _upgrade(second, backend)
                    load.ended.set()
                    await _all_done(fresh, load.jobs)
            assert load.statuses.keys() == {200, 202}
            assert len(load.jobs) >= 5


@pytest.mark.skipif(not hasattr(socket, "SO_REUSEPORT"), reason="the system does not share ports")
@only("postgresql")
def test_replicas_on_a_shared_port_are_upgraded(tmp_path: Path, store_url: str) -> None:
    with reserved_port() as port:
        asyncio.run(_on_a_shared_port(tmp_path, store_url, port))


class Balancer:
    """Spreads requests over the replicas that say `/ready`, as a proxy in front of them does."""

    def __init__(self, urls: list[str]) -> None:
        self.urls = self.ready = urls
        self._turn = 0

    def address(self) -> str:
        """The next replica."""
        self._turn += 1
        return self.ready[self._turn % len(self.ready)]

    async def check(self) -> None:
        """Look after the replicas for ever."""
        async with aiohttp.ClientSession() as session:
            while True:
                self.ready = [url for url in self.urls if await self._is_ready(session, url)]
                await asyncio.sleep(CHECK_S)

    async def _is_ready(self, session: aiohttp.ClientSession, url: str) -> bool:
        try:
            async with session.get(f"{url}/ready") as answer:
                return answer.status == 200
        except aiohttp.ClientConnectionError:
            return False


async def test_a_replica_behind_a_balancer_is_drained(tmp_path: Path) -> None:
    """No client retries anything."""
    async with CountingBackend() as backend:
        backend.service_s = 0.01
        config = _config(tmp_path, backend, f"sqlite:///{tmp_path / 'shared.db'}")
        async with (
            serving(_folder(tmp_path, "one"), config) as first,
            serving(_folder(tmp_path, "two"), config) as second,
        ):
            balancer = Balancer([first.url, second.url])
            checks = asyncio.create_task(balancer.check())
            load = Load(balancer.address, retries=0)
            async with _loaded(load):
                await _upgrade(first, backend)
            assert load.statuses.keys() == {200, 202}
            checks.cancel()
