"""The connections of a node that was removed: none is left."""

from __future__ import annotations

import asyncio

from support.gateway.plane import answers, gateway, ok, post, read_request
from support.waiting import until
from trimtab.gateway.app.assembly import GatewayCore
from trimtab.gateway.app.http_plane import HttpPlane
from trimtab.gateway.config import GatewayConfig


async def test_what_waits_is_closed_at_once_and_what_works_when_it_has_ended() -> None:
    may_answer = asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        await may_answer.wait()
        writer.write(ok(b'{"id": "slow"}'))
        await reader.read()  # until the gateway closes

    async with gateway(answers(ok(b"{}")), slow) as plane:
        pools, (idle, busy) = plane.context.pools, plane.dispatcher.nodes
        await plane.raw(post())
        asked = asyncio.create_task(plane.raw(post()))
        await until(lambda: len(pools.of(busy).open) == 1)
        before = [pools.of(node) for node in (idle, busy)]
        assert [len(pool.open) for pool in before] == [1, 1]
        pools.remove(idle)
        pools.remove(busy)
        await until(lambda: not before[0].open)
        assert len(before[1].open) == 1
        may_answer.set()
        assert b'{"id": "slow"}' in (await asked)
        await until(lambda: not before[1].open)
        assert pools.of(idle) is not before[0]  # it came back: a new pool, with what is said of it now


async def test_a_node_that_leaves_the_fleet_leaves_its_connections_too() -> None:
    nodes = [{"name": name, "url": "http://127.0.0.1:9", "models": ["m"]} for name in ("a", "b")]
    config = GatewayConfig.model_validate({"insecure_no_auth": True, "nodes": nodes})
    made = GatewayCore(config, asyncio.get_running_loop(), HttpPlane)
    try:
        pools = [made.plane.context.pools.of(node) for node in made.fleet.nodes]
        made.fleet.remove("a")
        assert [pool.closed for pool in pools] == [True, False]
    finally:
        await made.close()
