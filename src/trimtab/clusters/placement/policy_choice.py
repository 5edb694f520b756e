"""The choice of a node by a policy of the catalogue, over a View of the cluster's nodes and workloads.

A workload is a request: its class is what it needs (CPU, memory, GPUs), its model the image that it runs.
A node is a node: its type is its GPU and price, what it holds the images that it has.
Which nodes may take a workload is no question of the policy: to it the others are down.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Generic

import numpy as np
from numpy.typing import NDArray

from trimtab.clusters.placement.ledger import (
    CPU,
    GIB,
    MEMORY,
    WHOLE_GPU,
    Ledger,
    NodeT,
    PlacementNode,
    Resources,
    Workload,
    WorkloadT,
)
from trimtab.domain.cluster import Cluster, ResourceName
from trimtab.domain.needs import Degraded, Host
from trimtab.domain.options import Options
from trimtab.domain.policy import Decider
from trimtab.domain.view import UNLIMITED
from trimtab.engine.calls import compile_all
from trimtab.engine.driver import PlanningLog
from trimtab.engine.live_driver import LiveDriver, RequestSpec
from trimtab.engine.state import OPEN
from trimtab.live.dispatch_loop import DispatchLoop
from trimtab.live.planner import InlinePlanner

_RESOURCES: Final[tuple[ResourceName, ...]] = ("cpu_cores", "ram_gib", "gpu_milli", "gpu_gib")
_PULL_GIB_PER_S: Final = 0.1  # of an image that a node lacks
_SPARE: Final = 8  # rows for classes, images and workloads that are yet to come, at least


class PolicyChoice(Generic[NodeT, WorkloadT]):
    """One policy over a ledger. New nodes, classes and images make it begin anew; workloads go on."""

    def __init__(
        self,
        decider: Decider,
        ledger: Ledger[NodeT, WorkloadT],
        host: Host,
        *,
        seed: int = 0,
        mode: str = "compiled",
    ) -> None:
        """`host`: the system, and what it provides. Raises UsageError for a policy that needs more."""
        self.degraded: tuple[Degraded, ...] = decider.degraded(host, frozenset(host.provides))
        if mode == "compiled":
            compile_all(decider)  # now: later it would hold up whoever renews a Lease
        self._decider, self._ledger, self._seed, self._mode = decider, ledger, seed, mode
        self._begun_s = time.monotonic()
        self._classes: dict[tuple[float, ...], int] = {}
        self._images: dict[str, int] = {}
        self._rows: dict[str, tuple[int, str]] = {}  # uid → (row, node's name)
        self._driver: LiveDriver | None = None
        self._version = -1
        self._shown = np.zeros(0, np.bool_)  # [nodes] up, as the policy sees it

    def rank(self, workload: WorkloadT, able: NDArray[np.bool_]) -> list[int]:
        """Rows of nodes, best first, of those that may take a workload [nodes]; [] = the policy holds it."""
        driver, now_s = self._current(workload), self._now_s()
        self._show(driver, able, now_s)
        used = self._used()
        driver.reports.set_used(used, np.full(len(used), np.inf), now_s)
        row = driver.enter(self._spec(workload), now_s)
        self._loop.step(now_s)
        driver.take_started()
        found = [j for j in driver.ranked(row) if able[j]]
        driver.abort(row, now_s)
        self._loop.step(now_s)
        driver.take_ended()
        return found

    def key(self, workload: WorkloadT) -> float:
        """By which a waiting workload is served, least first: the policy's own order."""
        driver, now_s = self._current(workload), self._now_s()
        self._show(driver, np.zeros_like(self._shown), now_s)
        row = driver.enter(self._spec(workload)._replace(arrival_s=workload.created_s), now_s)
        self._loop.step(now_s)
        key = float(driver.state.requests["key"][row])
        driver.abort(row, now_s)
        self._loop.step(now_s)
        driver.take_ended()
        return key

    def placed(self, workload: WorkloadT, node_name: str) -> None:
        """A workload runs on a node, or is about to."""
        if self._rows.get(workload.uid, (-1, ""))[1] == node_name:
            return
        self.ended(workload.uid)
        if self._driver is not None and node_name in self._ledger.index:
            driver = self._current(workload)
            if workload.uid not in self._rows:  # a driver made anew knows it already
                self._enter_at(driver, workload, node_name)

    def ended(self, uid: str) -> None:
        """A workload has left its node."""
        row, _ = self._rows.pop(uid, (-1, ""))
        if row >= 0 and self._driver is not None:
            now_s = self._now_s()
            self._driver.complete(row, now_s)
            self._loop.step(now_s)

    def _now_s(self) -> float:
        return time.monotonic() - self._begun_s

    def _show(self, driver: LiveDriver, able: NDArray[np.bool_], now_s: float) -> None:
        """To the policy these nodes are up, [nodes], and the others down."""
        for j in np.flatnonzero(able != self._shown).tolist():
            driver.switch(j, bool(able[j]), now_s)
        self._shown = able.copy()

    def _enter_at(self, driver: LiveDriver, workload: WorkloadT, node_name: str) -> None:
        j, spec = self._ledger.index[node_name], self._spec(workload)
        row = driver.enter_at(j, spec, workload.expected_s, self._now_s())
        self._rows[workload.uid] = (row, node_name)

    def _current(self, workload: WorkloadT) -> LiveDriver:
        """The driver, made anew where it has no row for the nodes or for what this workload brings."""
        demand, image = _demand(workload), self._known_image(workload.image)
        is_new = demand not in self._classes or image not in self._images
        self._classes.setdefault(demand, len(self._classes))
        self._images.setdefault(image, len(self._images))
        driver = self._driver
        if driver is None or self._version != self._ledger.version or not driver.has_row:
            return self._made_anew()
        if is_new:
            if len(self._classes) > len(driver.state.demand) or len(self._images) > len(
                driver.state.item_gib
            ):
                return self._made_anew()
            self._add(driver, demand, image)
        return driver

    def _known_image(self, image: str) -> str:
        """An image that some node has; else all are alike, "": every node has to fetch it."""
        return (
            image if image in self._images or any(image in node.images for node in self._ledger.nodes) else ""
        )

    def _add(self, driver: LiveDriver, demand: tuple[float, ...], image: str) -> None:
        """A class or an image takes a spare row."""
        now_s, c, i = self._now_s(), self._classes[demand], self._images[image]
        driver.reports.set_class_demand(c, np.array(demand))
        for g, speed in enumerate(self._speeds):
            driver.set_estimate(c, g, 1.0 / speed, 0.0)
        gib = _image_gib(self._ledger.nodes, image)
        driver.state.item_gib[i] = gib
        for g in range(len(self._speeds)):
            driver.reports.set_load_time(i, g, gib / _PULL_GIB_PER_S, now_s)
        for j, node in enumerate(self._ledger.nodes):
            if image in node.images and not driver.resident[j, i]:
                driver.resident[j, i] = 1
                driver.reports.note_residents(j, now_s)

    def _made_anew(self) -> LiveDriver:
        ledger = self._ledger
        cluster, self._speeds = _cluster(ledger, list(self._classes), list(self._images))
        rows, log = 2 * (len(ledger.held) + _SPARE), PlanningLog()
        self._driver = driver = LiveDriver(
            cluster,
            Options(),
            self._decider,
            rows=rows,
            seed=self._seed,
            mode=self._mode,
            begun_s=self._now_s(),
            planning=log,
            host=OPEN,
            bounds_time=True,
        )
        planner = InlinePlanner(self._decider.dispatch, log)
        self._loop = DispatchLoop(driver, planner, self._now_s, lambda _: None)
        self._version, self._shown = ledger.version, np.ones(len(ledger.nodes), np.bool_)
        for i, image in enumerate(self._images):
            for j, node in enumerate(ledger.nodes):
                driver.resident[j, i] = image in node.images
        self._gpu_gib = np.array([node.gpu_gib for node in ledger.nodes])
        self._rows = {}
        for holding in ledger.held.values():
            if holding.node_name in ledger.index and _demand(holding.workload) in self._classes:
                self._enter_at(driver, holding.workload, holding.node_name)
        return driver

    def _spec(self, workload: WorkloadT) -> RequestSpec:
        image = workload.image if workload.image in self._images else ""
        return RequestSpec(
            class_idx=self._classes[_demand(workload)],
            units=workload.expected_s,
            model_idx=self._images.get(image, -1),
            priority=workload.priority,
        )

    def _used(self) -> NDArray[np.float64]:
        """What is taken on each node, [nodes, resources]."""
        ledger = self._ledger
        gpus = _gpu_milli(ledger.use, ledger.resources)
        columns = (
            ledger.use(CPU) / 1000.0,
            ledger.use(MEMORY) / GIB,
            gpus,
            gpus / WHOLE_GPU * self._gpu_gib,
        )
        return np.asarray(np.maximum(0.0, np.stack(columns, axis=1)))


