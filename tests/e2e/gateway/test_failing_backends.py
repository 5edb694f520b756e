"""Backends that die, freeze, answer nonsense or refuse, under load: what can be tried again does not fail."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from served import HELLO, Load, Served, ask, bad, client, config_of, entry_of, served, until

from trimtab.runtime.gateway.demo.children import DemoProcess, launch, launched
from trimtab.runtime.gateway.demo.options import Options

RATE_PER_S = 100.0
STREAMED = {**HELLO, "stream": True}


def chat(name: str, **fields: Any) -> Options:
    return Options(kind="chat", name=name, models="demo-chat", slots=16, sigma=0.3, **fields)


Fleet = tuple[Served, tuple[DemoProcess, ...]]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    """A gateway over three backends."""
    with launched(*(chat(f"b{i}", seed=i) for i in range(3))) as backends:
        nodes = [entry_of(backend, capacity=64) for backend in backends]
        ejection = {"base_s": 1.0, "slow_start_s": 0.5}
        config = config_of(backends, nodes=nodes, policy="least-expected-wait", ejection=ejection)
        with served(config, tmp_path) as gateway:
            yield gateway, backends


def test_a_backend_is_killed_under_load(fleet: Fleet) -> None:
    gateway, (victim, *_) = fleet

    async def main() -> None:
        async with client() as session:
            load = Load(session, gateway.url, RATE_PER_S)
            await load.send(100)
            os.kill(victim.process.pid, signal.SIGKILL)
            await load.send(200)
            assert bad(await load.answers()) == []

    asyncio.run(main())


def test_a_frozen_backend_leaves_nobody_waiting(fleet: Fleet) -> None:
    gateway, (victim, *_) = fleet

    async def main() -> None:
        async with client() as session:
            load = Load(session, gateway.url, RATE_PER_S)
            await load.send(100)
            os.kill(victim.process.pid, signal.SIGSTOP)
            await load.send(300)
            assert await load.unfinished_after(3.0) <= 1
            os.kill(victim.process.pid, signal.SIGCONT)
            assert bad(await load.answers()) == []
            await until(lambda: _works(session, gateway, victim.name), "the node is back")

    asyncio.run(main())


async def _works(session: Any, gateway: Served, name: str) -> bool:
    answers = await asyncio.gather(*(ask(session, gateway.url) for _ in range(6)))
    return any(answer.node == name for answer in answers)


@pytest.mark.parametrize(
    "fault",
    [
        {"fault": "garbage"},
        {"fault": "close"},
        {"fault": "close", "reset": True},
        {"fault": "status", "status": 500},
        {"fault": "status", "status": 429, "retry_after_s": 1},
        {"fault": "status", "status": 503, "retry_after_s": 1},
    ],
    ids=lambda fault: "-".join(map(str, fault.values())),
)
def test_what_fails_before_its_first_byte_is_answered_by_another(
    whole: Fleet, fault: dict[str, object]
) -> None:
    gateway, (victim, *_) = whole
    victim.set_faults(fault)

    async def main() -> None:
        async with client() as session:
            load = Load(session, gateway.url, RATE_PER_S)
            await load.send(30)
            load.body = STREAMED
            await load.send(30)
            assert bad(await load.answers()) == []

    try:
        asyncio.run(main())
    finally:
        victim.set_faults()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """The same for all tests that break nothing for good. No node is ejected: each fault shall strike."""
    with launched(*(chat(f"b{i}", seed=i) for i in range(2))) as backends:
        nodes = [entry_of(backend, capacity=64) for backend in backends]
        config = config_of(
            backends,
            nodes=nodes,
            policy="round-robin",
            ejection={"enabled": False},
            timeouts={"default": {"idle_s": 1.0}},
            retries={"budget_frac": 1.0},
        )
        with served(config, tmp_path_factory.mktemp("gateway")) as gateway:
            yield gateway, backends


@pytest.mark.parametrize("kind", ["close", "stall", "garbage"])
def test_a_stream_that_breaks_ends_with_an_error_event(whole: Fleet, kind: str) -> None:
    gateway, backends = whole
    for backend in backends:
        backend.set_faults({"fault": kind, "chunks": 3, "seconds": 30})

    async def main() -> None:
        async with client() as session:
            answer = await ask(session, gateway.url, {**STREAMED, "max_tokens": 20})
            assert answer.status == 200
            assert answer.error == ""  # the stream itself ends as it should
            events = answer.body.decode().split("\n\n")
            assert '"content":' in events[1]
            assert '"error":' in answer.body.decode()
            assert "[DONE]" not in answer.body.decode()

    try:
        asyncio.run(main())
    finally:
        for backend in backends:
            backend.set_faults()


@pytest.mark.parametrize(
    "fault",
    [
        {"fault": "truncate"},
        {"fault": "wrong_length", "bytes": 10},
        {"fault": "wrong_length", "bytes": -10},
        {"fault": "stall", "seconds": 30},
    ],
    ids=lambda fault: "-".join(map(str, fault.values())),
)
def test_a_body_that_comes_short_never_looks_whole(whole: Fleet, fault: dict[str, object]) -> None:
    """Two bytes after the fault the next client gets an answer of its own, on a clean connection."""
    gateway, backends = whole
    for backend in backends:
        backend.set_faults(fault)

    async def main() -> None:
        async with client() as session:
            answers = [await ask(session, gateway.url) for _ in range(2)]
            short = fault.get("bytes") == -10
            for answer in answers:  # a length that is too small can't be told from a whole body
                assert answer.error or answer.status >= 500 or (short and answer.status == 200)
            for backend in backends:
                await asyncio.to_thread(backend.set_faults)
            after = [await ask(session, gateway.url) for _ in range(8)]
            assert bad(after) == []
            assert all(answer.json()["object"] == "chat.completion" for answer in after)

    asyncio.run(main())


def test_all_backends_die_and_come_back(tmp_path: Path) -> None:
    with launched(chat("b0"), chat("b1")) as backends:
        config = config_of(backends, queue={"hold_s": 0.3}, ejection={"base_s": 0.5, "slow_start_s": 0.5})
        with served(config, tmp_path) as gateway:
            asyncio.run(_outage(gateway, backends))


async def _outage(gateway: Served, backends: tuple[DemoProcess, ...]) -> None:
    async with client() as session:
        assert (await ask(session, gateway.url)).is_good
        for backend in backends:
            os.kill(backend.process.pid, signal.SIGKILL)
            await asyncio.to_thread(backend.process.wait)
        answers = await asyncio.gather(*(ask(session, gateway.url) for _ in range(20)))
        assert {answer.status for answer in answers} <= {502, 503}
        assert all(answer.json()["error"]["message"] for answer in answers)

        async def is_ready() -> bool:
            return (await ask(session, gateway.url, None, path="/ready", method="GET")).status == 200

        async def is_down() -> bool:
            return not await is_ready()

        await until(is_down, "/ready says no")
        refused = await ask(session, gateway.url)
        assert refused.status == 503
        assert int(refused.headers["Retry-After"]) >= 1
        again = [
            await asyncio.to_thread(launch, replace(backend.options, port=backend.port))
            for backend in backends
        ]
        try:
            await until(is_ready, "/ready says yes")
            load = Load(session, gateway.url, RATE_PER_S)
            await load.send(50)
            assert bad(await load.answers()) == []
        finally:
            for backend in again:
                backend.stop()


def test_a_node_that_is_not_there_at_the_start_is_reported_and_used_later(tmp_path: Path) -> None:
    with launched(chat("late")) as (late,):
        port = late.port
    with launched(chat("here")) as (here,):
        absent = {**entry_of(late), "url": f"http://127.0.0.1:{port}"}
        with served(config_of((here,), nodes=[entry_of(here), absent]), tmp_path) as gateway:
            asyncio.run(_late(gateway, port))
            assert "node late" in gateway.said()


async def _late(gateway: Served, port: int) -> None:
    async with client() as session:
        answers = [await ask(session, gateway.url) for _ in range(4)]
        assert bad(answers) == []
        assert {answer.node for answer in answers} == {"here"}
        with await asyncio.to_thread(launch, chat("late", port=port)):
            await until(lambda: _works(session, gateway, "late"), "the late node works")
