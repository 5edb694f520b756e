"""Pods that preempt others, against a server in memory and in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from random import Random
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.kube_objects import api_pod
from support.kubernetes.control_plane import hollow_node
from support.kubernetes.server_in_memory import ServerInMemory
from trimtab.clusters.kube.api import KubeApi
from trimtab.clusters.kube.objects import SHARE
from trimtab.clusters.kube.scheduler import Scheduler
from trimtab.clusters.simulated_workers import VirtualLoop
from trimtab.policies import catalogue

pytestmark = pytest.mark.event_loop(factory=VirtualLoop)
SETTLED_S = 5.0  # sooner than pods that wait are looked at though nothing has changed


@contextlib.asynccontextmanager
async def scheduling(server: ServerInMemory) -> AsyncIterator[None]:
    made = Scheduler(cast(KubeApi, server), catalogue.find("best-fit"), preempts=True)
    task = asyncio.create_task(made.run())
    yield
    task.cancel()
    await asyncio.wait([task])


async def settled(server: ServerInMemory, *pods: dict[str, Any]) -> None:
    """These pods come, and all that follows has happened."""
    await server.make(*pods)
    await asyncio.sleep(SETTLED_S)


def a_gang(name: str, count: int, least: int, **given: Any) -> list[dict[str, Any]]:
    told = {"trimtab.io/gang": name, "trimtab.io/gang-min": str(least)}
    return [api_pod(f"{name}-{i}", annotations=told, **given) for i in range(count)]


def sharing(name: str, milli: int, priority: int) -> dict[str, Any]:
    return api_pod(name, gpus=0, more={SHARE: str(milli)}, priority=priority)


async def test_a_share_preempts_on_one_device_and_is_bound_to_it_once_it_is_free() -> None:
    """700 are left, of which no device has 500."""
    server = ServerInMemory([hollow_node("n", gpus=0, more={SHARE: "2000"})])
    async with scheduling(server):
        await settled(server, sharing("low", 600, 1), sharing("middle", 700, 2))
        await settled(server, sharing("high", 500, 3))
        assert (server.evicted, "high" in server.bound) == (["low"], False)
        device = server.devices_of("low")
        await server.end("low")
        await settled(server)
        assert (server.devices_of("high"), server.nodes_by_pod()["high"]) == (device, "n")


async def test_a_pod_waits_for_those_whose_port_it_takes() -> None:
    server = ServerInMemory([hollow_node("n")])
    container = api_pod("port")["spec"]["containers"][0] | {"ports": [{"hostPort": 80}]}
    async with scheduling(server):
        await settled(server, api_pod("low", priority=1, containers=[container]))
        await settled(server, api_pod("high", priority=2, containers=[container]))
        await settled(server, api_pod("other"))
        assert (server.evicted, server.bound) == (["low"], ["low", "other"])
        await server.end("low")
        await settled(server)
        assert server.bound == ["low", "other", "high"]


async def test_an_eviction_that_is_refused_is_not_asked_for_again_until_something_changes() -> None:
    server = ServerInMemory([hollow_node("n", gpus=1)])
    server.kept = {"low"}
    async with scheduling(server):
        await settled(server, api_pod("low", priority=1))
        await settled(server, api_pod("high", priority=2))
        assert (server.refused, server.evicted, server.bound) == (["low"], [], ["low"])


async def test_a_pod_takes_the_room_that_a_gang_tried_in_vain() -> None:
    server = ServerInMemory([hollow_node("n", gpus=2)])
    async with scheduling(server):
        await settled(server, *a_gang("g", 3, 3, priority=1), api_pod("alone"))
        assert server.bound == ["alone"]


async def test_a_gang_that_waits_for_victims_gives_way_to_a_more_urgent_pod() -> None:
    """Its victims are gone for it in vain; the pod needs no other. Then the gang fits no more."""
    server = ServerInMemory([hollow_node("n", gpus=2)])
    async with scheduling(server):
        await settled(server, *a_gang("low", 2, 2, priority=1))
        await settled(server, *a_gang("high", 2, 2, priority=2))
        assert sorted(server.evicted) == ["low-0", "low-1"]
        await settled(server, api_pod("late", priority=3, gpus=2))
        for name in ("low-0", "low-1"):
            await server.end(name)
            await settled(server)
        assert (server.bound[2:], len(server.evicted)) == (["late"], 2)


async def test_a_gang_evicts_nobody_where_a_budget_keeps_one() -> None:
    server = ServerInMemory([hollow_node(f"n{i}", gpus=1) for i in range(2)])
    server.kept = {"low1"}
    async with scheduling(server):
        await settled(server, *(api_pod(f"low{i}", priority=1) for i in range(2)))
        await settled(server, *a_gang("high", 2, 2, priority=2))
        assert (server.evicted, sorted(server.bound)) == ([], ["low0", "low1"])


@settings(max_examples=60)
@given(
    gpus=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    low=st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3)), max_size=6),
    high=st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3)),
    order=st.randoms(use_true_random=False),
)
def test_a_gang_preempts_if_it_fits_then_and_no_gang_is_ever_bound_by_halves(
    gpus: list[int], low: list[tuple[int, int, int]], high: tuple[int, int, int], order: Random
) -> None:
    """Gangs (pods, least, GPUs of each) of less priority run where a more urgent one comes."""
    least = {f"low{k}": min(one[:2]) for k, one in enumerate(low)} | {"high": min(high[:2])}

    def check(server: ServerInMemory) -> None:
        bound = server.nodes_by_pod()
        held = Counter[str]()
        for name, node in bound.items():
            held[node] += (*low, high)[list(least).index(name.partition("-")[0])][2]
        assert all(held[f"n{j}"] <= most for j, most in enumerate(gpus))
        stays = Counter(name.partition("-")[0] for name in bound if name not in server.evicted)
        assert all(count >= least[gang] for gang, count in stays.items())

    async def run() -> None:
        server = ServerInMemory([hollow_node(f"n{j}", gpus=most) for j, most in enumerate(gpus)])
        async with scheduling(server):
            for k, (count, _, size) in enumerate(low):
                await settled(server, *a_gang(f"low{k}", count, least[f"low{k}"], priority=1, gpus=size))
            check(server)
            await settled(server, *a_gang("high", high[0], least["high"], priority=2, gpus=high[2]))
            gone: set[str] = set()
            while ending := sorted(set(server.evicted) - gone):
                gone.add(name := order.choice(ending))
                await server.end(name)
                await settled(server)
                check(server)
        fits = sum(most // high[2] for most in gpus) >= least["high"]
        is_bound = any(name.startswith("high") for name in server.nodes_by_pod())
        assert is_bound == fits
        assert fits or not server.evicted

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(run())