def _gpu_milli(amount: Callable[[str], NDArray[np.int64]], names: Resources) -> NDArray[np.float64]:
    """Thousandths of GPUs, [nodes], from what there is of each resource."""
    return np.asarray(amount(names.share) + WHOLE_GPU * sum(map(amount, names.gpus)), np.float64)


def _demand(workload: Workload) -> tuple[float, ...]:
    """What a workload takes, in the resources of the View; memory of GPUs goes with GPUs."""
    return *workload.demand, 0.0


def _image_gib(nodes: Sequence[PlacementNode], image: str) -> float:
    return max((node.images.get(image, 0) for node in nodes), default=0) / GIB


def _cluster(
    ledger: Ledger[NodeT, WorkloadT], demands: Sequence[tuple[float, ...]], images: Sequence[str]
) -> tuple[Cluster, list[float]]:
    """The cluster of a View, with spare rows for classes and images; and the speed of each node type."""
    nodes = ledger.nodes
    kinds = [(node.type_name, node.usd_per_hour, node.speed, node.gpu_gib) for node in nodes]
    types = list(dict.fromkeys(kinds))
    zones = list(dict.fromkeys(["", *(node.zone for node in nodes)]))
    classes, items = _with_spare(len(demands)), _with_spare(len(images))
    gpus = _gpu_milli(ledger.offered, ledger.resources)
    memory = gpus / WHOLE_GPU * np.array([node.gpu_gib for node in nodes])
    cores, ram_gib = ledger.offered(CPU) / 1000.0, ledger.offered(MEMORY) / GIB
    demand = np.zeros((classes, len(_RESOURCES)))
    demand[: len(demands)] = demands
    speeds = [speed for _, _, speed, _ in types]
    seconds = np.full((classes, len(types)), np.inf)
    seconds[: len(demands)] = 1.0 / np.array(speeds)
    item_gib = np.zeros(items)
    item_gib[: len(images)] = [_image_gib(nodes, image) for image in images]
    slots = np.maximum(1, ledger.offered(ledger.resources.each))
    position: Mapping[object, int] = {kind: g for g, kind in enumerate(types)}
    of_type = np.array([position[kind] for kind in kinds])
    per_type = np.zeros(len(types))
    np.maximum.at(per_type, of_type, gpus / WHOLE_GPU)
    cluster = Cluster(
        type_names=tuple(
            f"{name} ({g})" if price or g else name for g, (name, price, *_) in enumerate(types)
        ),
        node_names=tuple(node.name for node in nodes),
        type_idx=of_type,
        slots=slots,
        queue_max=np.zeros(len(nodes), np.int64),
        zone_idx=np.array([zones.index(node.zone) for node in nodes]),
        weight=slots * np.array([node.speed for node in nodes]),
        nic_gib_per_s=np.full(len(nodes), np.inf),
        memory_gib=np.full(len(types), float(UNLIMITED)),  # images lie on disks
        accelerators=per_type,
        usd_per_hour=np.array([price for _, price, _, _ in types]),
        class_names=tuple(f"class {c}" for c in range(classes)),
        fixed_s=np.where(np.isinf(seconds), np.inf, 0.0),
        unit_s=np.where(np.isinf(seconds), 0.0, seconds),
        item_names=tuple(f"image {i}" for i in range(items)),
        item_gib=item_gib,
        item_is_adapter=np.zeros(items, np.uint8),
        load_s=np.repeat(item_gib[:, None] / _PULL_GIB_PER_S, len(types), axis=1),
        zone_names=tuple(zone or "none" for zone in zones),
        rtt_s=np.zeros((len(zones), len(zones))),
        zone_gib_per_s=np.full(len(zones), np.inf),
        resource_names=_RESOURCES,
        capacity=np.stack([cores, ram_gib, gpus, memory], axis=1),
        demand=demand,
    )
    return cluster, speeds


def _with_spare(used: int) -> int:
    return 1 << (used + _SPARE - 1).bit_length()
