"""Holds the tasks of a scheduler of Dask, and releases each to the worker that a policy chooses.

A task is held in Dask's state `no-worker` until a worker has a free thread, and the resources that the task
asks for. It leaves it by the scheduler's own transition, restricted to that worker. What is free is read from
the scheduler's state each time, so tasks that others placed count too.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Set
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from trimtab.clusters.dask.decision_recording import TaskRecording
from trimtab.clusters.dask.restrictions import NOWHERE, Asked, Only, asked_of, give_back, restrict
from trimtab.clusters.dask.worker_choice import Task, WorkerChoice, gpus_of

TOPIC: Final = "trimtab"  # of the events that a client reads by `client.get_events`
_ROUNDING: Final = 1e-9  # sums of fractions of a resource
_LEAST_PRIORITY, _MOST_PRIORITY = -(1 << 15), (1 << 15) - 1

logger = logging.getLogger(__name__)


class Kind(NamedTuple):
    """Tasks that the same workers may run."""

    prefix: str
    asked: Asked
    resources: frozenset[tuple[str, float]]


class Held(NamedTuple):
    """A task that may run as soon as a worker is chosen."""

    order: tuple[float, ...]
    serial: int
    task: Any
    kind: Kind


class Placer:
    """One policy over one scheduler.

    Args:
        scheduler: Dask's; all calls come from its event loop.
        is_registered: whether Dask still calls this; else tasks are given back to Dask.
    """

    def __init__(
        self,
        scheduler: Any,
        choice: WorkerChoice,
        label: str,
        *,
        orders: bool,
        recording: TaskRecording | None,
        is_registered: Callable[[], bool],
    ) -> None:
        self._scheduler, self._choice, self._label, self._orders = scheduler, choice, label, orders
        self._recording, self._is_registered = recording, is_registered
        self._ready: dict[Any, Held] = {}  # key → …
        self._waiting: dict[Kind, list[Held]] = defaultdict(list)  # heaps; what is not in `_ready` is void
        self._allowed: dict[Kind, Set[str] | None] = {}  # None = all workers
        self._running: set[Any] = set()  # workers when `_allowed` was found out
        self._told: set[tuple[Kind, str]] = set()  # why tasks can't be placed
        self._serial = 0
        self._is_due = self.is_over = False
        self._loop = asyncio.get_running_loop()

    # What Dask tells.

    def adopt(self) -> None:
        """Take over the tasks that are there. What a worker has already got stays with it."""
        tasks = [ts for ts in self._scheduler.tasks.values() if _is_placeable(ts)]
        for ts in tasks:
            if ts.processing_on is not None:
                restrict(ts, ts.processing_on.address)
            else:
                restrict(ts)
        queued = {ts.key: "released" for ts in tasks if ts.state == "queued"}
        self._scheduler.transitions(queued, _stimulus())
        for ts in list(self._scheduler.tasks.values()):
            if ts.processing_on is not None:
                self._choice.placed(ts.key, _told(ts), ts.processing_on.address)
            elif ts.state == "no-worker" and _is_placeable(ts):
                self._hold(ts)

    def graph_came(self, keys: Iterable[Any]) -> None:
        """Hold tasks before Dask places them: new ones, and those that a graph restricts again."""
        for key in keys:
            ts = self._scheduler.tasks[key]
            if not _is_placeable(ts):
                continue
            if ts.processing_on is not None:
                restrict(ts, ts.processing_on.address)
                continue
            restrict(ts)
            if key in self._ready:
                self._hold(ts)

    def changed(self, key: Any, start: str, finish: str, told: dict[str, Any]) -> None:
        """A task has changed its state."""
        ts = self._scheduler.tasks[key]
        self._ready.pop(key, None)
        if start == "processing" and finish != "processing":
            self._left(ts, finish, told)
        if finish == "processing":
            address = ts.processing_on.address
            self._choice.placed(key, _told(ts), address)
        elif finish == "no-worker" and _is_placeable(ts):
            self._hold(ts)
        elif finish in ("forgotten", "erred") and self._recording is not None:
            self._recording.forget(key)

    def _left(self, ts: Any, finish: str, told: dict[str, Any]) -> None:
        """A task has left its worker: it is held before it may run again."""
        self._choice.ended(ts.key)
        if isinstance(ts.worker_restrictions, Only):
            restrict(ts)
        spans = [each for each in told.get("startstops") or () if each["action"] == "compute"]
        ws = self._scheduler.workers.get(told.get("worker"))
        if finish == "memory" and spans and ws is not None:
            self._choice.learn(ts.prefix.name, ws.name, sum(each["stop"] - each["start"] for each in spans))
        if self._recording is not None:
            self._recording.ended(ts.key, finish)
        self.wake()

    def workers_changed(self) -> None:
        """Workers came or went."""
        self._choice.workers_changed()
        self._running = set()
        if self._recording is not None:
            self._recording.workers_changed(self._scheduler.workers)
        self.wake()

    def restarted(self) -> None:
        """The scheduler has forgotten all tasks."""
        self._ready.clear()
        self._waiting.clear()
        self._allowed.clear()
        self._told.clear()
        self._choice.clear()
        if self._recording is not None:
            self._recording.restarted()

    def let_go(self) -> None:
        """Give tasks back to Dask, which places those that wait at once."""
        self.end()
        for ts in self._scheduler.tasks.values():
            if isinstance(ts.worker_restrictions, Only):
                give_back(ts)
        waiting = sorted(self._scheduler.unrunnable, key=lambda ts: ts.priority, reverse=True)
        self._scheduler.transitions({ts.key: "processing" for ts in waiting}, _stimulus())

    def end(self) -> None:
        """Decide no more, and end the recording. Tasks stay as they are."""
        self.is_over = True
        if self._recording is not None:
            self._recording.close()
            self._recording = None

    def teardown(self) -> None:
        """The scheduler ends: it tells extensions, also one whose plugin was taken out a moment before."""
        self.end()

    # Decisions.

    def _hold(self, ts: Any) -> None:
        """A task may run: it waits for a decision."""
        self._choice.ended(ts.key)
        if NOWHERE not in (ts.worker_restrictions or ()):
            restrict(ts)
        needs = frozenset((ts.resource_restrictions or {}).items())
        kind = Kind(ts.prefix.name, asked_of(ts), needs)
        order = tuple(ts.priority)
        if self._orders:
            order = (order[0], self._choice.key(_told(ts)), *order[1:])
        self._serial += 1
        held = self._ready[ts.key] = Held(order, self._serial, ts, kind)
        heapq.heappush(self._waiting[kind], held)
        if self._recording is not None:
            self._recording.seen(ts.key)
        self.wake()

    def wake(self) -> None:
        """Decide once the scheduler is done with what it does now."""
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self.turn)

    def turn(self) -> None:
        """Decide about all tasks that wait; if anything is wrong with that, Dask goes on alone."""
        self._is_due = False
        if self.is_over:
            return
        if not self._is_registered():
            self.let_go()
            return
        try:
            self._decide()
        except Exception:
            logger.exception("%s: a decision failed; Dask places tasks by itself from now on", TOPIC)
            self._scheduler.log_event(TOPIC, {"action": "failed", "policy": self._label})
            self.let_go()

    def _decide(self) -> None:
        scheduler = self._scheduler
        if scheduler.running != self._running:
            self._running = set(scheduler.running)
            self._allowed.clear()
            self._told.clear()
        room = self._room()
        taken: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        chosen: list[tuple[Held, str]] = []
        heads = [head for kind in list(self._waiting) if (head := self._head(kind)) is not None]
        heapq.heapify(heads)
        while heads:
            held = heapq.heappop(heads)
            able = self._able(held, room, taken)
            address = self._choice.choose(held.task.key, _told(held.task), able) if able else None
            if address is None:
                continue
            chosen.append((held, address))
            del self._ready[held.task.key]
            room[address] -= 1
            if not room[address]:
                del room[address]
            for name, amount in held.kind.resources:
                taken[address][name] += amount
            if (head := self._head(held.kind)) is not None:
                heapq.heappush(heads, head)
        if chosen:
            self._release(chosen)
        for kind in self._allowed.keys() - self._waiting.keys():
            del self._allowed[kind]
        self._keep_from_timeout()

    def _release(self, chosen: list[tuple[Held, str]]) -> None:
        """Hand tasks to their workers, most urgent first."""
        for held, address in chosen:
            restrict(held.task, address)
            if self._recording is not None:
                ranked = self._choice.candidates(held.task.key)
                names = [self._choice.addresses[j] for j in ranked]
                self._recording.began(held.task, address, names, self._allowed[held.kind])
        last_first = {held.task.key: "processing" for held, _ in reversed(chosen)}
        self._scheduler.transitions(last_first, _stimulus())

    def _head(self, kind: Kind) -> Held | None:
        """The most urgent task of a kind."""
        heap = self._waiting[kind]
        while heap:
            if self._ready.get(heap[0].task.key) is heap[0]:
                return heap[0]
            heapq.heappop(heap)
        del self._waiting[kind]
        return None

    def _room(self) -> dict[str, int]:
        """Free threads of workers that have any. A task that has left its thread (`secede`) takes none."""
        found = {}
        for ws in self._scheduler.running:
            for ts in ws.long_running:
                self._choice.ended(ts.key)
            left = ws.nthreads - len(ws.processing) + len(ws.long_running)
            if left > 0:
                found[ws.address] = left
        return found

    def _able(self, held: Held, room: dict[str, int], taken: dict[str, dict[str, float]]) -> Set[str]:
        """The workers that could begin with a task now."""
        kind = held.kind
        if kind not in self._allowed:
            valid = self._valid(kind)
            self._allowed[kind] = valid
            if (valid is not None and not valid) or not self._scheduler.running:
                self._tell(kind, self._why(kind))
        allowed = self._allowed[kind]
        able = room.keys() if allowed is None else allowed & room.keys()
        if not kind.resources:
            return able
        workers = self._scheduler.workers
        return {
            address
            for address in able
            if all(
                workers[address].resources.get(name, 0)
                - workers[address].used_resources.get(name, 0)
                - taken[address][name]
                >= amount - _ROUNDING
                for name, amount in kind.resources
            )
        }

    def _valid(self, kind: Kind) -> Set[str] | None:
        """The running workers that Dask would allow; None = all."""
        asked, resources = kind.asked, dict(kind.resources)
        told = SimpleNamespace(
            worker_restrictions=asked.workers, host_restrictions=asked.hosts, resource_restrictions=resources
        )
        valid = self._scheduler.valid_workers(told)
        if valid is not None and not valid and asked.is_loose:
            told.worker_restrictions = told.host_restrictions = None
            valid = self._scheduler.valid_workers(told)
        return None if valid is None else {ws.address for ws in valid}

    def _why(self, kind: Kind) -> str:
        """Why no worker may run tasks of a kind."""
        workers = self._scheduler.workers
        if not workers:
            return "there are no workers"
        if not self._scheduler.running:
            return f"none of the {len(workers)} workers takes tasks: they are paused, or about to close"
        asked = kind.asked
        named = self._valid(kind._replace(resources=frozenset()))
        if named is not None and not named:
            names = ", ".join(sorted((asked.workers or frozenset()) | (asked.hosts or frozenset())))
            return f"none of the workers that it is restricted to is there, or takes tasks: {names}"
        those = [ws for a, ws in workers.items() if named is None or a in named]
        whys = []
        for name, amount in sorted(kind.resources):
            most = max(ws.resources.get(name, 0) for ws in those)
            if most < amount:
                whys.append(f"it needs {amount:g} {name}, and {len(those)} workers have at most {most:g}")
        return "; ".join(whys) or "no worker has all of its resources"

    def _tell(self, kind: Kind, why: str) -> None:
        """Report that tasks of a kind can't be placed, once for as long as workers stay the same."""
        if (kind, why) in self._told:
            return
        self._told.add((kind, why))
        keys = [key for key, held in self._ready.items() if held.kind == kind]
        logger.warning("%d tasks %r can't be placed: %s", len(keys), kind.prefix, why)
        told = {"action": "unplaceable", "prefix": kind.prefix, "reason": why, "tasks": len(keys)}
        self._scheduler.log_event(TOPIC, {**told, "keys": [str(key) for key in keys[:20]]})

    def _keep_from_timeout(self) -> None:
        """Tasks that only wait for their turn have not been without a worker (`no-workers-timeout`)."""
        if self._scheduler.no_workers_timeout is None:
            return
        unrunnable, now_s = self._scheduler.unrunnable, time.monotonic()
        for held in self._ready.values():
            if held.task in unrunnable and self._allowed.get(held.kind, ()) != set():
                del unrunnable[held.task]
                unrunnable[held.task] = now_s


def _is_placeable(ts: Any) -> bool:
    """Whether it is for trimtab: data that clients sent never runs, and an actor needs no thread for long."""
    return ts.run_spec is not None and not ts.actor


def _told(ts: Any) -> Task:
    """What the policy is told of a task."""
    prefix, urgency = ts.prefix, -int(ts.priority[0]) if ts.priority else 0
    priority = max(_LEAST_PRIORITY, min(_MOST_PRIORITY, urgency))
    return Task(prefix.name, gpus_of(ts.resource_restrictions), priority, prefix.duration_average)


def _stimulus() -> str:
    return f"{TOPIC}-{time.time()}"
