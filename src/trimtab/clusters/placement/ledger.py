"""What nodes have left: what they offer less what workloads hold that run there, or are about to.

Amounts are whole numbers, so sums are exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

CPU, MEMORY = "cpu", "memory"  # names of resources in every system: thousandths of a core, bytes
WHOLE_GPU: Final = 1000  # of a share
GIB: Final = float(1 << 30)


class Resources(NamedTuple):
    """What a system calls its resources, besides CPU and MEMORY."""

    gpus: tuple[str, ...]  # whole GPUs; a node offers one of these
    each: str  # what a workload takes one of: pods, jobs
    share: str = ""  # thousandths of GPUs; "" = it has none


class PlacementNode(Protocol):
    """A node, as policies see it."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def allocatable(self) -> Mapping[str, int]:
        """Resource → amount that it offers."""
        ...

    @property
    def images(self) -> Mapping[str, int]:
        """Image → bytes, of those that it has."""
        ...

    @property
    def n_devices(self) -> int:
        """GPUs that it gives shares of."""
        ...

    @property
    def type_name(self) -> str:
        """Nodes of a type are equally fast."""
        ...

    @property
    def zone(self) -> str:
        """Its zone; "" = none told."""
        ...

    @property
    def usd_per_hour(self) -> float:
        """Its price."""
        ...

    @property
    def speed(self) -> float:
        """Relative to 1."""
        ...

    @property
    def gpu_gib(self) -> float:
        """Memory of one of its GPUs; 0 = not told."""
        ...


class Workload(Protocol):
    """What takes resources of one node: a pod, or a job's part on a node."""

    @property
    def uid(self) -> str:
        """Names it."""
        ...

    @property
    def needs(self) -> Mapping[str, int]:
        """Resource → amount that it takes."""
        ...

    @property
    def gpu_milli(self) -> int:
        """Thousandths of GPUs that it takes."""
        ...

    @property
    def demand(self) -> tuple[float, float, float]:
        """Cores, GiB of memory, thousandths of GPUs."""
        ...

    @property
    def priority(self) -> int:
        """The more urgent has the higher."""
        ...

    @property
    def created_s(self) -> float:
        """When it was submitted, Unix time."""
        ...

    @property
    def expected_s(self) -> float:
        """Of its run, on a node of speed 1."""
        ...

    @property
    def image(self) -> str:
        """That it runs; "" = none."""
        ...

    @property
    def repels(self) -> bool:
        """Whether it keeps others off its node."""
        ...


NodeT = TypeVar("NodeT", bound=PlacementNode)
WorkloadT = TypeVar("WorkloadT", bound=Workload)


class Place(NamedTuple, Generic[WorkloadT]):
    """Where a workload is to go."""

    workload: WorkloadT
    node_name: str
    devices: tuple[int, ...]


@dataclass(slots=True)
class Holding(Generic[WorkloadT]):
    """A workload that takes resources of a node."""

    workload: WorkloadT
    node_name: str
    devices: tuple[int, ...]
    is_assumed: bool  # chosen here; the server has not yet shown it there


