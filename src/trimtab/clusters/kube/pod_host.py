"""A Kubernetes cluster as a host: nodes by watch, programs as pods that connect back to this machine.

--on kube            as kube.yaml in the current folder says
--on kube://FILE     as this file says (`worker_pods.PodSettings`)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from trimtab.clusters.kube.api import NOT_FOUND, Json, KubeApi, follow
from trimtab.clusters.kube.driver_lease import DriverLease
from trimtab.clusters.kube.mirror import ALIVE, ALL_PODS, NODES
from trimtab.clusters.kube.objects import Node, amounts, node_of, pod_of
from trimtab.clusters.kube.worker_pods import (
    DRIVER,
    FILE,
    asked_by,
    gpu_of,
    how_it_ended,
    read_pod_settings,
    why_it_waits,
    worker_pod,
)
from trimtab.clusters.placement.host_nodes import host_node
from trimtab.errors import ApiRefused, ClusterLost, UsageError
from trimtab.live.dialled import DialIn, DialledLink, address_towards
from trimtab.live.program_host import (
    LOCAL_ADDRESS,
    NO_SLOTS,
    HostNode,
    Link,
    Program,
    ProgramEvents,
    Told,
    Troubled,
)

QPS: Final = 200.0
logger = logging.getLogger(__name__)


class KubeHost:
    """The nodes of a Kubernetes cluster.

    Args:
        address: "kube", or kube://FILE.
        slots: of nodes that a run names; it names those of the cluster.

    Raises UsageError for a file that cannot be used.
    """

    def __init__(self, address: str = "kube", slots: Mapping[str, int] = NO_SLOTS) -> None:
        self.settings = read_pod_settings(Path(address.partition("://")[2] or FILE))
        self.driver_address = self.settings.address or LOCAL_ADDRESS  # until the API server was asked
        self._pods = f"/api/v1/namespaces/{self.settings.namespace}/pods"
        self._selector = ",".join(f"{name}={value}" for name, value in self.settings.nodes.items())
        self._known: dict[str, HostNode] = {}
        self._gpus: dict[str, str] = {}  # node → the resource that its GPUs are
        self._held: dict[str, dict[str, int]] = {}  # node → what others hold there
        self._links: dict[str, DialledLink] = {}
        self._waits: dict[str, str] = {}  # pod → why it is not bound
        self._begun: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._deletes: set[asyncio.Task[Any]] = set()
        self._n_pods = 0

    def nodes(self) -> Sequence[HostNode]:
        """The nodes that are ready and not cordoned. Raises UsageError."""

        async def found() -> list[HostNode]:
            async with await self._connected() as api:
                objects, _ = await api.list(NODES, labelSelector=self._selector)
                self._held = await self._held_on(api)
                return [node for each in objects if (node := self._node(each)) is not None]

        try:
            with ThreadPoolExecutor(1) as apart:  # an event loop may run in this thread
                nodes = apart.submit(lambda: asyncio.run(found())).result()
        except (ApiRefused, ClusterLost) as error:
            raise UsageError(str(error), field="on", value="kube") from error
        self._known = {node.name: node for node in nodes}
        return nodes

    async def _connected(self) -> KubeApi:
        told = self.settings
        api = await KubeApi.connect(told.kubeconfig, told.context, qps=QPS, burst=QPS)
        if not told.address:
            self.driver_address = _address_towards(api.host)
        return api

    async def _held_on(self, api: KubeApi, fields: str = "") -> dict[str, dict[str, int]]:
        """Node → what pods hold on it."""
        held: dict[str, dict[str, int]] = {}
        for each in (await api.list(ALL_PODS, fieldSelector=f"{ALIVE}{fields}"))[0]:
            pod = pod_of(each)
            there = held.setdefault(pod.node_name, {})
            for name, amount in pod.needs.items():
                there[name] = there.get(name, 0) + amount
        return held

    def _node(self, given: Json) -> HostNode | None:
        """A node of the API as one of this host; None: it takes no pods, or has no room."""
        node: Node = node_of(given)
        if node.is_cordoned and node.name in self._known:
            return self._known[node.name]  # what runs there goes on
        if not node.takes_pods:
            return None
        addresses = {one["type"]: one["address"] for one in given["status"].get("addresses") or ()}
        self._gpus[node.name] = gpu_of(node)
        address = addresses.get("InternalIP") or addresses.get("Hostname") or node.name
        held, asked = self._held.get(node.name, {}), amounts(self.settings.requests, "requests")
        made = host_node(node, address, node.labels, held, asked, self._gpus[node.name])
        return made if made.slots else None

    def follow(self, added: Told, changed: Told, removed: Told, troubled: Troubled) -> None:
        """Watch the nodes."""

        def gone(name: str) -> None:
            if (node := self._known.pop(name, None)) is not None:
                removed(node)

        async def come(given: Json) -> None:
            name = given["metadata"]["name"]
            try:
                self._held |= await self._held_on(self._api, f",spec.nodeName={name}")
            except (ApiRefused, ClusterLost) as error:
                logger.warning("%s", error)
            if name not in self._known and (node := self._node(given)) is not None:
                self._known[name] = node
                added(node)

        def seen(given: Json) -> None:
            name = given["metadata"]["name"]
            if name not in self._known:
                if self._node(given) is not None:
                    self._spawn(come(given))
            elif (node := self._node(given)) is None:
                gone(name)
            elif node != self._known[name]:
                self._known[name] = node
                changed(node)

        def listed(objects: list[Json]) -> None:
            for name in self._known.keys() - {each["metadata"]["name"] for each in objects}:
                gone(name)
            for each in objects:
                seen(each)

        def changed_one(kind: str, given: Json) -> None:
            if kind == "DELETED":
                gone(given["metadata"]["name"])
            else:
                seen(given)

        def current(is_current: bool) -> None:
            troubled("" if is_current else "the API server does not answer")

        async def watch() -> None:
            await self._begin()
            try:
                selector = self._selector
                await follow(self._api, NODES, listed, changed_one, current, labelSelector=selector)
            except ApiRefused as error:
                troubled(str(error))

        self._spawn(watch())

    async def start(self, node: HostNode, program: Program, events: ProgramEvents) -> Link:
        """Start a program as a pod, and wait until it has connected. Raises OSError."""
        if node.name not in self._known:
            raise ConnectionError(f"node {node.name} is gone, or takes no pods")
        asked = asked_by(program, node, self._gpus.get(node.name, ""))
        try:
            await self._begin()
            self._n_pods += 1
            name = f"{self._lease.name}-{self._n_pods}"
            link = self._dial_in.expect(f"pod {name} on {node.name}", events)
            there = link.on_node(program, f"{self.driver_address}:{self._dial_in.port}")
            self._links[name] = link
            link.over.add_done_callback(lambda _: self._spawn(self._delete(name), self._deletes))
            try:
                owner = self._lease.owner
                await self._api.post(
                    self._pods, worker_pod(self.settings, name, owner, node.name, there, asked)
                )
                why = "it is bound, and has not connected"
                await link.begun(self.settings.start_s, lambda: self._waits.get(name) or why)
            except BaseException:
                await link.stop()
                raise
        except (ApiRefused, ClusterLost) as error:
            raise ConnectionError(f"no pod starts on {node.name}: {error}") from error
        return link

    async def _begin(self) -> None:
        """Connect, once. Raises ApiRefused, ClusterLost."""
        if self._begun is None:
            self._begun = asyncio.get_running_loop().create_task(self._beginning())
        begun = self._begun
        try:
            await asyncio.shield(begun)
        except (ApiRefused, ClusterLost):
            if self._begun is begun:  # the next call tries again
                self._begun = None
            raise

    async def _beginning(self) -> None:
        self._api = await self._connected()
        try:
            self._lease = DriverLease(self._api, self.settings.namespace)
            await self._lease.make()
            self._dial_in = DialIn(port=self.settings.port)
        except BaseException:
            await self._api.close()
            raise
        self._spawn(self._lease.run())
        self._spawn(self._follow_pods())

    async def _follow_pods(self) -> None:
        """Tell links what became of their pods."""

        def listed(objects: list[Json]) -> None:
            there = {each["metadata"]["name"] for each in objects}
            for each in objects:
                changed("", each)
            for name in [name for name, link in self._links.items() if link.connected.done()]:
                if name not in there:
                    self._links[name].lost("as its pod is gone")

        def changed(kind: str, pod: Json) -> None:
            name = pod["metadata"]["name"]
            if (link := self._links.get(name)) is None:
                return
            how = how_it_ended(pod) or ("as its pod was deleted" if kind == "DELETED" else "")
            why = why_it_waits(pod)
            if how:
                link.lost(how)
            elif why != self._waits.get(name, ""):
                self._waits[name] = why
                if why:
                    logger.warning("%s waits: %s", link.name, why)

        selector = f"{DRIVER}={self._lease.name}"
        try:
            await follow(self._api, self._pods, listed, changed, lambda _: None, labelSelector=selector)
        except ApiRefused as error:
            logger.warning("what becomes of pods is not known: %s", error)

    async def _delete(self, name: str) -> None:
        """Delete the pod of a program that has ended."""
        self._links.pop(name, None)
        self._waits.pop(name, None)
        try:
            await self._api.delete(f"{self._pods}/{name}")
        except (ApiRefused, ClusterLost) as error:
            if not (isinstance(error, ApiRefused) and error.status == NOT_FOUND):
                logger.warning("%s", error)

    def _spawn(self, work: Coroutine[Any, Any, None], among: set[asyncio.Task[Any]] | None = None) -> None:
        tasks = self._tasks if among is None else among
        task = asyncio.get_running_loop().create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def close(self) -> None:
        """All programs have ended: delete what is left of them, and disconnect."""
        begun, self._begun = self._begun, None
        if begun is not None:
            await asyncio.wait([begun])
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, *self._deletes, return_exceptions=True)
        if begun is None or begun.exception() is not None:
            return
        try:
            await self._lease.delete()
        except (ApiRefused, ClusterLost) as error:
            logger.warning("pods of %s are left: %s", self._lease.name, error)
        await self._dial_in.close()
        await self._api.close()


def _address_towards(url: str) -> str:
    """This machine's address on the way to a server."""
    parts = urlsplit(url)
    return address_towards(parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80))
