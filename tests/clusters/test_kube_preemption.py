"""Pods that preempt others, against a server in memory and in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

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
    gang = {"trimtab.io/gang": "g", "trimtab.io/gang-min": "3"}
    async with scheduling(server):
        members = [api_pod(f"g{i}", priority=1, annotations=gang) for i in range(3)]
        await settled(server, *members, api_pod("alone"))
        assert server.bound == ["alone"]
