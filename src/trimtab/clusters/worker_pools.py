"""The workers of all nodes of a backend: started, given attempts, replaced when one dies, ended when idle.

What a worker is, and how it starts and ends, the backend knows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

from trimtab.clusters.pool_sizes import PoolSizes
from trimtab.live.stage_backend import Attempt, NodeChange, StageCode, StageDemand, StageNode

_LONGEST_WAIT_S: Final = 5.0  # between two tries to start a worker


class PoolWorker(Protocol):
    """A worker of some backend."""

    is_reachable: bool

    @property
    def load(self) -> int:
        """Attempts that it has and has not ended."""

    @property
    def loaded(self) -> Collection[str]:
        """Stages that it has run."""

    @property
    def pid(self) -> int:
        """Of its process; 0 = not known here."""

    async def stop(self) -> None:
        """End it."""


W = TypeVar("W", bound=PoolWorker)


class WorkerPools(Generic[W]):
    """A pool of warm workers for each node.

    Args:
        nodes: a node at each place; their owner may put others there.
        start: starts a worker of a node, and returns when it is ready. Raises OSError.
        changed: told of places that came or went.
        idle_s: after which an idle worker ends, of a node that keeps fewer than it has slots.
        season_s: after which arrivals repeat; 0 = unknown.
        start_s: the most that all workers take to start.
    """

    def __init__(
        self,
        nodes: Sequence[StageNode],
        stages: Sequence[StageCode],
        start: Callable[[int], Awaitable[W]],
        changed: Callable[[NodeChange], None],
        *,
        idle_s: float,
        season_s: float,
        start_s: float,
    ) -> None:
        self._nodes, self._start, self._changed, self._start_s = nodes, start, changed, start_s
        self.workers: list[list[W]] = [[] for _ in nodes]
        self.starting = [0] * len(nodes)
        self.is_there = [True] * len(nodes)  # a node at this place
        self.is_up = [True] * len(nodes)  # and it takes new attempts
        self._at: dict[Attempt, W] = {}
        self._ending: set[W] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.is_open = False
        self.sizes = PoolSizes(
            nodes, stages, idle_s, self.workers, self.starting,
            is_idle=lambda worker: worker.is_reachable and not worker.load,
            start=self.grow,
            end=self.end,
            season_s=season_s,
        )  # fmt: skip

    async def open(self, vacant: Collection[int] = ()) -> None:
        """Start all workers; `vacant` are places without a node. Raises OSError, TimeoutError."""
        self.is_open = True
        began_s = asyncio.get_running_loop().time()
        for j in vacant:
            node, self.is_there[j], self.is_up[j] = self._nodes[j], False, False
            self._changed(NodeChange(j, -node.slots * node.depth, is_up=False))
        at = [j for j, node in enumerate(self._nodes) if self.is_there[j] for _ in range(node.least)]
        async with asyncio.timeout(self._start_s):
            for j, worker in zip(at, await asyncio.gather(*map(self._start, at)), strict=True):
                self.workers[j].append(worker)
        self.sizes.start_s = asyncio.get_running_loop().time() - began_s

    def follow_queue(self, demand: Callable[[], Mapping[str, StageDemand]]) -> None:
        """Let pools grow and shrink."""
        for j, node in enumerate(self._nodes):
            if node.least < node.slots and self.is_there[j]:
                self._change(j, node.least - node.slots)
        self.spawn(self.sizes.follow(demand))

    # Attempts.

    def chosen(self, node: int, attempt: Attempt) -> W | None:
        """The worker that has least to do; of idle ones, one that has the stage. None: none can be reached.

        It has the attempt until `over`.
        """
        workers = [worker for worker in self.workers[node] if worker.is_reachable]
        if not workers:
            return None
        worker = min(workers, key=lambda w: (w.load, attempt.stage not in w.loaded))
        self._at[attempt] = worker
        return worker

    def over(self, attempt: Attempt) -> None:
        """An attempt has ended."""
        self._at.pop(attempt, None)

    def worker_of(self, attempt: Attempt) -> W | None:
        """The worker that has an attempt."""
        return self._at.get(attempt)

    @property
    def pids(self) -> list[int]:
        """The processes of all workers."""
        return [worker.pid for workers in self.workers for worker in workers]

    # Workers that come and go.

    def lost(self, node: int, worker: W) -> None:
        """A worker has died: another one takes its place."""
        if worker not in self.workers[node]:
            return
        self.workers[node].remove(worker)
        if worker.is_reachable:
            self._change(node, -1)
        if self.is_open:
            self.grow(node)

    def reached(self, node: int, worker: W) -> None:
        """A worker is out of reach, and gets no attempts, or it is back."""
        if worker in self.workers[node]:
            self._change(node, 1 if worker.is_reachable else -1)

    def end(self, node: int, worker: W) -> None:
        """A worker is not needed any more."""
        self.workers[node].remove(worker)
        if worker.is_reachable:
            self._change(node, -1)
        self._ending.add(worker)
        self.spawn(self._ended(worker))

    async def _ended(self, worker: W) -> None:
        await worker.stop()
        self._ending.discard(worker)

    def grow(self, node: int) -> None:
        """Start one more worker of a node that is there."""
        if self.is_there[node]:
            self.starting[node] += 1
            self.spawn(self._added(node))

    async def _added(self, node: int) -> None:
        delay_s, loop = 0.1, asyncio.get_running_loop()
        try:
            while self.is_there[node]:
                began_s = loop.time()
                try:
                    worker = await self._start(node)
                except OSError:  # its machine is gone, perhaps for good
                    await asyncio.sleep(delay_s)
                    delay_s = min(_LONGEST_WAIT_S, 2.0 * delay_s)
                    continue
                self.sizes.start_s = loop.time() - began_s
                self.workers[node].append(worker)
                self._change(node, 1)
                if not self.is_there[node]:
                    self.end(node, worker)
                return
        finally:
            self.starting[node] -= 1

    def switch(self, node: int, *, is_up: bool, name: str = "") -> None:
        """A node takes new attempts, or none; of this name, if another one has come to its place."""
        self.is_up[node] = is_up
        if self.is_open:
            self._changed(NodeChange(node, is_up=is_up, name=name))

    def come(self, node: int) -> None:
        """There is a node at a vacant place."""
        self.is_there[node] = True
        self.switch(node, is_up=True, name=self._nodes[node].name)
        for _ in range(self._nodes[node].least - len(self.workers[node]) - self.starting[node]):
            self.grow(node)

    def go(self, node: int) -> None:
        """The node at a place is gone, and its workers with it."""
        self.is_there[node] = False
        self.switch(node, is_up=False)
        for worker in list(self.workers[node]):
            self.end(node, worker)

    def _change(self, node: int, workers: int) -> None:
        if self.is_open:
            self._changed(NodeChange(node, workers * self._nodes[node].depth, self.is_up[node]))

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something on the side until the pools are closed."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """End all workers."""
        self.is_open = False
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)  # workers that are starting end first
        await asyncio.gather(*(w.stop() for workers in (*self.workers, self._ending) for w in workers))
        for workers in self.workers:
            workers.clear()
