"""A gateway that is restarted or told another configuration under load loses nothing."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

from served import ADMIN_KEY, HELLO, Load, Served, ask, bad, client, config_of, entry_of, served, spawn, until

from trimtab.runtime.gateway.demo.children import DemoProcess, launched
from trimtab.runtime.gateway.demo.options import Options

ADMIN = {"Authorization": f"Bearer {ADMIN_KEY}"}
RATE_PER_S = 100.0


def chat(name: str, **fields: Any) -> Options:
    return Options(kind="chat", name=name, models="demo-chat", slots=16, sigma=0.3, **fields)


def test_what_is_under_way_at_the_end_is_answered_and_the_next_process_takes_over(tmp_path: Path) -> None:
    slow = (chat("b0", base_s=0.3), chat("b1", base_s=0.3))
    with launched(*slow) as backends, served(config_of(backends), tmp_path) as first:
        first.configure(config_of(backends, listen=f"127.0.0.1:{first.port}"))
        asyncio.run(_restarted(first, tmp_path))


async def _restarted(first: Served, folder: Path) -> None:
    async with client(keep=False) as session:
        load = Load(session, first.url, RATE_PER_S, refused_again_s=60.0)
        await load.send(100)
        first.tell(signal.SIGTERM)
        sending = asyncio.create_task(load.send(100))
        assert await asyncio.to_thread(first.wait) == 0
        n_done = sum(task.done() for task in load.tasks)
        assert n_done >= 90  # it waited for them
        folder = folder / "next"
        folder.mkdir()
        heir = spawn(first.file, folder)
        try:
            await sending
            broken = bad(await load.answers())
            assert broken == [], first.said() + (folder / "log").read_text()
        finally:
            heir.terminate()
            await asyncio.to_thread(heir.wait)


def test_kept_connections_are_told_to_close_and_streams_run_to_their_end(tmp_path: Path) -> None:
    with launched(chat("b0", output_s=0.05)) as backends, served(config_of(backends), tmp_path) as gateway:
        asyncio.run(_drained(gateway))
        assert gateway.wait() == 0
        assert "not finished" not in gateway.said()


async def _drained(gateway: Served) -> None:
    async with client() as session:
        body = {**HELLO, "stream": True, "max_tokens": 40}
        load = Load(session, gateway.url, RATE_PER_S, body)
        await load.send(10)

        async def under_way() -> bool:
            return await _in_flight(session, gateway) == 10

        await until(under_way, "10 streams run")
        gateway.tell(signal.SIGTERM)
        answers = await load.answers()
        assert bad(answers) == []
        assert all(answer.body.endswith(b"data: [DONE]\n\n") for answer in answers)


async def _in_flight(session: Any, gateway: Served) -> int:
    nodes = await ask(session, gateway.admin_url, None, path="/admin/nodes", method="GET", headers=ADMIN)
    return int(sum(node["in_flight"] for node in nodes.json()["nodes"]))


def test_a_reload_under_load_adds_and_removes_nodes_and_changes_the_policy(tmp_path: Path) -> None:
    with launched(*(chat(f"b{i}", base_s=0.05) for i in range(4))) as backends:
        config = config_of(backends[:2], policy="least-expected-wait")
        with served(config, tmp_path) as gateway:
            asyncio.run(_reloaded(gateway, backends))


async def _reloaded(gateway: Served, backends: tuple[DemoProcess, ...]) -> None:
    steps: list[tuple[tuple[int, ...], str]] = [
        ((0, 1, 2, 3), "least-expected-wait"),
        ((2, 3), "least-expected-wait"),
        ((0, 2, 3), "round-robin"),
    ]
    async with client() as session, client() as admin:
        load = Load(session, gateway.url, RATE_PER_S)
        stop = asyncio.Event()

        async def forever() -> None:
            while not stop.is_set():
                await load.send(20)

        sending = asyncio.create_task(forever())
        for members, policy in steps:
            nodes = [entry_of(backends[k]) for k in members]
            gateway.configure(config_of([], nodes=nodes, policy=policy))
            done = await ask(admin, gateway.admin_url, None, path="/admin/reload", headers=ADMIN)
            assert done.status == 200, done.body
            names = {backends[k].name for k in members}
            await _until_served_by(load, names)
        gateway.file.write_text("nods: []")
        refused = await ask(admin, gateway.admin_url, None, path="/admin/reload", headers=ADMIN)
        assert 400 <= refused.status < 500
        assert b"nods" in refused.body
        stop.set()
        await sending
        assert bad(await load.answers()) == []


async def _until_served_by(load: Load, names: set[str]) -> None:
    """Wait until the latest requests are served by these nodes, all of them and no others."""

    async def is_so() -> bool:
        done = [task.result() for task in load.tasks[-60:] if task.done()]
        return {answer.node for answer in done[-30:]} == names

    await until(is_so, f"served by {sorted(names)}")


def test_nodes_may_come_after_the_start(tmp_path: Path) -> None:
    with launched(chat("b0")) as backends:
        config = config_of([], registration={"cidrs": ["127.0.0.0/8"]})
        with served(config, tmp_path) as gateway:
            asyncio.run(_registered(gateway, backends[0]))


async def _registered(gateway: Served, backend: DemoProcess) -> None:
    async with client() as session:
        assert (await ask(session, gateway.url)).status == 404
        assert (await ask(session, gateway.url, None, path="/ready", method="GET")).status == 503
        said = entry_of(backend)
        added = await ask(session, gateway.admin_url, said, path="/admin/nodes", headers=ADMIN)
        assert added.status in (200, 201), added.body
        assert (await ask(session, gateway.url)).is_good
        path = f"/admin/nodes/{backend.name}"
        gone = await ask(session, gateway.admin_url, None, path=path, method="DELETE", headers=ADMIN)
        assert gone.status < 300

        async def is_gone() -> bool:
            return (await ask(session, gateway.url)).status in (404, 503)

        await until(is_gone, "the node is gone")
