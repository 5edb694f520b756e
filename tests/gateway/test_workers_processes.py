"""`trimtab serve` with several workers, as processes: they serve, die, are replaced, reload and drain."""

from __future__ import annotations

import asyncio
import io
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import orjson

from support.gateway.worker_gateway import CountingBackend, ServedGateway, node, serving, until, write_config
from trimtab.experiments.serving.replay import replay
from trimtab.traces.gateway_recording import open_recording, read_requests

WORKERS = 2


async def _serves(folder: Path) -> None:
    async with (
        CountingBackend() as backend,
        serving(
            folder, {"workers": WORKERS, "nodes": [node(backend, capacity=64)], "record": {"folder": "all"}}
        ) as gateway,
    ):
        statuses = await asyncio.gather(*(gateway.chat() for _ in range(60)))
        assert Counter(statuses) == {200: 60}
        assert await gateway.metric("trimtab_requests_total{") == 60
        assert await gateway.metric("trimtab_node_served_total{") == 60
        assert await gateway.metric("trimtab_workers") == WORKERS
        told = await gateway.status()
        assert len(told["workers"]) == WORKERS
        assert told["policy"]["decisions"] == 60
        assert told["nodes"][0]["in_flight"] == 0
        await _receipts_are_found(gateway)
        await _jobs_reach_the_parent(gateway)
        gateway.signal(signal.SIGTERM)
        assert await gateway.ended() == 0
    recording = open_recording(folder / "all")
    assert read_requests(recording)[0].height >= 66  # and the job, which is the parent's
    assert WORKERS <= recording.with_requests <= WORKERS + 1
    done = replay(folder / "all", ["least-expected-wait", "round-robin"], mode="interpreted")
    assert done.requests >= 66
    assert [run.served for run in done.policies] == [done.requests] * 2


async def _receipts_are_found(gateway: ServedGateway) -> None:
    body = {"model": "m", "messages": []}
    for i in range(6):
        headers = {"Connection": "close", "x-request-id": f"asked-{i}"}
        url = f"{gateway.url}/v1/chat/completions"
        async with gateway.session.post(url, json=body, headers=headers) as answer:
            assert answer.status == 200
    for i in range(6):
        async with gateway.session.get(f"{gateway.admin}/admin/requests/asked-{i}") as answer:
            assert (await answer.json())["node"] == "n1"


async def _jobs_reach_the_parent(gateway: ServedGateway) -> None:
    long = "x" * (2 << 20)  # goes to the parent as a file
    body = io.BytesIO(orjson.dumps({"model": "m", "messages": [{"role": "user", "content": long}]}))
    headers = {"Prefer": "respond-async", "Connection": "close", "Content-Type": "application/json"}
    async with gateway.session.post(f"{gateway.url}/v1/chat/completions", data=body, headers=headers) as sent:
        assert sent.status == 202, await sent.text()
        job = (await sent.json())["id"]

    async def done() -> bool:
        url, close = f"{gateway.url}/v1/jobs/{job}", {"Connection": "close"}
        async with gateway.session.get(url, headers=close) as answer:
            return bool((await answer.json())["status"] in ("done", "completed"))

    await until(done, "the job is done")
    async with gateway.session.get(f"{gateway.url}/v1/jobs/{job}/result") as result:
        assert (await result.json())["id"] == "x"


def test_workers_serve_and_add_up(tmp_path: Path) -> None:
    asyncio.run(_serves(tmp_path))


async def _killed(folder: Path) -> None:
    """The places that a dead worker held are free, and its counts stay."""
    async with (
        CountingBackend() as backend,
        serving(folder, {"workers": WORKERS, "nodes": [node(backend, capacity=1)]}) as gateway,
    ):
        assert await gateway.chat() == 200
        slow = asyncio.ensure_future(gateway.chat("slow"))
        await until(_async(lambda: backend.running == 1), "it is on its way")
        told = await gateway.status()
        before = await gateway.pids()
        (busy,) = [worker["pid"] for worker in told["workers"] if worker["in_flight"]]
        waiting = asyncio.ensure_future(gateway.chat())  # there is no place for it until the other ends
        await until(lambda: _waits(gateway, 1), "it waits")
        told = await gateway.status()
        is_in_the_same = any(w["pid"] == busy and w["in_flight"] == 2 for w in told["workers"])
        os.kill(busy, signal.SIGKILL)
        (lost, other) = await asyncio.gather(slow, waiting, return_exceptions=True)
        assert isinstance(lost, Exception)
        assert isinstance(other, Exception) if is_in_the_same else other == 200

        async def replaced() -> bool:
            after = await gateway.pids()
            return len(after) == WORKERS and busy not in after and len(after & before) == WORKERS - 1

        await until(replaced, "the worker is replaced")
        assert Counter([await gateway.chat() for _ in range(8)]) == {200: 8}
        told = await gateway.status()
        assert told["nodes"][0]["in_flight"] == 0


