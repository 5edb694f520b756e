"""The pools of workers: started, replaced when a worker dies, watched by machine."""

from __future__ import annotations

import asyncio
import logging
import pickle
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from trimtab.clusters.heartbeats import BEAT_S, CUT_BEATS, ActorPulse
from trimtab.clusters.ray import worker_placement
from trimtab.clusters.ray.connection import Machine, head_address, machines, own_machine_id
from trimtab.clusters.ray.ray_worker import RayWorker
from trimtab.clusters.ray.stage_actor import CONTROL, MachineWatch, StageWorker
from trimtab.clusters.worker_pools import WorkerPools
from trimtab.errors import ClusterLost, UsageError
from trimtab.live.stage_backend import Cause, NodeChange, StageCode, StageError, StageNode

GONE_BEATS: Final = 45  # without an answer: it does not come back in time. Ray ends processes after 60 s


class HeadWatch:
    """Connects to the head once a beat. An unknown address, as through Ray's client, is never gone."""

    def __init__(self, address: tuple[str, int] | None) -> None:
        self._address = address
        self.is_refused = False  # its machine answers, and nothing listens there
        self.pulse = ActorPulse(self._connect, self._answered, self._failed)

    @property
    def is_gone(self) -> bool:
        """Whether it has not answered for long."""
        return self.pulse.missed >= GONE_BEATS

    async def _connect(self) -> None:
        if self._address is None:
            return
        async with asyncio.timeout(BEAT_S):
            _, writer = await asyncio.open_connection(*self._address)
        writer.close()

    def _answered(self, _: None) -> None:
        self.is_refused = False

    def _failed(self, error: Exception) -> None:
        self.is_refused = isinstance(error, ConnectionRefusedError)


logger = logging.getLogger(__name__)

START_S: Final = 120.0  # for all workers to be ready: each is a Python process that imports Ray
FREE_S: Final = 5.0  # for what is reserved in the cluster to be freed
LOST_BEATS: Final = 120  # without any machine: the cluster is gone. At once if no head listens there


