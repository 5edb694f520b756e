"""Draining: what is on its way when it begins is still answered."""

from __future__ import annotations

import asyncio

import pytest

from support.gateway.plane import WAIT_S, answers, closed, gateway, ok, post
from support.waiting import until


@pytest.mark.parametrize("is_fresh", [True, False])
async def test_a_request_on_its_way_is_answered(is_fresh: bool) -> None:
    async with gateway(answers(ok(b"{}"))) as plane:
        reader, writer = await plane.connect()
        if not is_fresh:
            writer.write(post(close=False))
            await reader.readuntil(b"{}")
        await until(lambda: len(plane.context.connections) == 1)
        await plane.plane.stop_accepting()
        draining = asyncio.create_task(plane.plane.drain(WAIT_S))
        await asyncio.sleep(0)
        writer.write(post(close=False))
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 200")
        assert b"connection: close" in answer
        assert await draining == 0
        await closed(writer)


async def test_an_idle_connection_is_closed_after_a_moment() -> None:
    async with gateway(answers(ok(b"{}"))) as plane:
        reader, writer = await plane.connect()
        await until(lambda: plane.context.connections)
        await plane.plane.stop_accepting()
        assert await plane.plane.drain(WAIT_S) == 0
        assert await reader.read() == b""
        await closed(writer)