@dataclass
class Ledger(Generic[NodeT, WorkloadT]):
    """All nodes and what is left of them. Rows of arrays are nodes, by `index`."""

    resources: Resources
    nodes: list[NodeT] = field(default_factory=list)
    index: dict[str, int] = field(default_factory=dict)  # name → row
    held: dict[str, Holding[WorkloadT]] = field(default_factory=dict)  # uid → …
    version: int = 0  # rises with each change of a node

    def __post_init__(self) -> None:
        self._columns: dict[str, int] = {}
        self._on: dict[str, dict[str, Holding[WorkloadT]]] = {}
        self.repelling = 0  # workloads that keep others off
        self._left: dict[str, list[int]] = {}  # node → thousandths of each of its devices
        self.total = np.zeros((0, 0), np.int64)  # [nodes, resources] what they offer
        self.free = np.zeros((0, 0), np.int64)  # the same, what is left; below 0 = others took too much
        self.largest_left = np.zeros(0, np.int64)  # [nodes] thousandths left on the emptiest device
        self.whole_left = np.zeros(0, np.int64)  # [nodes] devices of which nothing is taken
        self.has_devices = np.zeros(0, np.bool_)  # [nodes] they give shares of GPUs

    def reset_nodes(self, nodes: Iterable[NodeT]) -> None:
        """These are all nodes; workloads stay."""
        self.nodes = sorted(nodes, key=lambda node: node.name)
        self._renew()

    def set_node(self, node: NodeT) -> bool:
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
        """A node is gone. Workloads on it stay until the server says that they are gone too."""
        if name in self.index:
            self.nodes = [node for node in self.nodes if node.name != name]
            self._renew()

    def hold(
        self, workload: WorkloadT, node_name: str, devices: tuple[int, ...] = (), *, is_assumed: bool = False
    ) -> None:
        """A workload takes what it needs of a node; whatever it held before it gives back."""
        self.release(workload.uid)
        holding = Holding(workload, node_name, devices, is_assumed)
        self.held[workload.uid] = holding
        self.repelling += workload.repels
        self._on.setdefault(node_name, {})[workload.uid] = holding
        if node_name in self.index:
            self._take(self.index[node_name], holding, 1)

    def release(self, uid: str) -> Holding[WorkloadT] | None:
        """A workload gives back what it held; None if it held nothing."""
        holding = self.held.pop(uid, None)
        if holding is None:
            return None
        self.repelling -= holding.workload.repels
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

    def device_room(self, workload: WorkloadT) -> NDArray[np.bool_]:
        """Which nodes have the devices left that one asks for, [nodes]; nodes that give no shares do."""
        milli = workload.gpu_milli
        if 0 < milli < WHOLE_GPU:
            return np.logical_or(self.largest_left >= milli, ~self.has_devices)
        return (self.whole_left >= milli // WHOLE_GPU) | ~self.has_devices

    def lacking(self, workload: WorkloadT, j: int) -> list[str]:
        """The resources of which node j has too little left for a workload."""
        names = [
            name
            for name, amount in workload.needs.items()
            if name not in self._columns or self.free[j, self._columns[name]] < amount
        ]
        if not names and not self.device_room(workload)[j]:
            names.append(f"{self.resources.share} on one device")
        return names

    def is_kept(self, j: int) -> bool:
        """Whether no more is taken of node j than it offers."""
        return bool((self.free[j] >= 0).all() and min(self._left[self.nodes[j].name], default=0) >= 0)

    def choose_devices(self, workload: WorkloadT, node_name: str) -> tuple[int, ...]:
        """Devices of a node: of those that suffice for a share the fullest, else empty ones."""
        left, milli = self._left.get(node_name, []), workload.gpu_milli
        if 0 < milli < WHOLE_GPU:
            able = [d for d, rest in enumerate(left) if rest >= milli]
            return (min(able, key=left.__getitem__),) if able else ()
        return tuple(d for d, rest in enumerate(left) if rest == WHOLE_GPU)[: milli // WHOLE_GPU]

    def devices_left(self, node_name: str) -> tuple[int, ...]:
        """Thousandths left of each device of a node."""
        return tuple(self._left.get(node_name, ()))

    def workloads_on(self, node_name: str) -> Iterator[WorkloadT]:
        """The workloads that hold something of a node."""
        return (holding.workload for holding in self._on.get(node_name, {}).values())

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
        names.update({name: None for holding in self.held.values() for name in holding.workload.needs})
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

    def _take(self, j: int, holding: Holding[WorkloadT], sign: int) -> None:
        for name, amount in holding.workload.needs.items():
            column = self._column(name)
            self.free[j, column] -= sign * amount
        milli = holding.workload.gpu_milli
        if milli and self.has_devices[j]:  # only ever taken: `release` counts anew
            if not self._are_devices(holding):  # another scheduler bound it: any that suffice
                holding.devices = self.choose_devices(holding.workload, holding.node_name)
            each = milli // max(1, len(holding.devices))
            for d in holding.devices:
                self._left[holding.node_name][d] -= each
            self._note_devices(j)

    def _are_devices(self, holding: Holding[WorkloadT]) -> bool:
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
