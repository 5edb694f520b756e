"""The backend of worker processes: one per slot of a node, warm, and replaced when one dies."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trimtab.clusters.heartbeats import BEAT_S, CUT_S
from trimtab.clusters.peak_memory import machine_gib
from trimtab.clusters.pool_sizes import IDLE_S, PoolSizes
from trimtab.clusters.processes.large_values import INLINE_BYTES, Spool, make_spool
from trimtab.clusters.processes.wire import Setup
from trimtab.clusters.processes.worker_process import WorkerProcess
from trimtab.errors import UsageError
from trimtab.live.stage_backend import (
    Argument,
    Attempt,
    Cause,
    NodeChange,
    Outcome,
    Ref,
    StageCode,
    StageDemand,
    StageError,
    StageNode,
)

START_S = 60.0  # for a worker process to be ready
VALUES_FRAC = 0.5  # of what is free where large values are: the rest is for attempts that run, and others


class Processes:
    """Worker processes of this machine. Each runs one attempt at a time and keeps what it has loaded."""

    def __init__(
        self,
        nodes: Sequence[StageNode] = (),
        *,
        inline_bytes: int = INLINE_BYTES,
        cut_s: float = CUT_S,
        idle_s: float = IDLE_S,
        season_s: float = 0.0,
    ) -> None:
        """Nothing starts yet.

        Args:
            nodes: default is one with a slot per core. One that does not count its memory has the machine's.
            cut_s: silence after which a worker is lost.
            idle_s: after which an idle worker ends, of a node that keeps fewer than it has slots.
            season_s: after which arrivals repeat, for such a node to grow before; 0 = its queue decides.
        """
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self._nodes = tuple(nodes) or (StageNode("local", slots=cores),)
        if len(self._nodes) == 1 and "memory_gib" not in (only := self._nodes[0]).capacity:
            self._nodes = (replace(only, capacity={**only.capacity, "memory_gib": machine_gib()}),)
        self._workers: list[list[WorkerProcess]] = [[] for _ in self._nodes]
        self._starting = [0] * len(self._nodes)
        self._ending: set[WorkerProcess] = set()
        self._inline_bytes, self._cut_s = inline_bytes, cut_s
        self._idle_s, self._season_s = idle_s, season_s
        self._tasks: set[asyncio.Task[None]] = set()
        self._at: dict[Attempt, WorkerProcess] = {}
        self._is_open = False

    @property
    def nodes(self) -> Sequence[StageNode]:
        """The nodes."""
        return self._nodes

    async def open(self, stages: Sequence[StageCode], on_change: Callable[[NodeChange], None]) -> None:
        """Start all workers. Raises UsageError if they do not start."""
        self._on_change = on_change
        self._timeouts_s = {stage.name: stage.timeout_s for stage in stages}
        folder = make_spool()
        self._spool = Spool(folder, self._inline_bytes)
        self._value_bytes = VALUES_FRAC * self._spool.free_bytes
        self._setup = Setup(tuple(stages), str(folder), self._inline_bytes, str(Path.cwd()))
        self._sizes = PoolSizes(
            self._nodes, stages, self._idle_s, self._workers, self._starting,
            is_idle=lambda worker: worker.is_reachable and not worker.load,
            start=lambda node: self._spawn(self._add_worker(node)),
            end=self._end_worker,
            season_s=self._season_s,
        )  # fmt: skip
        self._is_open = True
        began_s = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(START_S):
                starts = [self._start_worker(j) for j, n in enumerate(self._nodes) for _ in range(n.least)]
                for j, worker in await asyncio.gather(*starts):
                    self._workers[j].append(worker)
        except (OSError, TimeoutError) as error:
            await self.close()
            raise UsageError(f"worker processes do not start: {error}", field="processes") from error
        self._sizes.start_s = asyncio.get_running_loop().time() - began_s
        self._spawn(self._watch())

    @property
    def value_bytes(self) -> float:
        """The most bytes of large values in the memory that holds them."""
        return self._value_bytes

    def follow_queue(self, demand: Callable[[], Mapping[str, StageDemand]]) -> None:
        """Let pools grow and shrink."""
        for j, node in enumerate(self._nodes):
            if node.least < node.slots:
                self._on_change(NodeChange(j, places=(node.least - node.slots) * node.depth))
        self._spawn(self._sizes.follow(demand))

    async def _start_worker(self, node: int) -> tuple[int, WorkerProcess]:
        worker = WorkerProcess(
            self._timeouts_s,
            lambda lost: self._on_lost(node, lost),
            lambda reached: self._change(node, reached, 1),
            lambda outcome: self.release(outcome.values),
        )
        await worker.start(self._setup, self._nodes[node].name)
        try:
            await worker.ready
        except asyncio.CancelledError:
            await worker.stop()
            raise
        return node, worker

    def start(self, node: int, attempt: Attempt, inputs: Sequence[Argument]) -> Awaitable[Outcome]:
        """Run an attempt on the worker that has least to do; of idle ones, on one that has its stage."""
        workers = [worker for worker in self._workers[node] if worker.is_reachable]
        if not workers:
            lost: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
            lost.set_result(Outcome(error=StageError(Cause.WORKER_LOST, "", "no worker is left")))
            return lost
        worker = min(workers, key=lambda w: (w.load, attempt.stage not in w.loaded))
        self._at[attempt] = worker
        outcome = worker.send(attempt, inputs)
        outcome.add_done_callback(lambda _: self._at.pop(attempt, None))
        return outcome

    def cancel(self, attempt: Attempt) -> None:
        """Stop an attempt."""
        if (worker := self._at.get(attempt)) is not None:
            worker.cancel(attempt)

    def kill(self, attempt: Attempt) -> None:
        """Kill the process of an attempt: for tests of faults."""
        if (worker := self._at.get(attempt)) is not None:
            worker.kill(StageError(Cause.WORKER_LOST))

    @property
    def pids(self) -> list[int]:
        """The processes of all workers."""
        return [worker.pid for workers in self._workers for worker in workers]

    def _on_lost(self, node: int, worker: WorkerProcess) -> None:
        """A worker has died: another one takes its place."""
        if worker not in self._workers[node]:
            return
        if worker.is_reachable:
            self._change(node, worker, -1)
        self._workers[node].remove(worker)
        if self._is_open:
            self._spawn(self._add_worker(node))

    def _change(self, node: int, worker: WorkerProcess, workers: int) -> None:
        """A node has a worker more or less."""
        if self._is_open and worker in self._workers[node]:
            self._on_change(NodeChange(node, places=workers * self._nodes[node].depth))

    async def _watch(self) -> None:
        """Cut off the workers that give no sign of life."""
        loop = asyncio.get_running_loop()
        looked_s = loop.time()
        while True:
            await asyncio.sleep(BEAT_S)
            now_s = loop.time()
            was_held_up, looked_s = now_s - looked_s > 2.0 * BEAT_S, now_s
            for j, workers in enumerate(self._workers):
                for worker in workers:
                    if was_held_up:  # this process itself: beats may wait to be read
                        worker.silence.heard(now_s)
                    elif worker.is_reachable and worker.silence.lasted_s(now_s) >= self._cut_s:
                        self._change(j, worker, -1)
                        worker.cut_off()

    async def _add_worker(self, node: int) -> None:
        self._starting[node] += 1
        try:
            worker = await self._started_worker(node)
        finally:
            self._starting[node] -= 1
        self._workers[node].append(worker)
        self._change(node, worker, 1)

    async def _started_worker(self, node: int) -> WorkerProcess:
        delay_s, loop = 0.1, asyncio.get_running_loop()
        while True:
            began_s = loop.time()
            try:
                _, worker = await self._start_worker(node)
            except OSError:
                await asyncio.sleep(delay_s)
                delay_s = min(5.0, 2.0 * delay_s)
                continue
            self._sizes.start_s = loop.time() - began_s
            return worker

    def _end_worker(self, node: int, worker: WorkerProcess) -> None:
        """A worker is not needed any more."""
        self._change(node, worker, -1)
        self._workers[node].remove(worker)
        self._ending.add(worker)
        self._spawn(self._ended(worker))

    async def _ended(self, worker: WorkerProcess) -> None:
        await worker.stop()
        self._ending.discard(worker)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def put(self, data: bytes) -> Ref:
        """Make a value known to all workers."""
        return self._spool.write(data)

    async def get(self, ref: Ref) -> bytes:
        """The bytes of a value."""
        return bytes(self._spool.read(ref))

    def release(self, refs: Sequence[Ref]) -> None:
        """Delete values."""
        for ref in refs:
            self._spool.drop(ref)

    async def close(self) -> None:
        """Kill all workers, and delete the values."""
        if not self._is_open:
            return
        self._is_open = False
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)  # workers that are starting end first
        await asyncio.gather(*(w.stop() for workers in (*self._workers, self._ending) for w in workers))
        self._workers = [[] for _ in self._nodes]
        self._spool.remove()
