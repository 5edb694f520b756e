"""A Ray cluster as a host: the programs of training jobs on its machines.

An actor reserves what a program does, starts it on its machine, and passes bytes on in both directions. A
machine that dies takes its programs with it. One that gives no sign of life for `CUT_BEATS` beats counts as
dead: its programs stop their ranks when it can be reached again, and until then the fence of each job's
checkpoints keeps them from writing one. Stages of chains have actors of their own (`ray_backend.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Final

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from trimtab.clusters.heartbeats import BEAT_S, CUT_BEATS, ActorPulse
from trimtab.clusters.ray import connection
from trimtab.clusters.ray.connection import Machine
from trimtab.clusters.ray.worker_placement import LEAST_CPU, machine_of
from trimtab.live.dial import command_here, environment_here
from trimtab.live.program_host import (
    LOCAL_ADDRESS,
    NO_SLOTS,
    HostNode,
    Link,
    Program,
    ProgramEvents,
    Told,
    Troubled,
    tell_by_asking,
)

START_S: Final = 60.0  # for an actor to start: its machine may have to be freed first
LOOK_S: Final = 2.0  # between two looks at the machines
KILL_S: Final = 10.0  # for a killed program to end
_BLOCK_BYTES = 1 << 18
_GIB: Final = 1 << 30
_DETACHED: Final = 'exec 3<&0; "$@" <&3 3<&- >&2 & echo $!'  # in sh: the program's id; its parent ends


class RayHost:
    """The machines of a Ray cluster.

    Args:
        address: of a cluster to join ("ray://HOST:PORT", "ray://auto"). "ray" = an own one on this machine.
        slots: of nodes by names that a run gave them: those of machines, beginnings of their ids, or "local".
    """

    def __init__(self, address: str = "ray", slots: Mapping[str, int] = NO_SLOTS) -> None:
        is_own = "://" not in address
        self._address = None if is_own else "auto" if address == "ray://auto" else address
        self._wanted = dict(slots)
        self._is_connected = self._is_shared = False
        self._looking: asyncio.Task[None] | None = None
        self._known: dict[str, HostNode] = {}
        self.driver_address = LOCAL_ADDRESS  # until it is connected

    def nodes(self) -> Sequence[HostNode]:
        """The machines; one that the run names has that name. Connects. Raises UsageError."""
        if not self._is_connected:
            options = {} if self._address is None else {"runtime_env": connection.shipped_env({})}
            own_cpus = max(os.cpu_count() or 1, sum(self._wanted.values()))
            self._is_shared = connection.connect(
                self._address, num_cpus=own_cpus, dashboard=False, options=options
            )
            self._is_connected = True
        known, here = connection.machines(), connection.own_machine_id()
        self.driver_address = next(m.address for m in known if m.id == here)
        named = {m.id: name for name in self._wanted if (m := machine_of(name, known, here)) is not None}
        found = [host_node(machine, named.get(machine.id, machine.name)) for machine in known]
        self._known = {node.name: node for node in found}
        return found

    def follow(self, added: Told, changed: Told, removed: Told, troubled: Troubled) -> None:
        """Look at the machines now and then."""

        async def ask() -> Mapping[str, HostNode]:
            await asyncio.to_thread(self.nodes)
            return self._known

        told = added, changed, removed, troubled
        looking = tell_by_asking(self._known, ask, LOOK_S, "the Ray cluster does not answer", told)
        self._looking = asyncio.get_running_loop().create_task(looking)

    async def start(self, node: HostNode, program: Program, events: ProgramEvents) -> Link:
        """Start a program in an actor's care. Raises OSError."""
        try:
            known = await asyncio.to_thread(connection.machines)
            here = await asyncio.to_thread(connection.own_machine_id)
        except Exception as error:  # Ray raises many kinds
            raise ConnectionError(f"the Ray cluster does not answer: {error}") from error
        machine = machine_of(node.name, known, here)
        if machine is None:
            raise ConnectionError(f"there is no machine {node.name} in the Ray cluster")
        reserved = program.reserves
        actor = ray.remote(
            num_cpus=reserved.get("cpu", LEAST_CPU),
            num_gpus=reserved.get("gpu", 0.0),
            max_restarts=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(machine.id, soft=False),
        )(ProgramActor).remote()
        link = ActorLink(actor, node.name, events)
        try:
            async with asyncio.timeout(START_S):
                await link.begin(program)
        except BaseException as error:
            link.kill()
            if not isinstance(error, Exception):
                raise
            reserves = ", ".join(f"{amount:g} {name.upper()}s" for name, amount in reserved.items())
            why = getattr(error, "cause", None) or error or f"its {reserves} are not free in {START_S:g} s"
            raise ConnectionError(f"{node.name}: {why}") from error
        return link

    async def close(self) -> None:
        """All programs have ended: leave the cluster, or end an own one."""
        if self._looking is not None:
            self._looking.cancel()
        self._is_connected = False
        if self._is_shared:
            self._is_shared = False
            await asyncio.to_thread(connection.disconnect)


