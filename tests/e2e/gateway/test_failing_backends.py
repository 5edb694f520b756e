"""Backends that die, freeze, answer nonsense or refuse, under load: what can be tried again does not fail."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from support.backends.children import BackendProcess, launch, launched
from support.backends.options import Options
from support.gateway_load import HELLO, Load, ask, bad, client, comes, sixteen_slots
from support.ports import reserved_port
from support.served import Served, config_of, node_of, served

RATE_PER_S = 100.0
STREAMED = {**HELLO, "stream": True}


@dataclass
class Fleet:
    """A gateway and its backends; those that died are started again in their places."""

    gateway: Served
    backends: list[BackendProcess]
    late: Options | None = None  # that comes late

    def kill(self, index: int) -> None:
        self.backends[index].process.kill()
        self.backends[index].process.wait()

    def revive(self, index: int) -> None:
        dead = self.backends[index]
        dead.stop()  # closes what it was heard by
        self.backends[index] = launch(dead.options)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Three backends that die and come back, and a place where one comes late. Each test leaves all three."""
    with contextlib.ExitStack() as held:
        ports = [held.enter_context(reserved_port()) for _ in range(4)]
        late = sixteen_slots("late", port=ports[3])
        wanted = (sixteen_slots(f"b{i}", seed=i, port=ports[i]) for i in range(3))
        backends = held.enter_context(launched(*wanted))
        config = config_of(
            nodes=[*(node_of(backend, capacity=64) for backend in backends), _entry(late)],
            policy="least-expected-wait",
            ejection={"base_ejection_s": 0.5, "slow_start_s": 0.5},
            health={"period_s": 0.2, "timeout_s": 3.0, "healthy_threshold": 1},
            queue={"max_wait_no_ready_node_s": 0.3, "max_wait_s": 5.0},
        )
        with served(tmp_path_factory.mktemp("fleet"), config) as gateway:
            here = Fleet(gateway, list(backends), late)
            yield here
            for backend in here.backends:
                backend.stop()


def _entry(absent: Options) -> dict[str, object]:
    """The entry of a backend that does not run."""
    url, models = f"http://127.0.0.1:{absent.port}", list(absent.served_models)
    return {"name": absent.name, "url": url, "models": models, "capacity": absent.slots}


async def _only_late_is_away(gateway: Served) -> bool:
    notes = (await asyncio.to_thread(gateway.admin, "/admin/status")).json()["notes"]
    return [note.partition(" cannot be")[0] for note in notes] == ["node late:"]


async def test_a_node_that_is_not_there_at_the_start_is_reported_and_used_later(fleet: Fleet) -> None:
    late = fleet.late
    assert late is not None
    async with client() as session:
        await comes(lambda: _only_late_is_away(fleet.gateway), "the others are there")
        answers = [await ask(session, fleet.gateway.url) for _ in range(4)]
        assert bad(answers) == []
        assert "late" not in {answer.node for answer in answers}
        with await asyncio.to_thread(launch, late):
            await comes(lambda: _works(session, fleet.gateway, "late"), "the late node works")
    assert "node late" in fleet.gateway.said()


async def test_a_frozen_backend_leaves_nobody_waiting(fleet: Fleet) -> None:
    gateway, victim = fleet.gateway, fleet.backends[0]
    async with client() as session:
        load = Load(session, gateway.url, RATE_PER_S)
        await load.send(100)
        os.kill(victim.process.pid, signal.SIGSTOP)
        try:
            await load.send(200)
            # One probe may wait for the frozen node; the others were moved, however long that took.
            await comes(lambda: _unfinished(load, 1), "others answer for the frozen node")
        finally:
            os.kill(victim.process.pid, signal.SIGCONT)
        assert bad(await load.answers()) == []
        await comes(lambda: _works(session, gateway, victim.name), "the node is back")


async def _unfinished(load: Load, most: int) -> bool:
    return sum(not task.done() for task in load.tasks) <= most


async def _works(session: Any, gateway: Served, name: str) -> bool:
    answer = await ask(session, gateway.url, {**HELLO, "model": name})  # no other node has this model
    return answer.is_good and answer.node == name


async def test_a_backend_is_killed_under_load(fleet: Fleet) -> None:
    async with client() as session:
        load = Load(session, fleet.gateway.url, RATE_PER_S)
        await load.send(100)
        await asyncio.to_thread(fleet.kill, 0)
        await load.send(100)
        assert bad(await load.answers()) == []
        await asyncio.to_thread(fleet.revive, 0)
        await comes(lambda: _works(session, fleet.gateway, "b0"), "the node is back")


