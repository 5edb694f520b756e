"""A trace of what runs on a cluster, as the gateway's recordings: `trimtab compare --trace` reads it.

A workload is a request, a node a node; a class is what workloads need and which nodes suit them. Estimates of
a class are its mean seconds on nodes of a type. What is not in a trace: names of workloads and their owners.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic

import numpy as np
from numpy.typing import NDArray

from trimtab.clusters.placement.ledger import CPU, GIB, MEMORY, WHOLE_GPU, Ledger, NodeT, WorkloadT
from trimtab.clusters.placement.recording_file import RecordedNode, RunRecording

_RESOURCES: Final = ("cpu_cores", "ram_gib", "gpu_milli")


class Recording(Generic[NodeT, WorkloadT]):
    """Writes one file. What was there before counts from its creation; `close` writes the rest."""

    def __init__(
        self,
        ledger: Ledger[NodeT, WorkloadT],
        suited: Callable[[WorkloadT], NDArray[np.bool_]],
        takes: Callable[[NodeT], bool],
        folder: Path,
        policy: str,
        unit: str,
    ) -> None:
        """Begin a recording.

        Args:
            ledger: nodes, and what they hold.
            suited: nodes that may ever take a workload, [nodes].
            takes: whether a node takes workloads now.
            folder: where the file goes.
            policy: who decides.
            unit: what a workload is called.

        Raises UsageError where the folder cannot be written.
        """
        self._ledger, self._suited, self._takes = ledger, suited, takes
        self._begun_s, self._begun_wall_s = time.monotonic(), time.time()
        self._file = RunRecording(folder, policy, resources=_RESOURCES, unit=unit, field="--record")
        self._seen_s: dict[str, float] = {}
        self._waiting: dict[str, WorkloadT] = {}
        self._running: dict[str, WorkloadT] = {}
        self._begun_at: dict[str, tuple[float, str]] = {}  # uid → when, on which node

    def nodes_listed(self) -> None:
        """Write the head, once all nodes are known."""
        if not self._file.is_headed:
            self._file.head([self._node(node) for node in self._ledger.nodes])

    def node_changed(self, name: str) -> None:
        """Note a node that came, went, or takes work no more."""
        ledger, at_s = self._ledger, self._now_s()
        j = ledger.index.get(name)
        is_up = j is not None and self._takes(ledger.nodes[j])
        if not self._file.is_headed or is_up == self._file.up.get(name):
            return
        if j is not None and name not in self._file.nodes:
            self._file.add(self._node(ledger.nodes[j]), at_s)
        elif name in self._file.nodes:
            self._file.mark(name, "up" if is_up else "drained" if j is not None else "removed", at_s)

    def came(self, workload: WorkloadT, *, was_there: bool = False) -> None:
        """A workload waits. `was_there`: since before it was seen, so it counts from its creation."""
        if workload.uid not in self._seen_s:
            self._seen_s[workload.uid] = self._at_s(workload, was_there)
            self._waiting[workload.uid] = workload

    def placed(self, workload: WorkloadT, node_name: str, *, was_there: bool = False) -> None:
        """A workload has a node."""
        self.came(workload, was_there=was_there)
        if self._waiting.pop(workload.uid, None) is not None:
            self._running[workload.uid] = workload
            self._begun_at[workload.uid] = self._at_s(workload, was_there), node_name

    def ended(self, uid: str, outcome: str) -> None:
        """Write a workload that has ended. One without a node is no work that a policy could have done."""
        if (workload := self._running.pop(uid, None)) is not None:
            self._write_workload(workload, outcome)
        self._seen_s.pop(uid, None)
        self._waiting.pop(uid, None)

    def close(self) -> None:
        """Write what still runs or waits, and what was learned; then close the file."""
        for workload in self._running.values():
            self._write_workload(workload, "unknown")
        for uid, workload in self._waiting.items():
            seen_s, cls = self._seen_s[uid], self._class_of(workload)
            self._file.never_ran(cls, seen_s=seen_s, now_s=self._now_s(), priority=workload.priority)
        self._file.close(self._now_s())

    def _at_s(self, workload: WorkloadT, was_there: bool) -> float:
        now_s, since_s = self._now_s(), workload.created_s - self._begun_wall_s
        return min(0.0, since_s) if was_there else now_s

    def _now_s(self) -> float:
        return time.monotonic() - self._begun_s

    def _write_workload(self, workload: WorkloadT, outcome: str) -> None:
        begun_s, name = self._begun_at.pop(workload.uid)
        self._file.ran(
            self._class_of(workload),
            name,
            outcome,
            seen_s=self._seen_s.get(workload.uid, begun_s),
            begun_s=begun_s,
            ended_s=self._now_s(),
            priority=workload.priority,
        )

    def _node(self, node: NodeT) -> RecordedNode:
        """A node, and what it offers."""
        has, names = node.allocatable, self._ledger.resources
        gpus = has.get(names.share, 0) or WHOLE_GPU * sum(has.get(name, 0) for name in names.gpus)
        return RecordedNode(
            node.name,
            node.type_name,
            max(1, has.get(names.each, 0)),
            (has.get(CPU, 0) / 1000.0, has.get(MEMORY, 0) / GIB, float(gpus)),
            self._takes(node),
            node.usd_per_hour,
        )

    def _class_of(self, workload: WorkloadT) -> str:
        demand, nodes = workload.demand, self._ledger.nodes
        text = f"{demand[0]:g} cores, {demand[1]:g} GiB, {demand[2] / WHOLE_GPU:g} GPUs"
        suited = [nodes[j].name for j in np.flatnonzero(self._suited(workload))]
        return self._file.class_of(text, demand, suited)
