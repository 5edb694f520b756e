"""The backend of worker processes: one per slot of a node, warm, and replaced when one dies.

They are processes of this machine, or of the nodes of another host (`trimtab.live.program_host`). Values are
kept on this machine; to workers elsewhere they go along with attempts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from trimtab.clusters.code_by_value import by_value
from trimtab.clusters.heartbeats import BEAT_S, CUT_S
from trimtab.clusters.node_places import SPARE_NODES, NodePlaces
from trimtab.clusters.peak_memory import machine_gib
from trimtab.clusters.pool_sizes import IDLE_S
from trimtab.clusters.processes.far_values import carried, kept
from trimtab.clusters.processes.large_values import INLINE_BYTES, Spool, make_spool
from trimtab.clusters.processes.wire import Setup
from trimtab.clusters.processes.worker_process import WorkerProcess, worker_program
from trimtab.clusters.worker_pools import WorkerPools
from trimtab.errors import UsageError
from trimtab.live.program_host import Host
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
    ValueLost,
)
from trimtab.live.this_machine import ThisMachine

START_S = 60.0  # for all worker processes to be ready
FAR_START_S = 600.0  # on nodes of another host, which may fetch an image first
VALUES_FRAC = 0.5  # of what is free where large values are: the rest is for attempts that run, and others


class Processes:
    """Worker processes. Each runs one attempt at a time and keeps what it has loaded."""

    def __init__(
        self,
        nodes: Sequence[StageNode] = (),
        *,
        host: Host | None = None,
        inline_bytes: int = INLINE_BYTES,
        cut_s: float = CUT_S,
        idle_s: float = IDLE_S,
        season_s: float = 0.0,
        spare_nodes: int = SPARE_NODES,
    ) -> None:
        """Nothing starts yet.

        Args:
            nodes: default is the host's. If one has all of this machine, it has its memory too.
            host: where they are; default is this machine, with a slot per core.
            cut_s: silence after which a worker is lost.
            idle_s: after which an idle worker ends, of a node that keeps fewer than it has slots.
            season_s: after which arrivals repeat, for such a node to grow before; 0 = its queue decides.
            spare_nodes: how many more nodes of each kind may come, if the host's are not on this machine.
        """
        self._host: Host = ThisMachine() if host is None else host
        self._is_here = not self._host.driver_address
        self._given, self._spares = tuple(nodes), 0 if self._is_here else spare_nodes
        self._found: NodePlaces | None = None
        self._inline_bytes, self._cut_s = inline_bytes, cut_s
        self._idle_s, self._season_s = idle_s, season_s
        self._is_open = False

    @property
    def _places(self) -> NodePlaces:
        if self._found is None:
            self._found = NodePlaces(self._host, self._given, self._spares)
            nodes = self._found.nodes
            if self._is_here and len(nodes) == 1 and "memory_gib" not in (only := nodes[0]).capacity:
                nodes[0] = replace(only, capacity={**only.capacity, "memory_gib": machine_gib()})
        return self._found

    @property
    def nodes(self) -> Sequence[StageNode]:
        """The nodes. Asks the host for them at first."""
        return self._places.nodes

    def host_address(self) -> str:
        """Where workers reach this machine; empty = they are on it."""
        return self._host.driver_address

    async def open(self, stages: Sequence[StageCode], on_change: Callable[[NodeChange], None]) -> None:
        """Start all workers. Raises UsageError if they do not start."""
        self._timeouts_s = {stage.name: stage.timeout_s for stage in stages}
        folder = make_spool()
        self._spool = Spool(folder, self._inline_bytes)
        self._value_bytes = VALUES_FRAC * self._spool.free_bytes
        codes = stages if self._is_here else [by_value(code) for code in stages]
        spool = str(folder) if self._is_here else ""
        self._setup = Setup(tuple(codes), spool, self._inline_bytes, str(Path.cwd()))
        self.pools = WorkerPools(
            self.nodes, stages, self._started, on_change,
            idle_s=self._idle_s, season_s=self._season_s, start_s=START_S if self._is_here else FAR_START_S,
        )  # fmt: skip
        self._is_open = True
        try:
            await self.pools.open(self._places.vacant)
        except (OSError, TimeoutError) as error:
            await self.close()
            raise UsageError(f"worker processes do not start: {error}", field="processes") from error
        self._places.follow(self.pools, {name for stage in stages for name in stage.labels})
        self.pools.spawn(self._watch())

    @property
    def value_bytes(self) -> float:
        """The most bytes of large values in the memory that holds them."""
        return self._value_bytes

    def follow_queue(self, demand: Callable[[], Mapping[str, StageDemand]]) -> None:
        """Let pools grow and shrink."""
        self.pools.follow_queue(demand)

    async def _started(self, node: int) -> WorkerProcess:
        """A worker that is ready. Raises OSError."""
        at = self.nodes[node]
        machine = self._places.machine(at)
        if machine is None:
            raise ConnectionError(f"machine {at.machine} is gone")
        worker = WorkerProcess(
            self._timeouts_s,
            lambda lost: self.pools.lost(node, lost),
            lambda reached: self.pools.reached(node, reached),
            lambda outcome: self.release(outcome.values),
        )
        program = worker_program(at, is_here=self._is_here)
        await worker.start(self._host, machine, program, self._setup)
        try:
            await worker.ready
        except asyncio.CancelledError:
            await worker.stop()
            raise
        return worker

    def start(self, node: int, attempt: Attempt, inputs: Sequence[Argument]) -> Awaitable[Outcome]:
        """Run an attempt on the worker that has least to do; of idle ones, on one that has its stage."""
        if not self._is_here:
            return self._started_far(node, attempt, inputs)
        return self._sent(node, attempt, inputs)

    def _sent(self, node: int, attempt: Attempt, inputs: Sequence[Argument]) -> asyncio.Future[Outcome]:
        worker = self.pools.chosen(node, attempt)
        if worker is None:
            lost: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
            lost.set_result(Outcome(error=StageError(Cause.WORKER_LOST, "", "no worker is left")))
            return lost
        outcome = worker.send(attempt, inputs)
        outcome.add_done_callback(lambda _: self.pools.over(attempt))
        return outcome

    async def _started_far(self, node: int, attempt: Attempt, inputs: Sequence[Argument]) -> Outcome:
        """The same where workers do not reach the values of this machine."""
        try:
            told = carried(attempt, inputs, self._spool)
        except ValueLost as error:
            return Outcome(error=StageError(Cause.INPUT_LOST, "ValueLost", str(error)))
        outcome = await self._sent(node, *told)
        try:
            return kept(outcome, self._spool)
        except OSError as error:
            return Outcome(error=StageError(Cause.DISK_FULL, type(error).__name__, str(error)))

    def cancel(self, attempt: Attempt) -> None:
        """Stop an attempt."""
        if (worker := self.pools.worker_of(attempt)) is not None:
            worker.cancel(attempt)

    def kill(self, attempt: Attempt) -> None:
        """Kill the process of an attempt: for tests of faults."""
        if (worker := self.pools.worker_of(attempt)) is not None:
            worker.kill(StageError(Cause.WORKER_LOST))

    @property
    def pids(self) -> list[int]:
        """The processes of all workers."""
        return self.pools.pids

    async def _watch(self) -> None:
        """Cut off the workers that give no sign of life."""
        loop = asyncio.get_running_loop()
        looked_s = loop.time()
        while True:
            await asyncio.sleep(BEAT_S)
            now_s = loop.time()
            was_held_up, looked_s = now_s - looked_s > 2.0 * BEAT_S, now_s
            for j, workers in enumerate(self.pools.workers):
                for worker in workers:
                    if was_held_up:  # this process itself: beats may wait to be read
                        worker.silence.heard(now_s)
                    elif worker.is_reachable and worker.silence.lasted_s(now_s) >= self._cut_s:
                        worker.cut_off()
                        self.pools.reached(j, worker)

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
        """Kill all workers, delete the values, and leave the host."""
        if self._is_open:
            self._is_open = False
            await self.pools.close()
            self._spool.remove()
        await self._host.close()