def test_a_killed_worker_is_replaced(tmp_path: Path) -> None:
    asyncio.run(_killed(tmp_path))


async def _overcommitted(folder: Path, capacity: int) -> None:
    async with (
        CountingBackend() as backend,
        serving(folder, {"workers": 3, "nodes": [node(backend, capacity=capacity)]}) as gateway,
    ):
        backend.service_s = 0.003
        statuses = await asyncio.gather(*(gateway.chat() for _ in range(400)))
        assert Counter(statuses) == {200: 400}
        assert capacity <= backend.peak <= capacity + 2


def test_a_node_gets_at_most_a_request_too_many_of_each_other_worker(tmp_path: Path) -> None:
    asyncio.run(_overcommitted(tmp_path, 2))


async def _told(folder: Path) -> None:
    """Reload, drain of a node, then SIGTERM with a request under way."""
    async with CountingBackend() as backend, CountingBackend() as second:
        config: dict[str, Any] = {"workers": WORKERS, "nodes": [node(backend)]}
        async with serving(folder, config) as gateway:
            config["nodes"] = [node(backend), node(second, "n2")]
            write_config(folder, config)
            async with gateway.session.post(f"{gateway.admin}/admin/reload") as answer:
                assert (await answer.json()).get("changed") == ["nodes"], (
                    await answer.text(),
                    gateway.said(),
                )
            async with gateway.session.post(f"{gateway.admin}/admin/nodes/n1/drain") as answer:
                assert answer.status == 202
            served = backend.served

            async def second_serves() -> bool:
                assert await gateway.chat() == 200
                return second.served >= 12

            await until(second_serves, "all workers know the new node")
            assert backend.served == served
            async with gateway.session.post(f"{gateway.admin}/admin/nodes/n1/undrain") as answer:
                assert answer.status == 202

            async def is_back() -> bool:
                """As ill as the worst of the workers finds it: so all of them know."""
                async with gateway.session.get(f"{gateway.admin}/admin/nodes") as answer:
                    return {one["name"]: one["health"] for one in (await answer.json())["nodes"]}[
                        "n1"
                    ] == "up"

            await until(is_back, "the node may work again")

            async def is_booked() -> bool:
                """Workers report what was used twice a second."""
                async with gateway.session.get(f"{gateway.admin}/admin/usage") as answer:
                    return sum(row["requests"] for row in (await answer.json())["usage"]) > 0

            await until(is_booked, "what was used is booked")
            async with gateway.session.post(f"{gateway.admin}/admin/nodes/n1/drain") as answer:
                assert answer.status == 202
            write_config(folder, config | {"nodes": [node(backend), node(backend)]})
            async with gateway.session.post(f"{gateway.admin}/admin/reload") as answer:
                assert answer.status == 400
            assert await gateway.chat() == 200
            slow = [asyncio.ensure_future(gateway.chat("slow")) for _ in range(4)]
            await until(_async(lambda: second.running == 4), "they are on their way")
            gateway.signal(signal.SIGTERM)
            second.let_go.set()
            assert await asyncio.gather(*slow) == [200] * 4
            assert await gateway.ended() == 0


def test_reload_drain_and_end(tmp_path: Path) -> None:
    asyncio.run(_told(tmp_path))


def _async(read: Any) -> Any:
    async def condition() -> Any:
        return read()

    return condition


async def _waits(gateway: ServedGateway, count: int) -> bool:
    return bool((await gateway.status())["queue"]["length"] == count)
