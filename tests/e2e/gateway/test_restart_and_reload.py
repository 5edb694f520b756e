"""A gateway that is restarted or told another configuration under load loses nothing."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.backends.children import BackendProcess, launched
from support.gateway_load import BEARER, HELLO, Load, Reply, ask, bad, client, comes, sixteen_slots
from support.served import START_S, Served, config_of, node_of, posts, served, spawn
from support.waiting import wait_until

RATE_PER_S = 100.0


def test_what_is_under_way_at_the_end_is_answered_and_the_next_process_takes_over(tmp_path: Path) -> None:
    slow = (sixteen_slots("b0", base_s=0.3), sixteen_slots("b1", base_s=0.3))
    with launched(*slow) as backends, served(tmp_path, config_of(*backends)) as first:
        answers = asyncio.run(_restarted(first, config_of(*backends, listen=f"127.0.0.1:{first.port}")))
        # Who came just when the port closed got a reset and was heard by nobody; of the others none is lost.
        heard = [answer for answer in answers if answer.status]
        assert bad(heard) == []
        assert len(heard) >= 100
        assert sum(len(posts(backend)) for backend in backends) == len(heard)


async def _restarted(first: Served, config: dict[str, Any]) -> list[Reply]:
    async with client(keep=False) as session:
        load = Load(session, first.url, RATE_PER_S, refused_again_s=START_S)
        await load.send(100)
        first.tell(signal.SIGTERM)
        sending = asyncio.create_task(load.send(100))
        assert await asyncio.to_thread(first.wait) == 0  # it waits for them: none of them is lost
        folder = first.folder / "next"
        folder.mkdir()
        heir = spawn(folder, config)
        try:
            await sending
            return await load.answers()
        finally:
            heir.tell(signal.SIGTERM)
            await asyncio.to_thread(heir.wait)


def test_kept_connections_are_told_to_close_and_streams_run_to_their_end(tmp_path: Path) -> None:
    with (
        launched(sixteen_slots("b0", output_s=0.05)) as backends,
        served(tmp_path, config_of(*backends)) as gateway,
    ):
        asyncio.run(_drained(gateway))
        assert gateway.wait() == 0
        assert "not finished" not in gateway.said()


async def _drained(gateway: Served) -> None:
    async with client() as session:
        body = {**HELLO, "stream": True, "max_tokens": 80, "ignore_eos": True}
        load = Load(session, gateway.url, RATE_PER_S, body)
        await load.send(10)

        await asyncio.to_thread(wait_until, lambda: gateway.metric("trimtab_in_flight"), lambda n: n == 10)
        gateway.tell(signal.SIGTERM)
        answers = await load.answers()
        assert bad(answers) == []
        assert all(answer.body.endswith(b"data: [DONE]\n\n") for answer in answers)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """It begins without nodes, and has none when a test is over."""
    config = config_of(registration={"allowed_cidrs": ["127.0.0.0/8"]})
    with served(tmp_path_factory.mktemp("reloaded"), config) as running:
        yield running


def test_nodes_may_come_after_the_start(gateway: Served) -> None:
    ask_it = lambda: gateway.call("/v1/chat/completions", HELLO).status  # noqa: E731
    with launched(sixteen_slots("b0")) as (backend,):
        assert ask_it() == 404
        assert gateway.call("/ready").status == 503
        assert gateway.admin("/admin/nodes", node_of(backend)).status == 201
        wait_until(ask_it, lambda status: status == 200)
        assert gateway.admin("/admin/nodes/b0", method="DELETE").status == 202
        wait_until(ask_it, lambda status: status in (404, 503))


def test_a_reload_under_load_adds_and_removes_nodes_and_changes_the_policy(gateway: Served) -> None:
    with launched(*(sixteen_slots(f"b{i}", base_s=0.05) for i in range(4))) as backends:
        gateway.configure(config_of(*backends[:2], policy="least-expected-wait"))
        assert gateway.admin("/admin/reload", method="POST").status == 200
        asyncio.run(_reloaded(gateway, backends))
        gateway.configure(config_of())
        assert gateway.admin("/admin/reload", method="POST").status == 200


async def _reloaded(gateway: Served, backends: tuple[BackendProcess, ...]) -> None:
    steps: list[tuple[tuple[int, ...], str]] = [
        ((0, 1, 2, 3), "least-expected-wait"),
        ((2, 3), "least-expected-wait"),
        ((0, 2, 3), "round-robin"),
    ]
    async with client() as session:
        load = Load(session, gateway.url, RATE_PER_S)
        stop = asyncio.Event()

        async def forever() -> None:
            while not stop.is_set():
                await load.send(20)

        sending = asyncio.create_task(forever())
        for members, policy in steps:
            nodes = [node_of(backends[k]) for k in members]
            gateway.configure(config_of(nodes=nodes, policy=policy))
            done = await asyncio.to_thread(gateway.admin, "/admin/reload", method="POST")
            assert done.status == 200, done.body
            names = {backends[k].name for k in members}
            await _until_served_by(load, names)
        gateway.configure({"nods": []})
        refused = await asyncio.to_thread(gateway.admin, "/admin/reload", method="POST")
        assert 400 <= refused.status < 500
        assert b"nods" in refused.body
        stop.set()
        await sending
        assert bad(await load.answers()) == []


def test_streams_under_way_go_on_through_reloads_that_take_their_node_away(gateway: Served) -> None:
    with launched(*(sixteen_slots(f"b{i}", output_s=0.02) for i in range(2))) as backends:
        gateway.configure(config_of(backends[0]))
        assert gateway.admin("/admin/reload", method="POST").status == 200
        asyncio.run(_reloaded_under_streams(gateway, backends))
        gateway.configure(config_of())
        assert gateway.admin("/admin/reload", method="POST").status == 200


async def _reloaded_under_streams(gateway: Served, backends: tuple[BackendProcess, ...]) -> None:
    body = {**HELLO, "stream": True, "max_tokens": 10_000, "ignore_eos": True}
    events = [0] * 8

    async def read(k: int) -> None:
        async with session.post(gateway.url + "/v1/chat/completions", json=body, headers=BEARER) as answer:
            assert answer.headers["x-trimtab-node"] == backends[0].name
            async for piece in answer.content.iter_any():
                assert b"error" not in piece
                events[k] += piece.count(b"data: ")

    async def all_have(more: list[int]) -> bool:
        assert not any(stream.done() for stream in streams)
        return all(now >= wanted for now, wanted in zip(events, more, strict=True))

    async with client() as session:
        streams = [asyncio.create_task(read(k)) for k in range(len(events))]
        await comes(lambda: all_have([20] * len(events)), "streams in their steady state")
        for node, policy in ((1, "least-expected-wait"), (0, "round-robin"), (1, "round-robin")):
            gateway.configure(config_of(backends[node], policy=policy))
            done = await asyncio.to_thread(gateway.admin, "/admin/reload", method="POST")
            assert done.status == 200, done.body
            before = [n + 20 for n in events]
            await comes(lambda more=before: all_have(more), "more of every stream")
        assert (await ask(session, gateway.url)).node == backends[1].name
        for stream in streams:
            stream.cancel()
        await asyncio.gather(*streams, return_exceptions=True)


async def _until_served_by(load: Load, names: set[str]) -> None:
    """Wait until the latest requests are served by these nodes, all of them and no others."""

    async def is_so() -> bool:
        done = [task.result() for task in load.tasks[-60:] if task.done()]
        return {answer.node for answer in done[-30:]} == names

    await comes(is_so, f"served by {sorted(names)}")


def test_what_operators_did_to_nodes_outlives_a_reload_and_a_restart(tmp_path: Path) -> None:
    with launched(*(sixteen_slots(f"b{k}") for k in range(4))) as backends:
        listed, extra = backends[:3], backends[3]
        config = config_of(*listed, registration={"allowed_cidrs": ["127.0.0.0/8"]})
        with served(tmp_path, config) as gateway:
            assert gateway.admin("/admin/nodes/b0/drain", method="POST").status == 202
            assert gateway.admin("/admin/nodes/b1", method="DELETE").status == 202
            assert gateway.admin("/admin/nodes", node_of(extra)).status == 201
            wait_until(lambda: _healths(gateway), lambda seen: seen == _KEPT)
            told = gateway.admin("/admin/reload", method="POST").json()
            assert [change["name"] for change in told["kept"]] == ["b0", "b1", "b3"]
            assert _healths(gateway) == _KEPT
        with served(tmp_path, config) as again:
            wait_until(lambda: _healths(again), lambda seen: seen == _KEPT)
            changes = again.admin("/admin/nodes").json()["changes"]
            assert [(one["name"], one["status"], one["added"]) for one in changes] == [
                ("b0", "drained", False),
                ("b1", "removed", False),
                ("b3", "in_service", True),
            ]
            for name in ("b0", "b1"):
                assert again.admin(f"/admin/nodes/{name}/undrain", method="POST").status == 202
            wait_until(lambda: _healths(again), lambda seen: seen == dict.fromkeys(sorted(seen), "up"))
            assert sorted(_healths(again)) == ["b0", "b1", "b2", "b3"]


_KEPT = {"b0": "draining", "b2": "up", "b3": "up"}


def _healths(gateway: Served) -> dict[str, str]:
    return {node["name"]: node["health"] for node in gateway.admin("/admin/nodes").json()["nodes"]}
