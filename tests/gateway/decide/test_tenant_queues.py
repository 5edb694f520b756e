"""Hierarchical queues of tenants in the gateway: limits, what is taken back, reloads, figures."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from support.gateway.dispatch_bench import Asked, Bench, benched
from trimtab.gateway.model import DEADLINE_CODE, Tenant
from trimtab.gateway.observe.metrics import Metrics, Sources
from trimtab.validation.queue_section import QueueSpec

A, B, C = (Tenant(name, k) for k, name in enumerate("abc"))
HALVES: Mapping[str, QueueSpec] = {
    "x": QueueSpec(guarantee=0.5, tenants=("a",)),
    "y": QueueSpec(guarantee=0.5, notice_s=2.0, tenants=("b",)),
    "default": QueueSpec(limit=0.25),
}
at = partial(benched, slots=2, nodes=2, type_name="", tenants=3)


class Open(Asked):
    """May be taken back until the client has its first byte."""

    times = 0

    @property
    def may_be_taken_back(self) -> bool:
        return not self.committed

    def take_back(self) -> None:
        self.times += 1


async def flooded(bench: Bench, count: int = 4) -> list[Open]:
    """Requests of tenant a on all slots, one after the other."""
    sent = []
    for _ in range(count):
        sent.append(bench.submit(Open(tenant=A)))
        await asyncio.sleep(0.01)
    return sent


def figures(bench: Bench) -> dict[str, tuple[int, int, int]]:
    return {
        one["queue"]: (one["held"], one["at_nodes"], one["preempted"])
        for one in bench.dispatcher.queue_figures()
    }


@at(queues=HALVES)
async def test_a_tenant_that_no_queue_names_is_held_at_the_limit_of_the_default(bench: Bench) -> None:
    first, second, other = (bench.submit(Open(tenant=t)) for t in (C, C, A))
    assert (first.nodes, second.nodes, other.nodes) == (["n0"], [], ["n1"])
    bench.done(first)
    assert second.nodes == ["n0"]


@at(queues=HALVES)
async def test_after_its_notice_a_queue_gets_its_guarantee_back(bench: Bench) -> None:
    borrowed = await flooded(bench)
    owed = [bench.submit(Open(tenant=B)) for _ in range(3)]
    await asyncio.sleep(1.9)
    assert not any(one.nodes for one in owed)
    await asyncio.sleep(0.2)
    assert [bool(one.nodes) for one in owed] == [True, True, False]
    assert [one.times for one in borrowed] == [0, 0, 1, 1]
    assert figures(bench) == {"x": (2, 2, 2), "y": (1, 2, 0), "default": (0, 0, 0)}
    assert sum(bench.in_flight().values()) == 4
    bench.done(owed[0])
    assert borrowed[2].nodes != owed[2].nodes
    assert [len(one.nodes) for one in owed] == [1, 1, 1], "below its guarantee it goes first"
    for one in (owed[1], owed[2], borrowed[0]):
        bench.done(one)
    assert [len(one.nodes) for one in borrowed] == [1, 1, 2, 2]
    assert not any(one.refusal for one in (*borrowed, *owed))


@at(queues=HALVES)
async def test_a_request_whose_answer_has_begun_stays(bench: Bench) -> None:
    begun = await flooded(bench)
    for one in begun[1:]:
        one.committed = True
        bench.dispatcher.committed(one)
    owed = [bench.submit(Open(tenant=B)) for _ in range(2)]
    await asyncio.sleep(20.0)
    assert [one.times for one in begun] == [1, 0, 0, 0]
    assert [bool(one.nodes) for one in owed] == [True, False]


@at(queues=HALVES)
async def test_what_cannot_be_repeated_stays(bench: Bench) -> None:
    firm = [bench.submit(Asked(tenant=A)) for _ in range(4)]
    owed = bench.submit(Open(tenant=B))
    await asyncio.sleep(20.0)
    assert not owed.nodes
    bench.done(firm[0])
    assert owed.nodes


@at(queues=HALVES, max_wait_s=5.0)
async def test_what_is_taken_back_waits_as_long_as_a_new_request(bench: Bench) -> None:
    borrowed = await flooded(bench)
    await asyncio.sleep(30.0)
    owed = [bench.submit(Open(tenant=B)) for _ in range(2)]
    await asyncio.sleep(2.1)
    assert all(one.nodes for one in owed)
    await asyncio.sleep(4.8)
    assert [one.refusal for one in borrowed] == [None] * 4
    await asyncio.sleep(0.4)
    codes = [one.refusal and one.refusal.code for one in borrowed]
    assert codes == [None, None, "no_capacity", "no_capacity"]


@at(queues=HALVES)
async def test_a_deadline_of_the_client_holds_for_what_is_taken_back(bench: Bench) -> None:
    borrowed = await flooded(bench, 3)
    last = Open(tenant=A)
    last.deadline_s = bench.loop.time() + 3.0
    bench.submit(last)
    owed = bench.submit(Open(tenant=B))
    await asyncio.sleep(2.5)
    assert owed.nodes
    assert (last.times, last.refusal) == (1, None)
    await asyncio.sleep(0.6)
    assert last.refusal is not None
    assert last.refusal.code == DEADLINE_CODE
    assert not any(one.refusal for one in borrowed)


@at(queues=HALVES)
async def test_a_reload_changes_the_tree_and_loses_nothing(bench: Bench) -> None:
    borrowed = await flooded(bench)
    owed = [bench.submit(Open(tenant=B)) for _ in range(2)]
    await asyncio.sleep(2.1)
    rules = bench.dispatcher.rules
    swapped = {**HALVES, "x": QueueSpec(guarantee=0.5, notice_s=1.0, limit=0.5, tenants=("b",))}
    swapped["y"] = QueueSpec(guarantee=0.5, tenants=("a",))
    bench.dispatcher.use(replace(rules, queues=swapped))
    assert figures(bench) == {"x": (0, 2, 2), "y": (2, 2, 0), "default": (0, 0, 0)}
    assert sum(bench.in_flight().values()) == 4
    bench.dispatcher.use(replace(rules, queues=None))
    assert bench.dispatcher.queue_figures() == []
    for one in (*owed, *borrowed[:2]):
        bench.done(one)
    assert [len(one.nodes) for one in borrowed] == [1, 1, 2, 2]


@at(queues=HALVES)
async def test_queues_in_the_metrics(bench: Bench) -> None:
    await flooded(bench, 3)
    tables: Any = (
        Metrics(bench.loop.time, Sources(tenant_queues=bench.dispatcher.queue_figures)).store().tables
    )
    shares = {labels[0]: row[0] for labels, row in tables["trimtab_tenant_queue_share_ratio"].items()}
    assert shares == {"x": 0.75, "y": 0.0, "default": 0.0}
    limits = {labels[0]: row[0] for labels, row in tables["trimtab_tenant_queue_limit_ratio"].items()}
    assert limits == {"x": 1.0, "y": 1.0, "default": 0.25}
