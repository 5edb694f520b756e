"""Requests that move away from a frozen node, and the budget that retries keep to."""

from __future__ import annotations

import asyncio

import pytest

from support.gateway.plane import answers, gateway, ok, post, read_request, run
from support.waiting import until
from trimtab.gateway.http.connection_context import Budget, Settings
from trimtab.gateway.model import Attempt, Cause


async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A backend that says nothing until the gateway gives it up."""
    await read_request(reader)
    await reader.read()


@pytest.mark.parametrize("frac", [0.2, 0.0])
def test_what_a_frozen_node_holds_moves_where_a_retry_is_allowed(frac: float) -> None:
    gone = asyncio.Event()

    async def frozen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        await reader.read()  # until the gateway gives it up
        gone.set()

    async def main() -> None:
        settings = Settings(retry_budget_frac=frac)
        async with gateway(frozen, answers(ok(b"second")), settings=settings) as plane:
            asking = asyncio.create_task(plane.raw(post()))
            await until(lambda: plane.notes.n_started)
            exchange = plane.notes.begun[0]
            await until(lambda: exchange.attempts[0].sent_s)
            assert exchange.move(exchange.attempts[0]) is (frac > 0)
            assert not exchange.move(Attempt(exchange.attempts[0].node, 0.0))
            if frac:
                assert (await asking).endswith(b"second")
                await gone.wait()
                assert plane.notes.losses == [Cause.FIRST_BYTE]
            else:  # it waits on: a late answer is better than none
                assert plane.notes.losses == []
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)

    run(main())


def test_nothing_moves_while_no_other_node_is_ready() -> None:
    async def main() -> None:
        async with gateway(never) as plane:
            plane.dispatcher.is_alone = True
            asking = asyncio.create_task(plane.raw(post()))
            await until(lambda: plane.notes.n_started)
            exchange = plane.notes.begun[0]
            assert not exchange.move(exchange.attempts[0])
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    run(main())


def test_a_budget_is_saved_up_to_its_bound() -> None:
    budget = Budget(0.5, most=3.0, at_first=1.0)
    assert [budget.take(), budget.take()] == [True, False]
    for _ in range(100):
        budget.earn()
    assert [budget.take() for _ in range(4)] == [True, True, True, False]
    assert budget.is_empty
    assert Budget(0.0).is_empty
