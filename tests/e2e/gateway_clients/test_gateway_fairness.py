"""Tenants that compete: the bound of the virtual token counter, and work that fills only what is left."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate

import aiohttp
import pytest

from support.backends import BackendProcess, Options, launched
from support.served import Served, chat, config_of, key_entry, node_of, served
from support.waiting import until, wait_until

SLOTS, PROMPT, OUTPUT = 2, 60, 24
W_PROMPT, W_OUTPUT = 1.0, 2.0
NAMES = ("flood", "steady", "nightly")


@dataclass(frozen=True)
class Stage:
    gateway: Served
    fair: BackendProcess
    wide: BackendProcess


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    wanted = (
        Options(name="fair", models="fair", slots=SLOTS, output_s=0.004, cache_blocks=0),
        Options(name="wide", models="wide", slots=4, output_s=0.01),
        Options(name="filled", models="filled", slots=8, output_s=0.1),
    )
    keys = [key_entry(name, f"tt-{name}", background=name == "nightly") for name in NAMES]
    with launched(*wanted) as running:
        fair, wide, filled = running
        config = config_of(
            keys=keys,
            nodes=[
                node_of(fair),
                node_of(wide),
                node_of(filled, capacity={"requests": 8, "tokens": 300}),
            ],
            policy="least-connections",
            fairness={"enabled": True, "prompt_weight": W_PROMPT, "output_weight": W_OUTPUT},
            queue={"background_reserve_frac": 0.5, "max_wait_no_ready_node_s": 60},
        )
        with served(tmp_path_factory.mktemp("fairness"), config) as gateway:
            yield Stage(gateway, fair, wide)


@dataclass
class Book:
    """What tenants were served, as their streams brought it: (tenant, weighted tokens), in order."""

    served: list[tuple[str, float]] = field(default_factory=list)
    begun: list[str] = field(default_factory=list)


def session_of(stage: Stage, name: str) -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(limit=0)
    headers = {"Authorization": f"Bearer tt-{name}"}
    return aiohttp.ClientSession(stage.gateway.url, headers=headers, connector=connector)


async def _stream(session: aiohttp.ClientSession, name: str, book: Book) -> None:
    body = chat("fair", "word " * PROMPT, max_tokens=OUTPUT, stream=True, ignore_eos=True)
    async with session.post("/v1/chat/completions", json=body) as response:
        assert response.status == 200, await response.text()
        is_first = True
        async for line in response.content:
            if b'"content":' in line.replace(b" ", b""):
                if is_first:
                    book.begun.append(name)
                    book.served.append((name, W_PROMPT * PROMPT))
                    is_first = False
                book.served.append((name, W_OUTPUT))


async def test_two_backlogged_tenants_stay_within_vtcs_bound(stage: Stage) -> None:
    """Sheng et al., OSDI 2024, theorem 4.4: |W_f(t1, t2) - W_g(t1, t2)| ≤ 2 max(w_p L_input, w_q M)."""
    book = Book()
    async with session_of(stage, "flood") as flood, session_of(stage, "steady") as steady:
        tasks = [asyncio.create_task(_stream(flood, "flood", book)) for _ in range(70)]
        queued = lambda: stage.gateway.metric("trimtab_queue_length")  # noqa: E731
        # It has used something when the other comes
        await until(lambda: len(book.begun) >= 2 * SLOTS)
        await asyncio.to_thread(_switch, stage, "drain")  # nobody is served until both wait
        tasks += [asyncio.create_task(_stream(steady, "steady", book)) for _ in range(15)]
        await asyncio.to_thread(wait_until, queued, lambda n: n >= 45)
        await asyncio.to_thread(_in_flight, stage, "fair", 0)
        before = len(book.served)
        await asyncio.to_thread(_switch, stage, "undrain")
        await asyncio.gather(*tasks)
        del book.served[:before]
    ends = [k for k, (name, tokens) in enumerate(book.served) if name == "steady" and tokens > W_OUTPUT]
    while_both_wait = book.served[: ends[-1] + 1]  # until the last of the smaller one begins
    gap = list(accumulate(tokens if name == "flood" else -tokens for name, tokens in while_both_wait))
    total = sum(tokens for _, tokens in while_both_wait)
    bound = 2 * max(W_PROMPT * PROMPT, W_OUTPUT * SLOTS * (PROMPT + OUTPUT))
    assert total > 2 * bound
    assert max(0.0, *gap) - min(0.0, *gap) <= bound  # between any two moments


def _switch(stage: Stage, way: str) -> None:
    assert stage.gateway.admin(f"/admin/nodes/fair/{way}", method="POST").status == 202


async def _held(session: aiohttp.ClientSession, model: str, tokens: int = 4000) -> aiohttp.ClientResponse:
    """A request that goes on until it is closed."""
    body = chat(model, max_tokens=tokens, stream=True, ignore_eos=True)
    return await session.post("/v1/chat/completions", json=body)


def _in_flight(stage: Stage, node: str, count: int) -> None:
    wait_until(lambda: stage.gateway.metric("trimtab_in_flight", node=node), lambda n: n == count)


async def test_background_work_fills_spare_capacity_only(stage: Stage) -> None:
    async with session_of(stage, "nightly") as nightly, session_of(stage, "steady") as steady:
        background = [asyncio.create_task(_held(nightly, "wide")) for _ in range(4)]
        queued = lambda: stage.gateway.metric("trimtab_queue_length")  # noqa: E731
        await asyncio.to_thread(wait_until, queued, lambda n: n == 2)
        _in_flight(stage, "wide", 2)  # half of the node is kept free of it
        normal = [await asyncio.wait_for(_held(steady, "wide"), 90) for _ in range(2)]
        late = asyncio.create_task(_held(steady, "wide"))
        await asyncio.to_thread(wait_until, queued, lambda n: n == 3)
        done, _ = await asyncio.wait(background, return_when=asyncio.FIRST_COMPLETED)
        done.pop().result().close()  # a place is free: not for the background that came first
        normal.append(await asyncio.wait_for(late, 90))
        await asyncio.to_thread(wait_until, queued, lambda n: n == 2)
        for response in normal:
            response.close()
        for task in background:
            task.cancel()
        for outcome in await asyncio.gather(*background, return_exceptions=True):
            if isinstance(outcome, aiohttp.ClientResponse):
                outcome.close()
    await asyncio.to_thread(_in_flight, stage, "wide", 0)  # clients that leave free their places


async def test_capacity_counts_tokens_too(stage: Stage) -> None:
    """Of 8 requests that the node would take only 2 fit into its 300 tokens."""
    async with session_of(stage, "steady") as session:
        tasks = [asyncio.create_task(_held(session, "filled", 130)) for _ in range(4)]
        queued = lambda: stage.gateway.metric("trimtab_queue_length")  # noqa: E731
        await asyncio.to_thread(wait_until, queued, lambda n: n == 2)
        assert stage.gateway.metric("trimtab_in_flight", node="filled") == 2
        for done in asyncio.as_completed(tasks):  # a client that leaves makes room for the next
            response = await asyncio.wait_for(done, 90)
            assert response.status == 200
            response.close()
