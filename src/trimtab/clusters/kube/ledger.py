"""What nodes have left: what they offer less what pods hold that are bound there, or are about to be.

Amounts are whole numbers, so sums are exact. The API server checks none of this: it binds a pod to a full
node, or to one that does not exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab.clusters.kube.objects import SHARE, WHOLE_GPU, Node, Pod


class Place(NamedTuple):
    """Where a pod is to go."""

    pod: Pod
    node_name: str
    devices: tuple[int, ...]


@dataclass(slots=True)
class Holding:
    """A pod that takes resources of a node."""

    pod: Pod
    node_name: str
    devices: tuple[int, ...]
    is_assumed: bool  # chosen here; the server has not yet shown it as bound


@dataclass
class Ledger:
    """All nodes and what is left of them. Rows of arrays are nodes, by `names`."""

    nodes: list[Node] = field(default_factory=list)
    index: dict[str, int] = field(default_factory=dict)  # name → row
    held: dict[str, Holding] = field(default_factory=dict)  # uid → …
    version: int = 0  # rises with each change of a node

    def __post_init__(self) -> None:
        self._columns: dict[str, int] = {}
        self._on: dict[str, dict[str, Holding]] = {}
        self.repelling = 0  # pods with anti-affinity
        self._left: dict[str, list[int]] = {}  # node → thousandths of each of its devices
        self.total = np.zeros((0, 0), np.int64)  # [nodes, resources] what they offer
        self.free = np.zeros((0, 0), np.int64)  # the same, what is left; below 0 = others took too much
        self.largest_left = np.zeros(0, np.int64)  # [nodes] thousandths left on the emptiest device
        self.whole_left = np.zeros(0, np.int64)  # [nodes] devices of which nothing is taken
        self.has_devices = np.zeros(0, np.bool_)  # [nodes] they give shares of GPUs

    def reset_nodes(self, nodes: Iterable[Node]) -> None:
        """These are all nodes; pods stay."""
        self.nodes = sorted(nodes, key=lambda node: node.name)
        self._renew()

    def set_node(self, node: Node) -> bool:
        """Add a node, or take its present state; returns whether anything about it is new."""
        j = self.index.get(node.name)
        if j is None:
            self.nodes.append(node)
            self._renew()
            return True
        if self.nodes[j] == node:
            return False
        self.nodes[j] = node
        self.version += 1
        self._count(j)
        return True

    def drop_node(self, name: str) -> None:
        """A node is gone. Pods on it stay until the server says that they are gone too."""
        if name in self.index:
            self.nodes = [node for node in self.nodes if node.name != name]
            self._renew()

    def hold(
        self, pod: Pod, node_name: str, devices: tuple[int, ...] = (), *, is_assumed: bool = False
    ) -> None:
        """A pod takes what it needs of a node; whatever it held before it gives back."""
        self.release(pod.uid)
        holding = Holding(pod, node_name, devices, is_assumed)
        self.held[pod.uid] = holding
        self.repelling += bool(pod.anti_affinity)
        self._on.setdefault(node_name, {})[pod.uid] = holding
        if node_name in self.index:
            self._take(self.index[node_name], holding, 1)

    def release(self, uid: str) -> Holding | None:
        """A pod gives back what it held; None if it held nothing."""
        holding = self.held.pop(uid, None)
        if holding is None:
            return None
        self.repelling -= bool(holding.pod.anti_affinity)
        del self._on[holding.node_name][uid]
        if holding.node_name in self.index:
            j = self.index[holding.node_name]
            if self.nodes[j].n_devices:
                self._count(j)
            else:
                self._take(j, holding, -1)
        return holding

    def room(self, needs: Mapping[str, int]) -> NDArray[np.bool_]:
        """Which nodes have enough of every resource left, [nodes]; devices apart."""
        if not needs.keys() <= self._columns.keys():
            return np.zeros(len(self.nodes), np.bool_)
        at = [self._columns[name] for name in needs]
        asked = np.fromiter(needs.values(), np.int64)
        return np.asarray(np.all(self.free[:, at] >= asked, axis=1))

    def device_room(self, pod: Pod) -> NDArray[np.bool_]:
        """Which nodes have the devices left that a pod asks for, [nodes]; nodes that give no shares do."""
        milli = pod.gpu_milli
        if 0 < milli < WHOLE_GPU:
            return np.logical_or(self.largest_left >= milli, ~self.has_devices)
        return (self.whole_left >= milli // WHOLE_GPU) | ~self.has_devices

    def lacking(self, pod: Pod, j: int) -> list[str]:
        """The resources of which node j has too little left for a pod."""
        names = [
            name
            for name, amount in pod.needs.items()
            if name not in self._columns or self.free[j, self._columns[name]] < amount
        ]
        if not names and not self.device_room(pod)[j]:
            names.append(f"{SHARE} on one device")
        return names

    def is_kept(self, j: int) -> bool:
        """Whether no more is taken of node j than it offers."""
        return bool((self.free[j] >= 0).all() and min(self._left[self.nodes[j].name], default=0) >= 0)

    def choose_devices(self, pod: Pod, node_name: str) -> tuple[int, ...]:
        """Devices of a node for a pod: of those that suffice for a share the fullest, else empty ones."""
        left, milli = self._left.get(node_name, []), pod.gpu_milli
        if 0 < milli < WHOLE_GPU:
            able = [d for d, rest in enumerate(left) if rest >= milli]
            return (min(able, key=left.__getitem__),) if able else ()
        return tuple(d for d, rest in enumerate(left) if rest == WHOLE_GPU)[: milli // WHOLE_GPU]

    def devices_left(self, node_name: str) -> tuple[int, ...]:
        """Thousandths left of each device of a node."""
        return tuple(self._left.get(node_name, ()))

    def pods_on(self, node_name: str) -> Iterator[Pod]:
        """The pods that hold something of a node."""
        return (holding.pod for holding in self._on.get(node_name, {}).values())

    def use(self, name: str) -> NDArray[np.int64]:
        """How much of a resource is taken on each node, [nodes]."""
        return self.offered(name) - self.left(name)

    def offered(self, name: str) -> NDArray[np.int64]:
        """What each node offers of a resource, [nodes]."""
        return self._of(self.total, name)

    def left(self, name: str) -> NDArray[np.int64]:
        """What is left of a resource on each node, [nodes]."""
        return self._of(self.free, name)

    def _of(self, amounts: NDArray[np.int64], name: str) -> NDArray[np.int64]:
        column = self._columns.get(name)
        return np.zeros(len(self.nodes), np.int64) if column is None else amounts[:, column]

    def _renew(self) -> None:
        self.version += 1
        self.index = {node.name: j for j, node in enumerate(self.nodes)}
        names = {name: None for node in self.nodes for name in node.allocatable}
        names.update({name: None for holding in self.held.values() for name in holding.pod.needs})
        self._columns = {name: k for k, name in enumerate(names)}
        many = len(self.nodes)
        self.total = np.zeros((many, len(names)), np.int64)
        self.free = self.total.copy()
        self.largest_left, self.whole_left = np.zeros(many, np.int64), np.zeros(many, np.int64)
        self.has_devices = np.array([node.n_devices > 0 for node in self.nodes], np.bool_)
        self._left = {}
        for j in range(many):
            self._count(j)

    def _count(self, j: int) -> None:
        """Count anew what is left of node j."""
        node = self.nodes[j]
        for name in node.allocatable:
            self._column(name)
        self.total[j] = 0
        for name, amount in node.allocatable.items():
            self.total[j, self._columns[name]] = amount
        self.free[j] = self.total[j]
        self.has_devices[j] = node.n_devices > 0
        self._left[node.name] = [WHOLE_GPU] * node.n_devices
        self._note_devices(j)
        for holding in self._on.get(node.name, {}).values():
            self._take(j, holding, 1)

    def _take(self, j: int, holding: Holding, sign: int) -> None:
        for name, amount in holding.pod.needs.items():
            column = self._column(name)
            self.free[j, column] -= sign * amount
        milli = holding.pod.gpu_milli
        if milli and self.has_devices[j]:  # only ever taken: `release` counts anew
            if not self._are_devices(holding):  # another scheduler bound it: any that suffice
                holding.devices = self.choose_devices(holding.pod, holding.node_name)
            each = milli // max(1, len(holding.devices))
            for d in holding.devices:
                self._left[holding.node_name][d] -= each
            self._note_devices(j)

    def _are_devices(self, holding: Holding) -> bool:
        many = len(self._left[holding.node_name])
        return bool(holding.devices) and all(d < many for d in holding.devices)

    def _note_devices(self, j: int) -> None:
        left = self._left[self.nodes[j].name]
        self.largest_left[j] = max(left, default=0)
        self.whole_left[j] = left.count(WHOLE_GPU)

    def _column(self, name: str) -> int:
        column = self._columns.get(name)
        if column is None:
            column = self._columns[name] = len(self._columns)
            self.total, self.free = (np.pad(each, ((0, 0), (0, 1))) for each in (self.total, self.free))
        return column
