"""Nodes of training jobs on a Ray cluster: slots are the GPUs of its machines, or CPUs where none has any.

An actor on each machine reserves them, starts the same programs that nodes on this machine have, and passes
bytes on in both directions. A machine that dies takes its slots with it. One that gives no sign of life for
`CUT_BEATS` beats counts as dead: it stops its ranks when it can be reached again, and until then the fence of
each job's checkpoints keeps them from writing one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from trimtab import errors
from trimtab.clusters.heartbeats import BEAT_S, CUT_BEATS, ActorPulse
from trimtab.clusters.ray import connection
from trimtab.clusters.ray.connection import Machine
from trimtab.clusters.ray.worker_placement import LEAST_CPU, machine_of
from trimtab.errors import UsageError
from trimtab.live.stage_backend import StageNode
from trimtab.training.runner.node_process import END_S, agent_process
from trimtab.training.runner.node_programs import NodeEvents, NodeLink, NodeProgram, Slots

START_S: Final = 60.0  # for an actor to start: its machine may have to be freed first
_BLOCK_BYTES = 1 << 18


class RaySlots:
    """The nodes of a Ray cluster.

    Args:
        address: of a cluster to join ("ray://HOST:PORT", "ray://auto"). None = an own one on this machine.
    """

    def __init__(self, address: str | None) -> None:
        self._address = "auto" if address == "ray://auto" else address
        self._is_shared = False
        self._slots: Mapping[str, int] = {}
        self._resource = "CPU"
        self._machines: dict[str, Machine] = {}
        self._actors: dict[str, Any] = {}

    async def open(self, wanted: Mapping[str, int], *, cuda: bool) -> Slots:
        """Connect: the machines that are wanted, else all. Raises UsageError."""
        own_cpus = max(os.cpu_count() or 1, sum(wanted.values()))
        options = {} if self._address is None else {"runtime_env": connection.shipped_env({})}
        self._is_shared = await asyncio.to_thread(
            lambda: connection.connect(self._address, num_cpus=own_cpus, dashboard=False, options=options)
        )
        known = await asyncio.to_thread(connection.machines)
        here = await asyncio.to_thread(connection.own_machine_id)
        try:
            self._resource, self._slots = slots_of(known, here, wanted, cuda=cuda)
        except UsageError:
            await self.close()
            raise
        return Slots(self._slots, self._resource == "GPU")

    def address(self, node: str) -> str:
        """The machine's."""
        return self._machines[node].address

    def program(self, node: str, events: NodeEvents, lost: Callable[[NodeProgram], None]) -> NodeProgram:
        """A program on the machine."""
        return RayProgram(self, node, events, lost)

    async def actor(self, node: str, *, anew: bool) -> Any:
        """The actor of a node; the plain program of a node starts it. Raises OSError."""
        if anew:
            self.kill(node)
            self._actors[node] = await self._made(node)
        if node not in self._actors:
            raise ConnectionError(f"{node} is gone")
        return self._actors[node]

    async def _made(self, node: str) -> Any:
        try:
            known = await asyncio.to_thread(connection.machines)
            here = await asyncio.to_thread(connection.own_machine_id)
        except Exception as error:  # Ray raises many kinds
            raise ConnectionError(f"the Ray cluster does not answer: {error}") from error
        machine = _machine(node, known, here)
        if machine is None:
            raise ConnectionError(f"there is no machine {node} in the Ray cluster")
        self._machines[node] = machine
        gpus = self._slots[node] if self._resource == "GPU" else 0
        made = ray.remote(
            num_cpus=LEAST_CPU if gpus else self._slots[node],
            num_gpus=gpus,
            max_restarts=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(machine.id, soft=False),
        )(NodeActor).remote()
        try:
            async with asyncio.timeout(START_S):
                await made.ping.remote()
        except (RayError, TimeoutError) as error:
            ray.kill(made, no_restart=True)
            why = error or f"its {self._slots[node]} {self._resource}s are not free in {START_S:g} s"
            raise ConnectionError(f"{node}: {why}") from error
        return made

    def kill(self, node: str) -> None:
        """End the actor of a node, and with it all programs there."""
        if (actor := self._actors.pop(node, None)) is not None:
            with contextlib.suppress(Exception):  # Ray raises many kinds where the cluster is gone
                ray.kill(actor, no_restart=True)

    async def close(self) -> None:
        """All programs have ended: leave the cluster, or end an own one."""
        for node in list(self._actors):
            self.kill(node)
        if self._is_shared:
            self._is_shared = False
            await asyncio.to_thread(connection.disconnect)


