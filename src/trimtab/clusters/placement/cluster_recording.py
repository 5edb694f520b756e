"""A trace of what runs on a cluster, as the gateway's recordings: `trimtab compare --trace` reads it.

A workload is a request, a node a node; a class is what workloads need and which nodes suit them. Estimates of
a class are its mean seconds on nodes of a type. What is not in a trace: names of workloads and their owners.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Generic

import numpy as np
from numpy.typing import NDArray

from trimtab.clusters.placement.ledger import CPU, GIB, MEMORY, WHOLE_GPU, Ledger, NodeT, WorkloadT
from trimtab.errors import UsageError
from trimtab.traces.gateway_format import VERSION, file_name, new_recording_id

_RESOURCES: Final = ("cpu_cores", "ram_gib", "gpu_milli")
_UNKNOWN_S: Final = 1.0  # of a class of which no workload has ended


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
        self._ledger, self._suited, self._takes, self._unit = ledger, suited, takes, unit
        self._begun_s, self._begun_wall_s = time.monotonic(), time.time()
        self._recording = new_recording_id()
        path = folder / file_name(self._recording, 0, 1)
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            expected = "a folder that can be written"
            raise UsageError(str(error), field="--record", value=str(folder), expected=expected) from error
        self._policy = policy
        self._nodes: dict[str, int] = {}  # name → position
        self._types: list[str] = []
        self._up: dict[str, bool] = {}
        self._classes: dict[tuple[Any, ...], str] = {}
        self._demand: dict[str, tuple[float, float, float]] = {}
        self._served_by: dict[str, list[int]] = {}
        self._seconds: dict[tuple[str, str], list[float]] = defaultdict(
            list
        )  # (class, type) → of workloads that ended
        self._capacity: list[list[float]] = []
        self._price: list[float] = []
        self._seen_s: dict[str, float] = {}
        self._waiting: dict[str, WorkloadT] = {}
        self._running: dict[str, WorkloadT] = {}
        self._begun_at: dict[str, tuple[float, str]] = {}  # uid → when, on which node
        self._is_headed = False

    def nodes_listed(self) -> None:
        """Write the head, once all nodes are known."""
        if self._is_headed:
            return
        nodes = [self._row(node) for node in self._ledger.nodes]
        self._is_headed = True
        self._write(
            record="head",
            at_s=0.0,
            format=VERSION,
            recording=self._recording,
            worker=0,
            process=os.getpid(),
            started_utc=datetime.now(UTC).isoformat(timespec="seconds"),
            policy=self._policy,
            shadow="",
            seed=0,
            nodes=nodes,
            classes=[],
            options={"resources": "bound", "lookahead": 64, "lane_per_class": True},
        )

    def node_changed(self, name: str) -> None:
        """Note a node that came, went, or takes work no more."""
        ledger, at_s = self._ledger, self._now_s()
        j = ledger.index.get(name)
        is_up = j is not None and self._takes(ledger.nodes[j])
        was_up = self._up.get(name)
        if not self._is_headed or is_up == was_up:
            return
        if j is not None and name not in self._nodes:
            self._write(record="node", at_s=at_s, what="added", node=self._row(ledger.nodes[j]))
        elif name in self._nodes:
            what = "up" if is_up else "drained" if j is not None else "removed"
            self._write(record="node", at_s=at_s, what=what, node={"idx": self._nodes[name], "name": name})
        self._up[name] = is_up

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
            at_s, arrival_s = round(self._now_s(), 6), round(self._seen_s[uid], 6)
            row = {"class": self._class_of(workload), "outcome": "refused", "status": 503, "units": 1.0}
            self._write(arrival_s=arrival_s, finish_s=at_s, priority=workload.priority, **row)
        self._write_learned()
        os.close(self._fd)

    def _at_s(self, workload: WorkloadT, was_there: bool) -> float:
        now_s, since_s = self._now_s(), workload.created_s - self._begun_wall_s
        return min(0.0, since_s) if was_there else now_s

    def _now_s(self) -> float:
        return time.monotonic() - self._begun_s

    def _write(self, **fields: Any) -> None:
        os.write(self._fd, json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode() + b"\n")

    def _write_workload(self, workload: WorkloadT, outcome: str) -> None:
        begun_s, name = self._begun_at.pop(workload.uid)
        now_s, cls = self._now_s(), self._class_of(workload)
        if name not in self._nodes:
            return
        if outcome == "done":
            self._seconds[cls, self._types[self._nodes[name]]].append(now_s - begun_s)
        seen_s = self._seen_s.get(workload.uid, begun_s)
        self._write(
            **{"class": cls},
            arrival_s=round(seen_s, 6),
            finish_s=round(now_s, 6),
            started_s=round(begun_s, 6),
            wait_s=round(begun_s - seen_s, 6),
            service_s=round(now_s - begun_s, 6),
            units=1.0,
            priority=workload.priority,
            node=self._nodes[name],
            outcome=outcome,
        )

    def _row(self, node: NodeT) -> dict[str, Any]:
        """A node with the next position; what it offers is noted."""
        self._nodes[node.name] = len(self._nodes)
        self._types.append(node.type_name)
        self._up[node.name] = self._takes(node)
        has, names = node.allocatable, self._ledger.resources
        gpus = has.get(names.share, 0) or WHOLE_GPU * sum(has.get(name, 0) for name in names.gpus)
        self._capacity.append([has.get(CPU, 0) / 1000.0, has.get(MEMORY, 0) / GIB, float(gpus)])
        self._price.append(node.usd_per_hour)
        return {
            "idx": self._nodes[node.name],
            "name": node.name,
            "type": node.type_name,
            "slots": max(1, has.get(names.each, 0)),
            "max_tokens": 0,
            "health": "up" if self._up[node.name] else "draining",
        }

    def _class_of(self, workload: WorkloadT) -> str:
        demand = workload.demand
        suited = self._suited(workload)
        names = (self._ledger.nodes[j].name for j in np.flatnonzero(suited))
        served_by = sorted(self._nodes[name] for name in names if name in self._nodes)
        key = (*demand, *served_by)
        if key not in self._classes:
            text = f"{demand[0]:g} cores, {demand[1]:g} GiB, {demand[2] / WHOLE_GPU:g} GPUs"
            same = sum(name.partition(" (")[0] == text for name in self._classes.values())
            name = self._classes[key] = f"{text} ({same + 1})" if same else text
            self._demand[name], self._served_by[name] = demand, served_by
        return self._classes[key]

    def _write_learned(self) -> None:
        """Estimates of classes by type, and what nodes offer and workloads take."""
        at_s = round(self._now_s(), 6)
        types = list(dict.fromkeys(self._types))
        classes = [
            {
                "name": cls,
                "unit": self._unit,
                "fixed_s": {name: self._mean_s(cls, name) for name in types},
                "unit_s": dict.fromkeys(types, 0.0),
                "served_by": served_by,
            }
            for cls, served_by in self._served_by.items()
        ]
        self._write(record="estimates", at_s=at_s, classes=classes)
        self._write(
            record="signals",
            at_s=at_s,
            resources=_RESOURCES,
            capacity=self._capacity,
            demand=self._demand,
            usd_per_hour=self._price,
        )

    def _mean_s(self, cls: str, type_name: str) -> float:
        """Mean seconds on a type, else on any type."""
        own = self._seconds.get((cls, type_name)) or [
            each for (name, _), all_of in self._seconds.items() if name == cls for each in all_of
        ]
        return float(np.mean(own)) if own else _UNKNOWN_S
