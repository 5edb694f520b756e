"""The file of a recording of what ran, in the gateway's format: `trimtab compare --trace` reads it.

A run is a request; a class is what runs need and which nodes suit them. Estimates of a class are its mean
seconds on nodes of a type. Which runs there were, and which nodes, the caller tells.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np

from trimtab.errors import UsageError
from trimtab.traces.gateway_format import VERSION, NodeEvent, file_name, new_recording_id

_UNKNOWN_S: Final = 1.0  # of a class of which no run has ended


@dataclass(frozen=True, slots=True)
class RecordedNode:
    """A node as a recording tells it."""

    name: str
    type: str
    slots: int
    capacity: tuple[float, ...] = ()  # of each resource
    is_up: bool = True
    usd_per_hour: float = 0.0


def new_file(folder: Path, recording: str, field: str) -> int:
    """A new file of a recording in the folder, open for writing. Raises UsageError."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / file_name(recording, 0, 1)
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        expected = "a folder that can be written"
        raise UsageError(str(error), field=field, value=str(folder), expected=expected) from error


def line_of(fields: Mapping[str, Any]) -> bytes:
    """A line of the file."""
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def head_row(
    recording: str,
    started: datetime,
    policy: str,
    nodes: Sequence[Mapping[str, Any]],
    options: Mapping[str, Any],
    seed: int = 0,
) -> dict[str, Any]:
    """The first line of the file, with nodes of `node_row`."""
    return {
        "record": "head",
        "at_s": 0.0,
        "format": VERSION,
        "recording": recording,
        "worker": 0,
        "process": os.getpid(),
        "started_utc": started.isoformat(timespec="seconds"),
        "policy": policy,
        "shadow": "",
        "seed": seed,
        "nodes": nodes,
        "classes": [],
        "options": options,
    }


def node_row(idx: int, node: RecordedNode) -> dict[str, Any]:
    """A node at its position."""
    return {
        "idx": idx,
        "name": node.name,
        "type": node.type,
        "slots": node.slots,
        "max_tokens": 0,
        "health": "up" if node.is_up else "draining",
    }


class RunRecording:
    """Writes one file. Times are seconds since it began, as the caller counts them.

    Args:
        resources: by name, of which nodes have `capacity` and classes `demand`.
        unit: what a class counts, such as "pod".

    Raises UsageError where the folder cannot be written.
    """

    def __init__(
        self, folder: Path, policy: str, *, resources: Sequence[str], unit: str, seed: int = 0, field: str
    ) -> None:
        self._recording = new_recording_id()
        self._fd = new_file(folder, self._recording, field)
        self._policy, self._resources, self._unit, self._seed = policy, resources, unit, seed
        self.nodes: dict[str, int] = {}  # name → position
        self.up: dict[str, bool] = {}
        self._known: list[RecordedNode] = []  # by position
        self._classes: dict[tuple[Any, ...], str] = {}
        self._demand: dict[str, Sequence[float]] = {}
        self._served_by: dict[str, list[int]] = {}
        self._seconds: dict[tuple[str, str], list[float]] = defaultdict(list)  # (class, type) → of runs
        self.is_headed = False

    def head(self, nodes: Sequence[RecordedNode]) -> None:
        """Write the head, once all nodes are known."""
        self.is_headed = True
        rows = [self._row(node) for node in nodes]
        options = {"resources": "bound", "lookahead": 64, "lane_per_class": True}
        self._write(**head_row(self._recording, datetime.now(UTC), self._policy, rows, options, self._seed))

    def add(self, node: RecordedNode, at_s: float) -> None:
        """A node has come."""
        self._write(record="node", at_s=at_s, what="added", node=self._row(node))

    def mark(self, name: str, what: NodeEvent, at_s: float) -> None:
        """A node has changed."""
        self.up[name] = what == "up"
        self._write(record="node", at_s=at_s, what=what, node={"idx": self.nodes[name], "name": name})

    def class_of(self, text: str, demand: tuple[float, ...], suited: Sequence[str]) -> str:
        """The class of runs that take so much of each resource on one of these nodes; `text` describes it."""
        served_by = sorted(self.nodes[name] for name in suited if name in self.nodes)
        key = (text, *demand, *served_by)
        if key not in self._classes:
            same = sum(name.partition(" (")[0] == text for name in self._classes.values())
            name = self._classes[key] = f"{text} ({same + 1})" if same else text
            self._demand[name], self._served_by[name] = demand, served_by
        return self._classes[key]

    def ran(
        self,
        cls: str,
        node: str,
        outcome: str,
        *,
        seen_s: float,
        begun_s: float,
        ended_s: float,
        priority: int,
        **more: Any,
    ) -> None:
        """Write a run that a node has had. One on a node that nobody told of is left out."""
        if node not in self.nodes:
            return
        if outcome == "done":
            self._seconds[cls, self._known[self.nodes[node]].type].append(ended_s - begun_s)
        self._write(
            **{"class": cls},
            arrival_s=round(seen_s, 6),
            finish_s=round(ended_s, 6),
            started_s=round(begun_s, 6),
            wait_s=round(begun_s - seen_s, 6),
            service_s=round(ended_s - begun_s, 6),
            units=1.0,
            priority=priority,
            node=self.nodes[node],
            outcome=outcome,
            **more,
        )

    def never_ran(self, cls: str, *, seen_s: float, now_s: float, priority: int) -> None:
        """Write a run that still waits."""
        row = {"class": cls, "outcome": "refused", "status": 503, "units": 1.0}
        self._write(arrival_s=round(seen_s, 6), finish_s=round(now_s, 6), priority=priority, **row)

    def close(self, now_s: float) -> None:
        """Write what was learned; then close the file."""
        self._write_learned(round(now_s, 6))
        os.close(self._fd)

    def _write(self, **fields: Any) -> None:
        os.write(self._fd, line_of(fields))

    def _row(self, node: RecordedNode) -> dict[str, Any]:
        """A node with the next position."""
        self.nodes[node.name] = len(self._known)
        self._known.append(node)
        self.up[node.name] = node.is_up
        return node_row(self.nodes[node.name], node)

    def _write_learned(self, at_s: float) -> None:
        """Estimates of classes by type, and what nodes offer and runs take."""
        types = list(dict.fromkeys(node.type for node in self._known))
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
            resources=self._resources,
            capacity=[node.capacity for node in self._known],
            demand=self._demand,
            usd_per_hour=[node.usd_per_hour for node in self._known],
        )

    def _mean_s(self, cls: str, type_name: str) -> float:
        """Mean seconds on a type, else on any type."""
        own = self._seconds.get((cls, type_name)) or [
            each for (name, _), all_of in self._seconds.items() if name == cls for each in all_of
        ]
        return float(np.mean(own)) if own else _UNKNOWN_S