async def test_all_backends_die_and_come_back(fleet: Fleet) -> None:
    async with client() as session:
        assert (await ask(session, fleet.gateway.url)).is_good
        for index in range(3):
            await asyncio.to_thread(fleet.kill, index)
        await _out(session, fleet.gateway)
        for index in range(3):
            await asyncio.to_thread(fleet.revive, index)
        await comes(lambda: _ready(session, fleet.gateway, 200), "/ready says yes")
        load = Load(session, fleet.gateway.url, RATE_PER_S)
        await load.send(50)
        assert bad(await load.answers()) == []


async def _out(session: Any, gateway: Served) -> None:
    """What clients get while there is no backend."""
    answers = await asyncio.gather(*(ask(session, gateway.url) for _ in range(20)))
    assert {answer.status for answer in answers} <= {502, 503}
    assert all(answer.json()["error"]["message"] for answer in answers)
    await comes(lambda: _down(gateway, "b0", "b1", "b2", "late"), "all are down by their checks")
    assert await _ready(session, gateway, 503)
    refused = await ask(session, gateway.url)
    assert refused.status == 503
    assert int(refused.headers["Retry-After"]) >= 1


async def _down(gateway: Served, *names: str) -> bool:
    """Whether checks say so, which does not pass by itself as the breaker's pause does."""
    nodes = (await asyncio.to_thread(gateway.admin, "/admin/nodes")).json()["nodes"]
    down = {node["name"] for node in nodes if node["health"] == "down" and "connected: " in node["reason"]}
    return down == set(names)


async def _ready(session: Any, gateway: Served, status: int) -> bool:
    return (await ask(session, gateway.url, None, path="/ready", method="GET")).status == status


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
async def test_what_fails_before_its_first_byte_is_answered_by_another(
    whole: Fleet, fault: dict[str, object]
) -> None:
    gateway, (victim, *_) = whole.gateway, whole.backends
    victim.set_faults(fault)
    try:
        async with client() as session:
            load = Load(session, gateway.url, RATE_PER_S)
            await load.send(30)
            load.body = STREAMED
            await load.send(30)
            assert bad(await load.answers()) == []
    finally:
        victim.set_faults()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """The same for all tests that break nothing for good. No node is ejected: each fault shall strike."""
    with launched(*(sixteen_slots(f"b{i}", seed=i) for i in range(2))) as backends:
        nodes = [node_of(backend, capacity=64) for backend in backends]
        config = config_of(
            *backends,
            nodes=nodes,
            policy="round-robin",
            ejection={"enabled": False},
            timeouts={"default": {"idle_s": 2.5}},
            retries={"budget_frac": 1.0},
        )
        with served(tmp_path_factory.mktemp("gateway"), config) as gateway:
            yield Fleet(gateway, list(backends))


@pytest.mark.parametrize("kind", ["close", "stall", "garbage"])
async def test_a_stream_that_breaks_ends_with_an_error_event(whole: Fleet, kind: str) -> None:
    gateway, backends = whole.gateway, whole.backends
    for backend in backends:
        backend.set_faults({"fault": kind, "chunks": 15, "seconds": 30})
    try:
        async with client() as session:
            answer = await ask(session, gateway.url, {**STREAMED, "max_tokens": 20})
            assert answer.status == 200
            assert answer.error == ""  # the stream itself ends as it should
            events = answer.body.decode().split("\n\n")
            assert '"content":' in events[1]
            assert '"error":' in answer.body.decode()
            assert "[DONE]" not in answer.body.decode()
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
async def test_a_body_that_comes_short_never_looks_whole(whole: Fleet, fault: dict[str, object]) -> None:
    """Two bytes after the fault the next client gets an answer of its own, on a clean connection."""
    gateway, backends = whole.gateway, whole.backends
    for backend in backends:
        backend.set_faults(fault)
    async with client() as session:
        answers = await asyncio.gather(*(ask(session, gateway.url) for _ in range(2)))
        short = fault.get("bytes") == -10
        for answer in answers:  # a length that is too small can't be told from a whole body
            assert answer.error or answer.status >= 500 or (short and answer.status == 200)
        for backend in backends:
            await asyncio.to_thread(backend.set_faults)
        after = [await ask(session, gateway.url) for _ in range(8)]
        assert bad(after) == []
        assert all(answer.json()["object"] == "chat.completion" for answer in after)
