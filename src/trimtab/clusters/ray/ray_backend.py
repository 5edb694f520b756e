"""The backend of Ray: a node is a pool of warm actors on one machine."""

from __future__ import annotations

import asyncio
import math
import os
import sys
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Final

import ray
from ray.exceptions import RayError

from trimtab.clusters.code_by_value import by_value
from trimtab.clusters.pool_sizes import IDLE_S
from trimtab.clusters.ray import connection, worker_placement
from trimtab.clusters.ray.actor_pools import ActorPools
from trimtab.clusters.ray.object_values import INLINE_BYTES, Bundle, Origin, Values, bundles_of
from trimtab.clusters.ray.ray_stage_metrics import RayStageMetrics
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
    ValueLost,
    in_one,
)

RESTORES: Final = 3  # times that the lost inputs of an attempt are made again
RESTORE_WAIT_S, RESTORE_POLL_S = 60.0, 0.1  # for a worker that makes lost inputs again
VALUES_FRAC: Final = 0.5  # of the object store: the rest is for attempts that run, and others
COPY_S: Final = 60.0  # for a copy of a value to be made
POLL_S: Final = 1.0  # how soon a value that is awaited is found to be lost


class Ray:
    """Actors on a Ray cluster. Each runs one attempt at a time and keeps what it has loaded.

    Args:
        nodes: the pools; `machine` is the name of a Ray node, or the beginning of its id, "local" the one
            that this process is connected to. Default: one for each machine, with a worker for each CPU.
        address: of a cluster to join ("ray://HOST:PORT", "HOST:PORT", "auto"). None = one of its own on this
            machine, whatever else runs here.
        runtime_env: of Ray, for the workers: packages, files, variables.
        dashboard: whether an own cluster has Ray's dashboard.
        idle_s: after which an idle worker ends, of a node that keeps fewer than it has slots.
        season_s: after which arrivals repeat, for such a node to grow before; 0 = its queue decides.
        ray_options: further arguments of `ray.init`.
    """

    def __init__(
        self,
        nodes: Sequence[StageNode] = (),
        *,
        address: str | None = None,
        inline_bytes: int = INLINE_BYTES,
        runtime_env: Mapping[str, Any] | None = None,
        dashboard: bool = True,
        idle_s: float = IDLE_S,
        season_s: float = 0.0,
        ray_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._address = "auto" if address == "ray://auto" else address
        self._given, self._inline_bytes = tuple(nodes), inline_bytes
        self._runtime_env, self._dashboard = dict(runtime_env or {}), dashboard
        self._ray_options = dict(ray_options or {})
        self._idle_s, self._season_s = idle_s, season_s
        self._nodes = self._given
        self._restoring: dict[int, asyncio.Task[None]] = {}
        self._copying: set[asyncio.Task[None]] = set()
        self._values = Values(inline_bytes)
        self._pools: ActorPools | None = None
        self._is_connected = self._is_shared = False

    @property
    def nodes(self) -> Sequence[StageNode]:
        """The nodes. Connects to Ray if they are its machines."""
        if not self._nodes:
            self._connect()
            self._nodes = tuple(worker_placement.pools_of(connection.machines()))
        return self._nodes

    def _connect(self) -> None:
        if not self._is_connected:
            wanted = sum(node.slots * worker_placement.share_of(node)["cpu"] for node in self._given)
            self._is_shared = connection.connect(
                self._address,
                num_cpus=max(os.cpu_count() or 1, math.ceil(wanted)) if wanted else None,
                dashboard=self._dashboard,
                options={**self._ray_options, **self._job_env()},
            )
            self._is_connected = True

    def _job_env(self) -> dict[str, Any]:
        """Ray takes folders of this machine only for a connection as a whole."""
        is_far = self._address is not None
        env = connection.shipped_env(self._runtime_env) if is_far else self._runtime_env
        return {"runtime_env": env} if env else {}

    async def open(self, stages: Sequence[StageCode], on_change: Callable[[NodeChange], None]) -> None:
        """Connect, and start all workers. Raises UsageError if they can't be placed, or do not start."""
        await asyncio.to_thread(self._connect)
        self._stages = {stage.name: stage for stage in stages}
        codes, paths = list(stages), sys.path
        if self._address is not None:  # its machines have other files
            codes, paths = [by_value(code) for code in stages], []
        self._metrics = RayStageMetrics()
        env = {} if self._is_shared else self._runtime_env  # a connection of the user's does not have it
        self._pools = ActorPools(
            self.nodes, codes, on_change, self._on_cut, self._tell_metrics, env, self._idle_s, self._season_s
        )
        try:
            await self._pools.open(self._inline_bytes, paths)
        except BaseException:
            await self.close()
            raise

    @property
    def value_bytes(self) -> float:
        """The most bytes of large values in the object store; of copies only half of it is for the first."""
        assert self._pools is not None
        copies = max((code.copies for code in self._stages.values()), default=1)
        return VALUES_FRAC * self._pools.store_bytes / copies

    def host_address(self) -> str:
        """Where workers reach this machine."""
        self._connect()
        own = connection.own_machine_id()
        found = [machine.address for machine in connection.machines() if machine.id == own]
        if not found or (self._address or "").startswith("ray://"):
            raise UsageError(
                "workers do not reach this program through Ray's client", field="state", value=self._address,
                expected="stages without state, or a program on a machine of the cluster (ray://auto)",
            )  # fmt: skip
        return found[0]

    def follow_queue(self, demand: Callable[[], Mapping[str, StageDemand]]) -> None:
        """Let pools grow and shrink."""
        assert self._pools is not None
        self._pools.pools.follow_queue(demand)

    def tell_loss(self, lost: Callable[[Exception], None]) -> None:
        """Call `lost` when all of the cluster is gone."""
        assert self._pools is not None
        self._pools.tell_loss(lost)

    # Attempts.

    def start(self, node: int, attempt: Attempt, inputs: Sequence[Argument]) -> Awaitable[Outcome]:
        """Run an attempt on the worker that has least to do; of idle ones, on one that has its stage."""
        return self._started(node, attempt, inputs)

    async def _started(self, node: int, attempt: Attempt, inputs: Sequence[Argument]) -> Outcome:
        outcome, read = Outcome(error=StageError(Cause.INPUT_LOST)), bundles_of(attempt, inputs)
        for _ in range(RESTORES):
            try:
                await self._restore(read)
                outcome, found, machine = await self._run(node, attempt, inputs)
            except ValueLost as error:
                return Outcome(error=StageError(Cause.INPUT_LOST, "ValueLost", str(error)))
            if outcome.error is None:
                return self._kept(outcome, found, machine, Origin(node, attempt, inputs))
            if outcome.error.cause is not Cause.INPUT_LOST:
                return outcome
            await self._find_lost(read)
        return outcome

    async def _run(self, node: int, attempt: Attempt, inputs: Sequence[Argument]) -> tuple[Outcome, Any, str]:
        """Send an attempt: its outcome, the object of its large outputs, and the machine that has it."""
        assert self._pools is not None
        worker = self._pools.pools.chosen(node, attempt)
        if worker is None:
            return Outcome(error=StageError(Cause.WORKER_LOST, "", "no worker can be reached")), None, ""
        try:
            ended, found = worker.send(attempt, self._values.message(attempt, inputs))
            outcome = await ended
            for each, end in zip(attempt.in_turn, outcome.in_turn, strict=False):
                self._metrics.note(self.nodes[node], each.stage, end)
            return outcome, found, self._pools.machines[node]
        finally:
            self._pools.pools.over(attempt)

    def _kept(self, outcome: Outcome, found: Any, machine: str, origin: Origin) -> Outcome:
        assert self._pools is not None
        near = tuple(j for j, name in enumerate(self._pools.machines) if name == machine)
        refs = self._values.keep(found, outcome.values, machine, near, origin)
        self._copy({int(ref.place.partition("#")[0]) for ref in refs if ref.place})
        kept = iter(refs)
        ends = [replace(o, outputs=tuple(islice(kept, len(o.outputs)))) for o in outcome.in_turn]
        return in_one(ends)

    def cancel(self, attempt: Attempt) -> None:
        """Stop an attempt."""
        if self._pools is not None and (worker := self._pools.pools.worker_of(attempt)) is not None:
            worker.queue.cancel(attempt)

    def _tell_metrics(self) -> None:
        assert self._pools is not None
        self._metrics.tell(self.nodes, self._pools.pools.workers)

    @property
    def pids(self) -> list[int]:
        """The processes of all workers."""
        return [] if self._pools is None else self._pools.pools.pids

    # Values.

    async def put(self, data: bytes) -> Ref:
        """Make a value known to all workers."""
        return self._values.put(data, "")

    async def get(self, ref: Ref) -> bytes:
        """The bytes of a value."""
        if ref.data is not None:
            return ref.data
        number, _, part = ref.place.partition("#")
        for _ in range(RESTORES):
            await self._restore((int(number),))
            parts = await _fetched(self._values.bundle(int(number)))
            if parts is not None:
                return bytes(parts[int(part)])
        raise ValueLost(ref.digest)

    def release(self, refs: Sequence[Ref]) -> None:
        """Free values."""
        self._values.release(refs)

    def _copy(self, numbers: Collection[int]) -> None:
        """Copy the bundles of stages that want it, while work goes on."""
        for number in numbers:
            origin = self._values.bundle(number).origin
            made_by = () if origin is None else origin.attempt.in_turn
            if any(self._stages[each.stage].copies > 1 for each in made_by):
                task = asyncio.get_running_loop().create_task(self._copied(self._values.bundle(number)))
                self._copying.add(task)
                task.add_done_callback(self._copying.discard)

    async def _copied(self, bundle: Bundle) -> None:
        assert self._pools is not None
        original = bundle.object
        made = self._pools.copied(original, bundle.machine)
        if made is None:
            return
        done, found, machine = made
        try:
            await done
        except RayError:  # one of the two machines is gone
            return
        if bundle.object is original:  # neither released nor lost meanwhile
            bundle.copy, bundle.copy_machine = found, machine

    def _on_cut(self, machine: str) -> None:
        """A machine is out of reach, with the values there: what waits for them elsewhere is begun again."""
        assert self._pools is not None
        lost = self._values.lose_on(machine)
        error = StageError(Cause.WORKER_LOST, "", f"it waited for values on {machine}, which is out of reach")
        for name, workers in zip(self._pools.machines, self._pools.pools.workers, strict=True):
            for worker in list(workers):
                if name != machine and any(lost.intersection(reads) for reads in worker.reads.values()):
                    worker.kill(error)
        self._copy({number for number in lost if self._values.bundle(number).object is not None})

    async def _find_lost(self, numbers: Sequence[int]) -> None:
        """Find out which bundles are lost, after an attempt could not read one."""
        for number in numbers:
            bundle = self._values.bundle(number)
            if bundle.object is not None:
                await _fetched(bundle)

    async def _restore(self, numbers: Sequence[int]) -> None:
        """Make lost bundles again. Raises ValueLost."""
        for number in numbers:
            bundle = self._values.bundle(number)
            if bundle.object is None:
                if number not in self._restoring:
                    task = asyncio.get_running_loop().create_task(self._made_again(bundle))
                    self._restoring[number] = task
                    task.add_done_callback(lambda _, number=number: self._restoring.pop(number, None))  # type: ignore[misc]
                await asyncio.shield(self._restoring[number])

    async def _made_again(self, bundle: Bundle) -> None:
        """Run the attempt again that made a bundle, on its own node or on another that its stage fits."""
        assert self._pools is not None
        if bundle.origin is None:
            raise ValueLost("a value of the host is lost")
        origin, code = bundle.origin, self._stages[bundle.origin.attempt.stage]
        await self._restore(origin.bundles)
        fitting = [j for j, node in enumerate(self.nodes) if j == origin.node or not node.misfit(code)]
        node = await self._reachable_of(sorted(fitting, key=lambda j: j != origin.node))
        outcome, found, machine = await self._run(node, origin.attempt, origin.inputs)
        if outcome.error is not None:
            raise ValueLost(f"{origin.attempt.stage} could not run again: {outcome.error}")
        if tuple(ref.digest for ref in outcome.values if ref.data is None) != bundle.digests:
            raise ValueLost(f"{origin.attempt.stage} gave another output when it ran again")
        bundle.object, bundle.machine = found, machine

    async def _reachable_of(self, nodes: Sequence[int]) -> int:
        """The first of these nodes that has a worker; waits for one that is being replaced."""
        assert self._pools is not None
        pools = self._pools.pools
        for _ in range(int(RESTORE_WAIT_S / RESTORE_POLL_S)):
            for node in nodes:
                if pools.is_up[node] and any(w.is_reachable for w in pools.workers[node]):
                    return node
            await asyncio.sleep(RESTORE_POLL_S)
        raise ValueLost("no node that its stage fits has a worker")

    async def close(self) -> None:
        """Stop all workers, free everything, and end an own cluster."""
        for task in (*self._restoring.values(), *self._copying):
            task.cancel()
        if self._pools is not None:
            await self._pools.close()
        self._values.clear()
        if self._is_connected and self._is_shared:
            await asyncio.to_thread(connection.disconnect)
        self._is_connected = False


async def _fetched(bundle: Bundle) -> Sequence[Any] | None:
    """The parts of a bundle; None if it is lost: then its copy, if there is one, has taken its place."""

    async def fetch(found: Any) -> Any:
        return await found

    given = bundle.object
    fetching = asyncio.ensure_future(fetch(given))
    while bundle.object is given:
        done, _ = await asyncio.wait({fetching}, timeout=POLL_S)
        if done:
            try:
                parts: Sequence[Any] = fetching.result()
            except RayError:
                if bundle.object is given:
                    bundle.lose()
                return None
            return parts
    fetching.cancel()
    return None


def _is_made(found: Any) -> bool:
    """Whether an object is there, once that is known; False = one of the two machines is gone."""
    ready, _ = ray.wait([found], fetch_local=False, timeout=COPY_S)
    return bool(ready)
