"""A trace of what runs on a cluster, as the gateway's recordings: `trimtab compare --trace` reads it.

A pod is a request, a node a node; a class is what pods need and which nodes suit them. Estimates of a class
are its mean seconds on nodes of a type. What is not in a trace: names of pods and namespaces.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson

from trimtab.clusters.kube.feasibility import Feasibility
from trimtab.clusters.kube.mirror import Listener, Mirror
from trimtab.clusters.kube.objects import GIB, PODS, SHARE, WHOLE_GPU, Node, Pod
from trimtab.errors import UsageError
from trimtab.traces.gateway_format import VERSION, file_name, new_recording_id

_RESOURCES: Final = ("cpu_cores", "ram_gib", "gpu_milli")
_UNKNOWN_S: Final = 1.0  # of a class of which no pod has ended


class PodRecording(Listener):
    """Writes one file. Pods that were there before count from their creation; `close` writes the rest."""

    def __init__(self, mirror: Mirror, folder: Path, policy: str) -> None:
        """Raises UsageError where the folder cannot be written."""
        self._mirror, self._feasible = mirror, Feasibility(mirror.ledger)
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
        )  # (class, type) → of pods that ended
        self._capacity: list[list[float]] = []
        self._price: list[float] = []
        self._seen_s: dict[str, float] = {}
        self._bound_s: dict[str, tuple[float, str]] = {}
        self._is_headed = False
        mirror.listeners.append(self)

    def nodes_listed(self) -> None:
        """Write the head, once all nodes are known."""
        if self._is_headed:
            return
        nodes = [self._row(node) for node in self._mirror.ledger.nodes]
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
        """Note a node that came, went, or takes pods no more."""
        ledger, at_s = self._mirror.ledger, self._now_s()
        j = ledger.index.get(name)
        is_up = j is not None and ledger.nodes[j].takes_pods
        was_up = self._up.get(name)
        if not self._is_headed or is_up == was_up:
            return
        if j is not None and name not in self._nodes:
            self._write(record="node", at_s=at_s, what="added", node=self._row(ledger.nodes[j]))
        elif name in self._nodes:
            what = "up" if is_up else "drained" if j is not None else "removed"
            self._write(record="node", at_s=at_s, what=what, node={"idx": self._nodes[name], "name": name})
        self._up[name] = is_up

    def pod_changed(self, pod: Pod, before: Pod | None) -> None:
        """Note when a pod came, and when it was bound."""
        now_s, since_s = self._now_s(), pod.created_s - self._begun_wall_s
        if before is None:
            self._seen_s[pod.uid] = now_s if self._mirror.is_synced else min(0.0, since_s)
        if pod.node_name and pod.uid not in self._bound_s:
            self._bound_s[pod.uid] = (now_s if self._mirror.is_synced else min(0.0, since_s)), pod.node_name

    def pod_gone(self, pod: Pod) -> None:
        """Write a pod that has ended. One that was never bound is no work that any policy could have done."""
        if pod.uid in self._bound_s:
            self._write_pod(pod, "failed" if pod.phase == "Failed" else "done")
        self._seen_s.pop(pod.uid, None)

    def close(self) -> None:
        """Write what still runs or waits, and what was learned; then close the file."""
        for pod in list(self._mirror.pods.values()):
            if pod.uid in self._bound_s:
                self._write_pod(pod, "unknown")
            elif pod.uid in self._seen_s:
                at_s = round(self._now_s(), 6)
                arrival_s = round(self._seen_s[pod.uid], 6)
                row = {"class": self._class_of(pod), "outcome": "refused", "status": 503, "units": 1.0}
                self._write(arrival_s=arrival_s, finish_s=at_s, priority=pod.priority, **row)
        self._write_learned()
        os.close(self._fd)

    def _now_s(self) -> float:
        return time.monotonic() - self._begun_s

    def _write(self, **fields: Any) -> None:
        os.write(self._fd, orjson.dumps(fields) + b"\n")

    def _write_pod(self, pod: Pod, outcome: str) -> None:
        begun_s, name = self._bound_s.pop(pod.uid)
        now_s, cls = self._now_s(), self._class_of(pod)
        if name not in self._nodes:
            return
        if outcome == "done":
            self._seconds[cls, self._types[self._nodes[name]]].append(now_s - begun_s)
        seen_s = self._seen_s.get(pod.uid, begun_s)
        self._write(
            **{"class": cls},
            arrival_s=round(seen_s, 6),
            finish_s=round(now_s, 6),
            started_s=round(begun_s, 6),
            wait_s=round(begun_s - seen_s, 6),
            service_s=round(now_s - begun_s, 6),
            units=1.0,
            priority=pod.priority,
            node=self._nodes[name],
            outcome=outcome,
        )

    def _row(self, node: Node) -> dict[str, Any]:
        """A node with the next position; what it offers is noted."""
        self._nodes[node.name] = len(self._nodes)
        self._types.append(node.type_name)
        self._up[node.name] = node.takes_pods
        has = node.allocatable
        gpus = has.get(SHARE, 0) or WHOLE_GPU * node.gpus
        self._capacity.append([has.get("cpu", 0) / 1000.0, has.get("memory", 0) / GIB, float(gpus)])
        self._price.append(node.usd_per_hour)
        return {
            "idx": self._nodes[node.name],
            "name": node.name,
            "type": node.type_name,
            "slots": max(1, has.get(PODS, 0)),
            "max_tokens": 0,
            "health": "up" if self._up[node.name] else "draining",
        }

    def _class_of(self, pod: Pod) -> str:
        demand = pod.demand
        suited = self._feasible.suited(pod)
        names = (self._mirror.ledger.nodes[j].name for j in np.flatnonzero(suited))
        served_by = sorted(self._nodes[name] for name in names if name in self._nodes)
        key = (*demand, *served_by)
        if key not in self._classes:
            text = f"{demand[0]:g} cores, {demand[1]:g} GiB, {demand[2] / WHOLE_GPU:g} GPUs"
            same = sum(name.partition(" (")[0] == text for name in self._classes.values())
            name = self._classes[key] = f"{text} ({same + 1})" if same else text
            self._demand[name], self._served_by[name] = demand, served_by
        return self._classes[key]

    def _write_learned(self) -> None:
        """Estimates of classes by type, and what nodes offer and pods take."""
        at_s = round(self._now_s(), 6)
        types = list(dict.fromkeys(self._types))
        classes = [
            {
                "name": cls,
                "unit": "pod",
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
