"""A copy of a cluster's nodes and pods, kept current by watches, and rebuilt from lists after a restart."""

from __future__ import annotations

import asyncio
from functools import partial

from trimtab.clusters.kube.api import Json, KubeApi, follow
from trimtab.clusters.kube.objects import RESOURCES, Pod, PodLedger, node_of, pod_of

NODES, ALL_PODS = "/api/v1/nodes", "/api/v1/pods"
ALIVE = "status.phase!=Succeeded,status.phase!=Failed"


class Listener:
    """What hears of changes, after the copy has them."""

    def room_came(self) -> None:
        """A node is new or other than it was, or a pod has left one."""

    def pod_changed(self, pod: Pod, before: Pod | None) -> None:
        """A pod is new, or other than it was."""

    def pod_gone(self, pod: Pod) -> None:
        """A pod is over or deleted. It holds nothing any more."""

    def nodes_listed(self) -> None:
        """All nodes were listed: at first, and after a break."""

    def node_changed(self, name: str) -> None:
        """A node is new, other than it was, or deleted: then the ledger has none of this name."""


class Mirror:
    """Nodes, what is left of them, and the pods that are alive."""

    def __init__(self, api: KubeApi) -> None:
        self._api = api
        self.ledger = PodLedger(RESOURCES)
        self.pods: dict[str, Pod] = {}  # uid → …, alive
        self.listeners: list[Listener] = []
        self._current = {NODES: False, ALL_PODS: False}
        self._listed = {NODES: asyncio.Event(), ALL_PODS: asyncio.Event()}

    @property
    def is_current(self) -> bool:
        """Whether the copy follows the server."""
        return all(self._current.values())

    @property
    def is_synced(self) -> bool:
        """Whether all nodes and pods have been listed."""
        return all(listed.is_set() for listed in self._listed.values())

    async def synced(self) -> None:
        """Wait until all nodes and pods have been listed."""
        for listed in self._listed.values():
            await listed.wait()

    async def run(self) -> None:
        """Follow the server, for ever. Raises ApiRefused where a list is refused."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(
                follow(self._api, NODES, self._nodes_listed, self._node_changed, partial(self._note, NODES))
            )
            await self._listed[NODES].wait()  # so that pods find their nodes
            tasks.create_task(
                follow(
                    self._api,
                    ALL_PODS,
                    self._pods_listed,
                    self._pod_changed,
                    partial(self._note, ALL_PODS),
                    fieldSelector=ALIVE,
                )
            )

    def _room_came(self) -> None:
        for each in self.listeners:
            each.room_came()

    def _note_node(self, name: str) -> None:
        for each in self.listeners:
            each.node_changed(name)

    def _note(self, path: str, is_current: bool) -> None:
        self._current[path] = is_current

    def _nodes_listed(self, objects: list[Json]) -> None:
        nodes = [node_of(each) for each in objects]
        gone = self.ledger.index.keys() - {node.name for node in nodes}
        if self.ledger.nodes != sorted(nodes, key=lambda node: node.name):
            self.ledger.reset_nodes(nodes)
        for each in self.listeners:
            each.nodes_listed()
        for name in (*gone, *self.ledger.index):
            self._note_node(name)
        self._listed[NODES].set()
        self._room_came()

    def _node_changed(self, kind: str, given: Json) -> None:
        node = node_of(given)
        if kind == "DELETED":
            self.ledger.drop_node(node.name)
            self._note_node(node.name)
        elif self.ledger.set_node(node):
            self._note_node(node.name)
            self._room_came()

    def _pods_listed(self, objects: list[Json]) -> None:
        pods = {pod.uid: pod for pod in map(pod_of, objects)}
        for uid in [uid for uid in self.pods if uid not in pods]:
            self._drop(self.pods[uid])
        for pod in pods.values():
            self._set(pod)
        self._listed[ALL_PODS].set()

    def _pod_changed(self, kind: str, given: Json) -> None:
        pod = pod_of(given)
        if kind == "DELETED" or pod.is_over:
            self._drop(pod)
        else:
            self._set(pod)

    def _drop(self, pod: Pod) -> None:
        self.pods.pop(pod.uid, None)
        if self.ledger.release(pod.uid) is not None:
            self._room_came()
        for each in self.listeners:
            each.pod_gone(pod)

    def _set(self, pod: Pod) -> None:
        before = self.pods.get(pod.uid)
        self.pods[pod.uid] = pod
        held = self.ledger.held.get(pod.uid)
        if pod.node_name and (held is None or held.is_assumed or held.workload.needs != pod.needs):
            devices = pod.devices or (held.devices if held and held.node_name == pod.node_name else ())
            self.ledger.hold(pod, pod.node_name, devices)
        elif held is not None:
            held.workload = pod
        for each in self.listeners:
            each.pod_changed(pod, before)