def slots_of(
    known: Sequence[Machine], here: str, wanted: Mapping[str, int], *, cuda: bool
) -> tuple[str, dict[str, int]]:
    """Ray's name of what slots are, and how many each machine has. Raises UsageError."""
    found = {name: _machine(name, known, here) for name in wanted} or {m.name: m for m in known}
    told = ", ".join(m.name for m in known)
    for name, machine in found.items():
        if machine is None:
            raise UsageError("no such machine in the Ray cluster", field="nodes", value=name, expected=told)
    there = {name: machine.resources for name, machine in found.items() if machine is not None}
    resource = "GPU" if cuda or any(amounts.get("GPU", 0.0) >= 1.0 for amounts in there.values()) else "CPU"
    slots = {name: int(amounts.get(resource, 0.0)) for name, amounts in there.items()}
    for name, count in wanted.items():
        if count > slots[name]:
            expected = f"at most {slots[name]}, the {resource}s that it has"
            raise UsageError("is too many slots", field=f"nodes.{name}", value=count, expected=expected)
    slots = dict(wanted) or {name: count for name, count in slots.items() if count}
    if not slots:
        raise UsageError(
            "no machine has any", field="cuda", value=cuda, expected=f"a cluster with {resource}s"
        )
    return resource, slots


def _machine(name: str, known: Sequence[Machine], here: str) -> Machine | None:
    return machine_of(StageNode(name, 1, machine=name), known, here)


class RayProgram:
    """A program of a node, behind the node's actor."""

    def __init__(
        self, slots: RaySlots, node: str, events: NodeEvents, lost: Callable[[NodeProgram], None]
    ) -> None:
        self.link = NodeLink(events, self._send)
        self._slots, self._node, self._lost = slots, node, lost
        self._is_over = self._is_plain = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._pulse = ActorPulse(lambda: self._actor.ping.remote(), lambda _: None, lambda _: None)

    async def start(self, python: str, *, lock: Path | None, preload: Sequence[str], grace_s: float) -> None:
        """Start the program. Raises OSError."""
        self._is_plain = lock is not None
        self._actor = await self._slots.actor(self._node, anew=self._is_plain)
        try:
            kept = "" if lock is None else str(lock.absolute())
            self._number = await self._actor.begin.remote(python, kept, tuple(preload), grace_s)
        except Exception as error:  # Ray's, with that of the machine as its cause
            raise ConnectionError(f"{self._node}: {getattr(error, 'cause', error)}") from error
        self._reader = self._spawn(self._read())
        if self._is_plain:
            self._spawn(self._watch())

    def _send(self, data: bytes) -> None:
        self._actor.send.remote(self._number, data)

    async def _read(self) -> None:
        try:
            while data := await self._actor.receive.remote(self._number):
                self.link.received(data)
        except Exception as error:  # Ray raises many kinds
            self._end(f"{self._node} is out of reach: {str(error).partition(chr(10))[0]}")
        else:
            self._end("the program has ended")

    async def _watch(self) -> None:
        while self._pulse.missed < CUT_BEATS:
            self._pulse.beat()
            await asyncio.sleep(BEAT_S)
        self._end(f"{self._node} gives no sign of life")

    def _end(self, why: str) -> None:
        if self._is_over:
            return
        self._close()
        self.link.closed(why)
        if self._is_plain:
            self._slots.kill(self._node)
        self._lost(self)

    def _close(self) -> None:
        self._is_over = True
        self._pulse.stop()
        for task in self._tasks - {asyncio.current_task()}:
            task.cancel()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def stop(self) -> None:
        """End the program; its ranks have ended before."""
        if self._is_over:
            return
        self._is_over = True
        with contextlib.suppress(Exception):  # the machine is gone: so is the program
            async with asyncio.timeout(END_S):
                await self._actor.end.remote(self._number)
                await self._reader
        self._close()


class NodeActor:
    """Reserves a node's slots. When it ends, its programs stop their ranks at a checkpoint, and end.

    Programs are none of its children: Ray kills those with it.
    """

    def __init__(self) -> None:
        self._streams: dict[int, tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}

    async def ping(self) -> None:
        """Answer."""

    async def begin(self, python: str, lock: str, preload: Sequence[str], grace_s: float) -> int:
        """Start a program; its number. Raises OSError."""
        kept = Path(lock) if lock else None
        if kept is not None and not kept.parent.is_dir():
            raise FileNotFoundError(f"there is no {kept.parent}: all machines must share that folder")
        starter, ours = agent_process(
            python, lock=kept, preload=preload, grace_s=grace_s, env=_environment(), detach=True
        )
        await asyncio.to_thread(starter.wait)
        stream = await asyncio.open_connection(sock=ours)
        number = len(self._streams)  # after the last pause: several programs may begin at once
        self._streams[number] = stream
        return number

    async def send(self, program: int, data: bytes) -> None:
        """Bytes for a program, in the order of the calls."""
        self._streams[program][1].write(data)

    async def receive(self, program: int) -> bytes:
        """The program's next output, as soon as it comes; nothing = it has ended."""
        reader, writer = self._streams[program]
        with contextlib.suppress(ConnectionError):
            if data := await reader.read(_BLOCK_BYTES):
                return data
        writer.close()
        return b""

    async def end(self, program: int) -> None:
        """Have a program end; its ranks have ended before."""
        self._streams[program][1].write_eof()


def _environment() -> dict[str, str]:
    """This process's, with trimtab where programs find modules last, and without what Ray sets for itself."""
    paths = [
        *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)),
        Path(errors.__file__).parents[1],
    ]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(map(str, paths))}
