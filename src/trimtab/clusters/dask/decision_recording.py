"""A trace of the tasks that a scheduler placed, as the gateway's recordings.

A task is a request, a worker a node and a type of its own; a class is a prefix with the resources that its
tasks ask for and the workers that may run them. Keys of tasks and addresses of workers are not in a trace.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any, Final, NamedTuple

from trimtab.clusters.dask.worker_choice import RESOURCES, capacity_of, demand_of, gpus_of
from trimtab.clusters.placement.recording_file import RecordedNode, RunRecording

_OUTCOMES: Final = {
    "memory": "done",
    "erred": "failed",
}  # by the state that a task goes to; else it runs again


class _Begun(NamedTuple):
    at_s: float
    cls: str
    node: str
    candidates: Sequence[int]
    priority: int


class TaskRecording:
    """Writes one file; `close` writes the rest."""

    def __init__(self, folder: Path, policy: str, seed: int, workers: Mapping[str, Any]) -> None:
        """Raises UsageError where the folder cannot be written."""
        self._begun_s = time.monotonic()
        self._file = RunRecording(folder, policy, resources=RESOURCES, unit="task", seed=seed, field="record")
        self._names: dict[str, str] = {}  # address → name, of all that were there
        self._seen_s: dict[Any, float] = {}  # key → …
        self._begun: dict[Any, _Begun] = {}
        self._retries: dict[Any, int] = {}
        self._file.head([self._node(ws) for ws in workers.values()])

    def workers_changed(self, workers: Mapping[str, Any]) -> None:
        """Note workers that came or went."""
        there, at_s = {str(ws.name): ws for ws in workers.values()}, self._now_s()
        for name, ws in there.items():
            node = self._node(ws)
            if name not in self._file.nodes:
                self._file.add(node, at_s)
            elif not self._file.up[name]:
                self._file.mark(name, "up", at_s)
        for name, is_up in list(self._file.up.items()):
            if is_up and name not in there:
                self._file.mark(name, "removed", at_s)

    def seen(self, key: Any) -> None:
        """A task waits."""
        self._seen_s.setdefault(key, self._now_s())

    def began(self, task: Any, address: str, ranked: Sequence[str], allowed: Set[str] | None) -> None:
        """A task was given to a worker, which was the first of these."""
        gpus = gpus_of(task.resource_restrictions)
        suited = list(self._names.values()) if allowed is None else [self._names[a] for a in allowed]
        needs = ", ".join(f"{amount:g} {name}" for name, amount in (task.resource_restrictions or {}).items())
        text = f"{task.prefix.name}, {needs}" if needs else str(task.prefix.name)
        cls = self._file.class_of(text, demand_of(gpus), sorted(suited))
        candidates = [self._file.nodes[self._names[a]] for a in ranked]
        urgency = -int(task.priority[0])
        self._begun[task.key] = _Begun(self._now_s(), cls, self._names[address], candidates, urgency)

    def ended(self, key: Any, finish: str) -> None:
        """A task has left its worker."""
        if (outcome := _OUTCOMES.get(finish)) is not None:
            self._write(key, outcome)
        elif self._begun.pop(key, None) is not None:
            self._retries[key] = self._retries.get(key, 0) + 1

    def forget(self, key: Any) -> None:
        """A task has gone before it ended."""
        self._seen_s.pop(key, None)
        self._begun.pop(key, None)
        self._retries.pop(key, None)

    def restarted(self) -> None:
        """All tasks have gone."""
        for kept in (self._seen_s, self._begun, self._retries):
            kept.clear()

    def close(self) -> None:
        """Write what still runs, and what was learned; then close the file."""
        for key in list(self._begun):
            self._write(key, "unknown")
        self._file.close(self._now_s())

    def _now_s(self) -> float:
        return time.monotonic() - self._begun_s

    def _node(self, ws: Any) -> RecordedNode:
        name = self._names[ws.address] = str(ws.name)
        return RecordedNode(name, name, ws.nthreads, capacity_of(ws))

    def _write(self, key: Any, outcome: str) -> None:
        begun, seen_s = self._begun.pop(key, None), self._seen_s.pop(key, None)
        retries = self._retries.pop(key, 0)
        if begun is not None and seen_s is not None:
            self._file.ran(
                begun.cls,
                begun.node,
                outcome,
                seen_s=seen_s,
                begun_s=begun.at_s,
                ended_s=self._now_s(),
                priority=begun.priority,
                candidates=begun.candidates,
                retries=retries,
            )