def host_node(machine: Machine, name: str) -> HostNode:
    """A machine as a node of a host."""
    amounts = machine.resources
    cpus = amounts.get("CPU", 0.0)
    capacity = {"cpu": cpus, "gpu": amounts.get("GPU", 0.0), "memory_gib": amounts.get("memory", 0.0) / _GIB}
    return HostNode(name, int(cpus), capacity, machine.labels, machine.address)


class ActorLink:
    """A program behind its actor."""

    pid = 0

    def __init__(self, actor: Any, node: str, events: ProgramEvents) -> None:
        self.name = f"the program on {node}"
        self._actor, self._node, self._events = actor, node, events
        self._is_over = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._pulse = ActorPulse(lambda: self._actor.ping.remote(), lambda _: None, lambda _: None)

    async def begin(self, program: Program) -> None:
        """Start the program. Raises errors of Ray's."""
        await self._actor.begin.remote(program)
        self._reader = self._spawn(self._read())
        self._spawn(self._watch())

    def write(self, data: bytes) -> None:
        """Send bytes."""
        self._actor.send.remote(data)

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self._actor.signal.remote(int(number))

    async def _read(self) -> None:
        try:
            while data := await self._actor.receive.remote():
                self._events.received(data)
        except Exception as error:  # Ray raises many kinds
            self._end(f"as its node is out of reach: {str(error).partition(chr(10))[0]}")
        else:
            self._end("by itself")

    async def _watch(self) -> None:
        while self._pulse.missed < CUT_BEATS:
            self._pulse.beat()
            await asyncio.sleep(BEAT_S)
        self._end("as its node gives no sign of life")

    def _end(self, how: str) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._pulse.stop()
        for task in self._tasks - {asyncio.current_task()}:
            task.cancel()
        self.kill()
        self._events.ended(how)

    def kill(self) -> None:
        """End the actor. The program's socket ends with it."""
        with contextlib.suppress(Exception):  # Ray raises many kinds where the cluster is gone
            ray.kill(self._actor, no_restart=True)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def stop(self, within_s: float = 0.0) -> None:
        """Close its socket, kill it unless it ends within this time, and return when it has ended."""
        if not self._is_over:
            with contextlib.suppress(Exception):  # the machine is gone: so is the program
                async with asyncio.timeout(within_s + KILL_S):
                    await self._actor.end.remote(within_s)
                    await self._reader
        self._end("as it was stopped")


class ProgramActor:
    """Reserves what a program does. When the actor ends, the program's socket does, and so the program.

    The program is none of its children: Ray kills those with it.
    """

    async def ping(self) -> None:
        """Answer."""

    def __init__(self) -> None:
        self._has_ended = False

    async def begin(self, program: Program) -> None:
        """Start the program. Raises OSError."""
        ours, theirs = socket.socketpair()
        with theirs:
            starter = await asyncio.to_thread(
                subprocess.run,
                ["/bin/sh", "-c", _DETACHED, "sh", *command_here(program.argv)],
                stdin=theirs.fileno(),
                stdout=subprocess.PIPE,
                env={**_environment(), **program.env},
                start_new_session=True,
                check=True,
            )
        self._pid = int(starter.stdout)
        self._reader, self._writer = await asyncio.open_connection(sock=ours)

    async def send(self, data: bytes) -> None:
        """Bytes for the program, in the order of the calls."""
        self._writer.write(data)

    async def signal(self, number: int) -> None:
        """A signal for the program."""
        self._signal(number)

    def _signal(self, number: int) -> None:
        if not self._has_ended:
            with contextlib.suppress(OSError):
                os.kill(self._pid, number)

    async def receive(self) -> bytes:
        """The program's next output, as soon as it comes; nothing = it has ended."""
        with contextlib.suppress(ConnectionError):
            if data := await self._reader.read(_BLOCK_BYTES):
                return data
        self._has_ended = True
        self._writer.close()
        return b""

    async def end(self, within_s: float) -> None:
        """Have the program end."""
        self._writer.write_eof()
        asyncio.get_running_loop().call_later(within_s, self._signal, signal.SIGKILL)


def _environment() -> dict[str, str]:
    """This process's, without what Ray sets for itself."""
    kept = {name: value for name, value in environment_here().items() if not name.startswith("RAY_")}
    return {**kept, "OMP_NUM_THREADS": "1"}