class ActorPools:
    """The workers of all nodes, and the machines that they are on.

    Args:
        changed: told of nodes that have more or fewer places, or are out of reach.
        lost: told of machines that are out of reach.
        beaten: called at each beat.
        runtime_env: of Ray, for the workers.
        idle_s: after which an idle worker ends, of a node that keeps fewer than it has slots.
        season_s: after which arrivals repeat; 0 = unknown.
    """

    def __init__(
        self,
        nodes: Sequence[StageNode],
        stages: Sequence[StageCode],
        changed: Callable[[NodeChange], None],
        lost: Callable[[str], None],
        beaten: Callable[[], None],
        runtime_env: Mapping[str, Any],
        idle_s: float,
        season_s: float,
    ) -> None:
        self._nodes, self._stages, self._on_cut, self._beaten = nodes, stages, lost, beaten
        self._runtime_env = dict(runtime_env)
        self.pools = WorkerPools(
            nodes, stages, self._started, changed, idle_s=idle_s, season_s=season_s, start_s=START_S
        )
        self.machines: list[str] = []  # of each node
        self._watches: dict[str, tuple[str, Any, ActorPulse]] = {}  # by name of the machine: id, actor
        self._cut: set[str] = set()
        self._n_copied = 0
        self._lost: Callable[[Exception], None] = lambda _: None
        self._beats_cut = 0  # without an answer of any machine
        self._head = HeadWatch(None)  # its address is not known yet
        self.is_lost = False

    async def open(self, inline_bytes: int, paths: Sequence[str]) -> None:
        """Start all workers; `paths` is where they find modules.

        Raises UsageError if they can't be placed, or do not start.
        """
        self._timeouts_s = {stage.name: stage.timeout_s for stage in self._stages}
        self._here = await asyncio.to_thread(own_machine_id)
        self._head = HeadWatch(await asyncio.to_thread(head_address))
        known = await asyncio.to_thread(machines)
        worker_placement.check_room(self._nodes, known, self._here)
        await self._until_free(known)
        found = [worker_placement.machine_of(node.machine, known, self._here) for node in self._nodes]
        self.machines = [machine.name for machine in found if machine is not None]
        stores = {m.id: m.resources.get("object_store_memory", 0.0) for m in found if m is not None}
        self.store_bytes = sum(stores.values())
        setup = tuple(self._stages), inline_bytes, str(Path.cwd()), list(paths)
        self._setup = ray.put(pickle.dumps(setup, 5))
        try:
            await self.pools.open()
        except (OSError, TimeoutError) as error:
            raise UsageError(
                f"workers do not start on Ray: {error or f'not in {START_S:g} s'}", field="on", value="ray"
            ) from error
        self.pools.spawn(self._watch())

    async def _until_free(self, known: Sequence[Machine]) -> None:
        """Wait a little until others leave the pools their room. Raises UsageError."""
        until_s = asyncio.get_running_loop().time() + FREE_S
        while (free := await asyncio.to_thread(_free)) is not None:
            missing = worker_placement.too_little(self._nodes, known, self._here, free)
            if not missing:
                return
            if asyncio.get_running_loop().time() > until_s:
                raise UsageError(
                    "others use what the pools need", field="nodes", value="; ".join(missing),
                    expected="smaller pools, or a cluster with more that is free",
                )  # fmt: skip
            await asyncio.sleep(0.25)

    async def _started(self, node: int) -> RayWorker:
        """A worker that is ready. Raises OSError."""
        known = await asyncio.to_thread(machines)
        machine = worker_placement.machine_of(self._nodes[node].machine, known, self._here)
        if machine is None:
            raise ConnectionError(f"machine {self._nodes[node].machine} is gone")
        if machine.name not in self._watches or self._watches[machine.name][0] != machine.id:
            self._watch_machine(machine)
        reserved = worker_placement.actor_options(self._nodes[node], machine)
        actor = self._made(StageWorker, machine, concurrency_groups={CONTROL: 2}, **reserved).remote(
            self._setup, self._nodes[node].name
        )
        worker = RayWorker(
            actor,
            self._timeouts_s,
            lambda lost: self.pools.lost(node, lost),
            lambda reached: self.pools.reached(node, reached),
        )
        try:
            await worker.ready()
        except RayError as error:
            raise ConnectionError(str(error)) from error
        except asyncio.CancelledError:
            await worker.stop()
            raise
        if machine.name in self._cut:
            self._back(machine.name)
        return worker

    def _made(self, kind: type, machine: Machine, **options: Any) -> Any:
        """A class of actors of this machine alone. Ray tries nothing again: attempts are ours."""
        if self._runtime_env:
            options["runtime_env"] = self._runtime_env
        strategy = NodeAffinitySchedulingStrategy(machine.id, soft=False)
        return ray.remote(max_restarts=0, max_task_retries=0, scheduling_strategy=strategy, **options)(kind)

    def _watch_machine(self, machine: Machine) -> None:
        watch = self._made(MachineWatch, machine, num_cpus=0, concurrency_groups={CONTROL: 1}).remote()
        asked: list[RayWorker] = []  # one that starts before the answer comes is not in it

        def ask() -> Awaitable[Any]:
            asked[:] = self._on_machine(machine.name)
            answer: Awaitable[Any] = watch.alive.remote([worker.pid for worker in asked])
            return answer

        def told(ticks: Mapping[int, int]) -> None:
            for worker in asked:
                if worker.pid in ticks:
                    worker.note_ticks(ticks[worker.pid])
                else:
                    worker.die(None)

        def failed(error: Exception) -> None:
            logger.debug("machine %s does not answer: %s", machine.name, error)

        self._watches[machine.name] = machine.id, watch, ActorPulse(ask, told, failed)

    def copied(self, found: Any, machine: str) -> tuple[Any, Any, str] | None:
        """What tells that a copy is made, the copy, and its machine; None = there is no other machine."""
        others = sorted(name for name in self._watches if name != machine and name not in self._cut)
        if not others:
            return None
        self._n_copied += 1
        chosen = others[self._n_copied % len(others)]
        done, made = self._watches[chosen][1].copy.remote(found)
        return done, made, chosen

    def _on_machine(self, machine: str) -> list[RayWorker]:
        workers = zip(self.machines, self.pools.workers, strict=True)
        return [worker for name, there in workers if name == machine for worker in there]

    def tell_loss(self, lost: Callable[[Exception], None]) -> None:
        """Call `lost` when all of the cluster is gone."""
        self._lost = lost

    # Heartbeat.

    async def _watch(self) -> None:
        while True:
            for workers in self.pools.workers:
                for worker in list(workers):
                    worker.pulse.beat()
            for name, (_, _, pulse) in list(self._watches.items()):
                pulse.beat()
                self._judge(name, pulse)
            self._beaten()
            self._head.pulse.beat()
            self._judge_cluster()
            await asyncio.sleep(BEAT_S)

    def _judge(self, machine: str, pulse: ActorPulse) -> None:
        """A machine is out of reach if neither it nor a worker there answers: a late ping alone is none."""
        missed = [pulse.missed, *(worker.pulse.missed for worker in self._on_machine(machine))]
        if machine not in self._cut and min(missed) >= CUT_BEATS:
            self._cut.add(machine)
            logger.warning("machine %s cannot be reached: its attempts run elsewhere", machine)
            self._tell_up(machine, is_up=False)
            self._on_cut(machine)
            for worker in self._on_machine(machine):
                worker.abandon(StageError(Cause.WORKER_LOST, "", f"machine {machine} cannot be reached"))
        elif machine in self._cut and max(missed) == 0:
            self._back(machine)

    def _judge_cluster(self) -> None:
        """The cluster is gone if no machine answers, and its head is gone or no machine does for long.

        It is as good as gone if only its head is, for long.
        """
        is_cut = self._cut.issuperset(self.machines)
        self._beats_cut = self._beats_cut + 1 if is_cut else 0
        if self.is_lost:
            return
        if self._beats_cut >= LOST_BEATS or (is_cut and self._head.is_refused):
            self._lose("neither its head nor any machine answers")
        elif self._head.is_gone:
            self._lose("its head does not answer")

    def _lose(self, reason: str) -> None:
        self.is_lost = True
        self._lost(ClusterLost(f"the Ray cluster is gone: {reason}"))

    def _back(self, machine: str) -> None:
        self._cut.discard(machine)
        logger.warning("machine %s is back", machine)
        self._tell_up(machine, is_up=True)

    def _tell_up(self, machine: str, *, is_up: bool) -> None:
        for j, name in enumerate(self.machines):
            if name == machine:
                self.pools.switch(j, is_up=is_up)

    async def close(self) -> None:
        """Stop all workers."""
        self._head.pulse.stop()
        for _, watch, pulse in self._watches.values():
            pulse.stop()
            if not self.is_lost:
                ray.kill(watch)
        self._watches.clear()
        for worker in (w for workers in self.pools.workers for w in workers if self.is_lost):
            worker.is_alive = False
        await self.pools.close()


def _free() -> Mapping[str, Mapping[str, float]] | None:
    """The free resources by the id of the Ray node; None where Ray does not say."""
    try:
        from ray._private.state import available_resources_per_node

        found: Mapping[str, Mapping[str, float]] = available_resources_per_node()
    except Exception:  # not through Ray's client
        return None
    return found
