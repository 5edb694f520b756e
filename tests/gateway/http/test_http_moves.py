"""Requests that move away from a frozen node, and the budget that retries keep to."""

from __future__ import annotations

import asyncio

import pytest

from support.gateway.plane import answers, gateway, ok, post, read_request
from support.waiting import until
from trimtab.gateway.http.connection_context import Settings, TenantBudget
from trimtab.gateway.model import Attempt, Cause


async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A backend that says nothing until the gateway gives it up."""
    await read_request(reader)
    await reader.read()


@pytest.mark.parametrize("frac", [0.2, 0.0])
async def test_what_a_frozen_node_holds_moves_where_a_retry_is_allowed(frac: float) -> None:
    came, gone = asyncio.Event(), asyncio.Event()

    async def frozen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        came.set()
        await reader.read()  # until the gateway gives it up
        gone.set()

    settings = Settings(retry_budget_frac=frac)
    async with gateway(frozen, answers(ok(b"second")), settings=settings) as plane:
        asking = asyncio.create_task(plane.raw(post()))
        await until(lambda: plane.notes.n_started)
        exchange = plane.notes.begun[0]
        await until(lambda: exchange.attempts[0].sent_s)
        await came.wait()
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


async def test_nothing_moves_while_no_other_node_is_ready() -> None:
    async with gateway(never) as plane:
        plane.dispatcher.is_alone = True
        asking = asyncio.create_task(plane.raw(post()))
        await until(lambda: plane.notes.n_started)
        exchange = plane.notes.begun[0]
        assert not exchange.move(exchange.attempts[0])
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


def test_a_budget_is_saved_up_to_its_bound() -> None:
    budget = TenantBudget(0.5, most=3.0, at_first=1.0)
    assert [budget.take("a"), budget.take("a")] == [True, False]
    for _ in range(100):
        budget.earn("a")
    # three are saved, one is borrowed: the reserve is 2, and one borrower leaves as much as it takes
    assert [budget.take("a") for _ in range(5)] == [True] * 4 + [False]
    assert not budget.has_one("a")
    assert not TenantBudget(0.0).has_one("a")


def test_a_tenant_whose_requests_fail_leaves_retries_to_the_others() -> None:
    budget = TenantBudget(0.2)
    for _ in range(10_000):  # every request of `bad` fails, and its retries do
        budget.earn("bad")
        while budget.take("bad"):
            pass
    taken = 0
    while budget.take("good"):
        taken += 1
    assert taken == 50, "half of what the other left of the reserve of 200"
    for _ in range(50):
        budget.earn("good")
    assert not budget.has_one("bad")
