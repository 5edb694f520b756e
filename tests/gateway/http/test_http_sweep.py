"""Timeouts by one coarse timer."""

from __future__ import annotations

import asyncio
import socket
import time
from math import inf

import pytest

from support.gateway.virtual import VirtualLoop
from trimtab.gateway.config import GatewayConfig
from trimtab.gateway.http.connection_context import TenantBudget
from trimtab.gateway.http.timeouts import TICK_S, TimeoutScanner
from trimtab.gateway.job_api.job_service import JobService
from trimtab.gateway.stalled_streams import AWAY_S


class Item:
    def __init__(self, faults: int = 0) -> None:
        self.tick = -1
        self.looks = 0
        self._faults = faults

    def check(self, now_s: float) -> float:
        self.looks += 1
        if self.looks <= self._faults:
            raise RuntimeError("a fault")
        return inf


@pytest.mark.event_loop(factory=VirtualLoop)
async def test_a_fault_with_one_leaves_the_others_their_timeouts(caplog: pytest.LogCaptureFixture) -> None:
    scanner = TimeoutScanner(asyncio.get_running_loop())
    faulty, sound = Item(faults=1), [Item() for _ in range(20)]
    for item in (*sound[:10], faulty, *sound[10:]):
        scanner.watch(item)
    await asyncio.sleep(0.2)
    assert [item.looks for item in sound] == [1] * 20
    await asyncio.sleep(2.0)
    assert faulty.looks == 2, "it is looked at again"
    scanner.close()
    assert len(caplog.records) == 1


async def test_a_late_sweep_is_put_off_so_that_what_came_is_read_first() -> None:
    loop = asyncio.get_running_loop()
    scanner, item, order = TimeoutScanner(loop), Item(), []
    item.check = lambda now_s: order.append("looked at") or inf  # type: ignore[method-assign, func-returns-value]
    near, far = socket.socketpair()
    loop.add_reader(near, lambda: order.append(near.recv(9).decode()))
    scanner.watch(item)
    loop.call_later(0.0, far.send, b"read")  # after the loop has looked for what came, before the scanner
    time.sleep(AWAY_S + TICK_S)  # as a process that was stopped
    while "looked at" not in order:
        await asyncio.sleep(0.01)
    assert order == ["read", "looked at"]
    assert scanner.stall_detector.since_s > 0
    scanner.close()
    loop.remove_reader(near)
    near.close()
    far.close()


def test_budgets_follow_a_reload() -> None:
    budget = TenantBudget(0.2, most=1.0)
    assert budget.take("a")
    budget.become(0.2)
    assert not budget.has_one("a"), "the same goes on where it is"
    budget.become(0.5)
    assert budget.take("a")
    budget.earn("a")
    assert not budget.has_one("a")
    budget.earn("a")
    assert budget.take("a")
    budget.become(0.0)
    budget.earn("a")
    assert not budget.has_one("a")


def test_jobs_follow_a_reload() -> None:
    node = {"name": "n", "url": "http://n:1"}
    service = JobService(GatewayConfig.model_validate({"nodes": [node]}))
    assert not service.declared("n").idempotent
    service.declare(GatewayConfig.model_validate({"nodes": [{**node, "idempotent_jobs": True}]}))
    assert service.declared("n").idempotent
