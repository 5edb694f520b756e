"""Pods that are ready to serve, as a source of nodes: by labels, by a Service, or by an InferencePool.

A pod that is not ready, or is being deleted, is no node. A node's address has its port.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from trimtab.clusters.kube.api import Json, KubeApi, follow
from trimtab.errors import ApiRefused, ClusterLost, ConfigError
from trimtab.live.program_host import HostNode, Told, Troubled

POOLS: Final = "inference.networking.k8s.io", "v1", "inferencepools"
SLICES: Final = "discovery.k8s.io", "v1", "endpointslices"
_AGAIN_S: Final = 1.0  # after a refusal

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which pods."""

    kind: str  # selector, service or pool
    name: str  # of the Service or the InferencePool, or a label selector: "app=vllm,tier in (gpu)"
    namespace: str = "default"
    port: str = ""  # number or name; "" = the only one that there is, or those of the InferencePool
    kubeconfig: str = ""  # as of `KubeApi.connect`
    context: str = ""


class ReadyPods:
    """Follows them."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._known: dict[str, HostNode] = {}
        self._objects: dict[str, Json] = {}  # name → pod, EndpointSlice or Endpoints
        self._ports: tuple[str, ...] = (wanted.port,)
        self._task: asyncio.Task[None] | None = None

    def nodes(self) -> Sequence[HostNode]:
        """Those that it had last."""
        return list(self._known.values())

    def follow(self, added: Told, changed: Told, removed: Told, troubled: Troubled) -> None:
        """List them now, and watch."""
        self._told = added, changed, removed
        self._troubled = troubled
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Stop watching. `follow` begins again."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self._known.clear()

    async def _run(self) -> None:
        """Begin anew after each refusal: rights, or the API itself, may come later."""
        while True:
            try:
                async with await KubeApi.connect(self._wanted.kubeconfig, self._wanted.context) as api:
                    await self._watch(api)
            except (ApiRefused, ClusterLost, ConfigError) as error:
                self._troubled(str(error))
            except ExceptionGroup as group:
                self._troubled(str(group.exceptions[0]))
            await asyncio.sleep(_AGAIN_S)

    async def _watch(self, api: KubeApi) -> None:
        """Returns only where the API serves no pools. Raises ApiRefused, also in a group, ClusterLost."""
        wanted = self._wanted
        if wanted.kind == "pool":
            await self._watch_pool(api)
        elif wanted.kind == "selector":
            await self._collect(api, "/api/v1", "pods", self._of_pod, labelSelector=wanted.name)
        elif await api.serves(*SLICES):
            group, version, resource = SLICES
            label = f"kubernetes.io/service-name={wanted.name}"
            await self._collect(
                api, f"/apis/{group}/{version}", resource, self._of_slice, labelSelector=label
            )
        else:
            name = f"metadata.name={wanted.name}"
            await self._collect(api, "/api/v1", "endpoints", self._of_endpoints, fieldSelector=name)

    async def _collect(
        self, api: KubeApi, root: str, resource: str, read: Callable[[Json], Iterator[HostNode]], **query: str
    ) -> None:
        """Follow a collection; its objects are read as nodes."""

        def listed(objects: list[Json]) -> None:
            self._objects = {each["metadata"]["name"]: each for each in objects}
            self._take(read)

        def changed(kind: str, given: Json) -> None:
            name = given["metadata"]["name"]
            if kind == "DELETED":
                self._objects.pop(name, None)
            else:
                self._objects[name] = given
            self._take(read)

        path = f"{root}/namespaces/{self._wanted.namespace}/{resource}"
        await follow(api, path, listed, changed, self._note, **query)

    def _note(self, is_current: bool) -> None:
        self._troubled("" if is_current else "the API server does not answer")

    async def _watch_pool(self, api: KubeApi) -> None:
        """Follow the pool; with each change of it its pods anew."""
        group, version, resource = POOLS
        if not await api.serves(*POOLS):
            self._troubled(f"the API server has no InferencePool ({group}/{version}): install its CRD")
            return
        path = f"/apis/{group}/{version}/namespaces/{self._wanted.namespace}/{resource}"
        missing = f"there is no InferencePool {self._wanted.name} in namespace {self._wanted.namespace}"
        pods: list[asyncio.Task[None]] = []
        specs: list[Json] = []

        def seen(spec: Json | None) -> None:
            if spec is None:
                self._troubled(missing)
            if [spec] == specs:
                return
            specs[:] = [spec] if spec else []
            while pods:
                pods.pop().cancel()
            if spec:
                labels = spec["selector"].get("matchLabels") or {}
                self._ports = tuple(str(port["number"]) for port in spec["targetPorts"])
                query = ",".join(f"{name}={value}" for name, value in labels.items())
                found = self._collect(api, "/api/v1", "pods", self._of_pod, labelSelector=query)
                pods.append(tasks.create_task(found))

        def listed(objects: list[Json]) -> None:
            seen(objects[0]["spec"] if objects else None)

        def changed(kind: str, given: Json) -> None:
            seen(None if kind == "DELETED" else given["spec"])

        name = f"metadata.name={self._wanted.name}"
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(follow(api, path, listed, changed, lambda _: None, fieldSelector=name))

    # Objects as nodes.

    def _of_pod(self, pod: Json) -> Iterator[HostNode]:
        status, metadata = pod.get("status") or {}, pod["metadata"]
        conditions = {each["type"]: each["status"] for each in status.get("conditions") or ()}
        if conditions.get("Ready") != "True" or "deletionTimestamp" in metadata or not status.get("podIP"):
            return
        declared = [port for c in pod["spec"]["containers"] for port in c.get("ports") or ()]
        ports = [number for asked in self._ports if (number := _chosen(asked, declared, "containerPort"))]
        for number in ports:
            name = metadata["name"] if len(ports) == 1 else f"{metadata['name']}-{number}"
            yield _node(name, status["podIP"], number, labels=metadata.get("labels") or {})

    def _of_slice(self, given: Json) -> Iterator[HostNode]:
        number = _chosen(self._wanted.port, given.get("ports") or (), "port")
        for each in (given.get("endpoints") or ()) if number else ():
            conditions = each.get("conditions") or {}
            if conditions.get("ready") is not False and not conditions.get("terminating"):
                yield _node(_name(each, each["addresses"][0]), each["addresses"][0], number, each.get("zone"))

    def _of_endpoints(self, given: Json) -> Iterator[HostNode]:
        for subset in given.get("subsets") or ():
            number = _chosen(self._wanted.port, subset.get("ports") or (), "port")
            for each in (subset.get("addresses") or ()) if number else ():
                yield _node(_name(each, each["ip"]), each["ip"], number)

    def _take(self, read: Callable[[Json], Iterator[HostNode]]) -> None:
        """Tell what differs."""
        added, changed, removed = self._told
        found = {node.name: node for each in self._objects.values() for node in read(each)}
        before, self._known = self._known, found
        for name, node in before.items():
            if name not in found:
                removed(node)
        for name, node in found.items():
            if name not in before:
                added(node)
            elif node != before[name]:
                changed(node)


def _chosen(asked: str, ports: Sequence[Json], key: str) -> int:
    """The port of this number or name; 0 = there is none."""
    if asked.isdecimal():
        return int(asked)
    named = [port for port in ports if not asked or port.get("name") == asked]
    return int(named[0][key]) if named and (asked or len(ports) == 1) else 0


def _name(endpoint: Json, address: str) -> str:
    return str((endpoint.get("targetRef") or {}).get("name") or address)


def _node(name: str, ip: str, port: int, zone: str | None = None, **more: Any) -> HostNode:
    return HostNode(name, address=f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}", zone=zone or "", **more)
