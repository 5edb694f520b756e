"""What is called of an API server, in memory: nodes, pods, bindings, evictions, TrainingJobs.

It refuses only what the server does: it binds to full nodes too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, Self

from trimtab.clusters.kube.api import CONFLICT, NOT_FOUND
from trimtab.clusters.kube.mirror import ALL_PODS, NODES
from trimtab.clusters.kube.objects import DEVICES
from trimtab.errors import ApiRefused, ClusterLost

Object = dict[str, Any]
JOBS = "/apis/trimtab.io/v1alpha1/namespaces/default/trainingjobs"


class ServerInMemory:
    """Stands for `KubeApi`. Evicted pods end when the test says so."""

    def __init__(self, nodes: Sequence[tuple[Object, Object]] = (), jobs: Sequence[Object] = ()) -> None:
        """`nodes`: as `hollow_node` makes them. `jobs`: TrainingJobs."""
        self._objects: dict[str, dict[str, Object]] = {NODES: {}, ALL_PODS: {}, JOBS: {}}
        self._told: dict[str, list[tuple[str, Object]]] = {path: [] for path in self._objects}
        self._came = asyncio.Condition()
        self.kept: set[str] = set()  # names of pods whose eviction a PodDisruptionBudget refuses
        self.evicted: list[str] = []  # names
        self.refused: list[str] = []  # names of pods whose eviction was asked for in vain
        self.bound: list[str] = []  # names
        self.loses = 0  # so many changes of a status do not arrive
        for node, status in nodes:
            self._objects[NODES][node["metadata"]["name"]] = node | status | {"spec": {}}
        for job in jobs:
            self._objects[JOBS][job["metadata"]["name"]] = job

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def make(self, *pods: Object) -> None:
        """Create pods, as `api_pod` makes them."""
        for one in pods:
            await self._set("ADDED", one)

    async def end(self, name: str) -> None:
        """A pod that was evicted is gone."""
        await self._tell(ALL_PODS, "DELETED", self._objects[ALL_PODS].pop(name))

    def nodes_by_pod(self) -> dict[str, str]:
        """Of the pods that are bound."""
        pods = self._objects[ALL_PODS].items()
        return {name: node for name, one in pods if (node := one["spec"].get("nodeName"))}

    def job_status(self, name: str) -> Object:
        return dict(self._objects[JOBS][name].get("status", {}))

    def devices_of(self, name: str) -> str:
        return str(self._objects[ALL_PODS][name]["metadata"]["annotations"].get(DEVICES, ""))

    # As KubeApi.

    async def serves(self, group: str, version: str, resource: str) -> bool:
        return resource == "trainingjobs"

    async def list(self, path: str, **query: Any) -> tuple[list[Object], str]:
        return list(self._objects[path].values()), str(len(self._told[path]))

    async def watch(self, path: str, version: str, **query: Any) -> AsyncIterator[tuple[str, Object]]:
        seen = int(version)
        while True:
            async with self._came:
                while len(self._told[path]) == seen:
                    await self._came.wait()
            for kind, one in self._told[path][seen:]:
                seen += 1
                yield kind, one | {"metadata": one["metadata"] | {"resourceVersion": str(seen)}}

    async def get(self, path: str) -> Object:
        folder, name = path.rsplit("/", 1)
        assert folder == "/api/v1/namespaces/default/pods"
        return self._objects[ALL_PODS][name]

    async def patch(self, path: str, body: Object, kind: str = "") -> Object:
        folder, name, _ = path.rsplit("/", 2)
        if self.loses:
            self.loses -= 1
            raise ClusterLost("the API server is gone")
        if found := self._objects.get(folder, {}).get(name):
            await self._set("MODIFIED", found | {"status": found.get("status", {}) | body["status"]}, folder)
        return {}

    async def post(self, path: str, body: Object) -> Object:
        *_, name, what = path.split("/")
        if what == "events":
            return {}
        if (found := self._objects[ALL_PODS].get(name)) is None:
            raise ApiRefused(NOT_FOUND, "NotFound", f'pods "{name}" not found')
        if what == "eviction":
            await self._evict(found, body["deleteOptions"])
        elif found["spec"].get("nodeName"):
            raise ApiRefused(CONFLICT, "Conflict", f"pod {name} is bound")
        else:
            self.bound.append(name)
            told = found["metadata"]["annotations"] | body["metadata"]["annotations"]
            spec = found["spec"] | {"nodeName": body["target"]["name"]}
            await self._set(
                "MODIFIED", found | {"spec": spec, "metadata": found["metadata"] | {"annotations": told}}
            )
        return {}

    async def _evict(self, found: Object, options: Object) -> None:
        name = found["metadata"]["name"]
        if name in self.kept:
            self.refused.append(name)
            raise ApiRefused(429, "TooManyRequests", "it would violate the pod's disruption budget")
        if "dryRun" not in options:
            self.evicted.append(name)
            ending = found["metadata"] | {"deletionTimestamp": "2026-01-02T03:04:05Z"}
            await self._set("MODIFIED", found | {"metadata": ending})

    async def _set(self, kind: str, one: Object, path: str = ALL_PODS) -> None:
        self._objects[path][one["metadata"]["name"]] = one
        await self._tell(path, kind, one)

    async def _tell(self, path: str, kind: str, one: Object) -> None:
        async with self._came:
            self._told[path].append((kind, one))
            self._came.notify_all()
