"""The workers of a scheduler of Dask as a host: programs that connect back to this machine.

--on dask                 workers of its own on this machine, as many as the run has nodes
--on dask://HOST:PORT     as the scheduler there has them

A program is a task that waits for it, so it takes a thread of its worker, and GPUs that the worker declares
(`--resources GPU=2`). When its worker goes, its connections are closed, which ends it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

from distributed import Client, Nanny, Scheduler, SpecCluster
from distributed.utils import get_ip

from trimtab.errors import UsageError
from trimtab.live.dial import command_here, environment_here, how_it_ended
from trimtab.live.dialled import DialIn, DialledLink
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

START_S: Final = 60.0  # for a program to connect: its worker may have no thread free at first
CONNECT_S: Final = 10.0  # to the scheduler
LOOK_S: Final = 1.0  # between two looks at the workers
_GIB: Final = 1 << 30


class DaskHost:
    """The workers of one scheduler.

    Args:
        address: of a scheduler (dask://HOST:PORT); "dask" = one of its own, with workers on this machine.
        slots: of nodes by names that a run gave them: those of workers, or the workers to start.
    """

    def __init__(self, address: str = "dask", slots: Mapping[str, int] = NO_SLOTS) -> None:
        _, is_address, self._scheduler = address.partition("://")
        if is_address and not self._scheduler.rpartition(":")[2].isdecimal():
            expected = "dask, or dask://HOST:PORT"
            raise UsageError("is no address of a scheduler", field="--on", value=address, expected=expected)
        self._slots = dict(slots)
        self.driver_address = LOCAL_ADDRESS  # until it is connected
        self._lock = threading.Lock()
        self._client: Any = None
        self._cluster: Any = None
        self._dial_in: DialIn | None = None
        self._looking: asyncio.Task[None] | None = None
        self._known: dict[str, HostNode] = {}
        self._addresses: dict[str, str] = {}  # name of a worker → its address
        self._links: dict[DialledLink, str] = {}  # → the address of its worker

    def nodes(self) -> Sequence[HostNode]:
        """The workers. Connects. Raises UsageError."""
        with self._lock:
            if self._client is None:
                self._connect()
        workers = self._client.scheduler_info(n_workers=-1)["workers"]
        self._addresses = {str(told["name"]): address for address, told in workers.items()}
        self._known = {str(told["name"]): _host_node(told) for told in workers.values()}
        return list(self._known.values())

    def _connect(self) -> None:
        if not self._scheduler:
            slots = self._slots or {"local": os.cpu_count() or 1}
            silent = {"silence_logs": logging.WARNING}
            quiet = {"host": LOCAL_ADDRESS, **silent}
            self._cluster = SpecCluster(
                scheduler={
                    "cls": Scheduler,
                    "options": {"dashboard": False, "port": 0, "host": LOCAL_ADDRESS},
                },
                workers={
                    name: {"cls": Nanny, "options": {"nthreads": count, "name": name, **quiet}}
                    for name, count in slots.items()
                },
                **silent,
            )
            self._client = Client(self._cluster, set_as_default=False)
            self._client.wait_for_workers(len(slots))
            return
        host, _, port = self._scheduler.rpartition(":")
        try:
            self.driver_address = get_ip(host.strip("[]"), int(port))
            self._client = Client(f"tcp://{self._scheduler}", timeout=CONNECT_S, set_as_default=False)
        except (OSError, socket.gaierror) as error:
            raise UsageError(
                f"no scheduler of Dask answers: {error}", field="--on", value=f"dask://{self._scheduler}"
            ) from error

    def follow(self, added: Told, changed: Told, removed: Told, troubled: Troubled) -> None:
        """Look at the workers now and then."""

        async def ask() -> Mapping[str, HostNode]:
            await asyncio.to_thread(self.nodes)
            there = set(self._addresses.values())
            for link, address in list(self._links.items()):
                if address not in there:
                    link.lost("as its worker was lost")
            return self._known

        told = added, changed, removed, troubled
        looking = tell_by_asking(self._known, ask, LOOK_S, "the scheduler of Dask does not answer", told)
        self._looking = asyncio.get_running_loop().create_task(looking)

    async def start(self, node: HostNode, program: Program, events: ProgramEvents) -> Link:
        """Start a program as a task, and wait until it has connected. Raises OSError."""
        address = self._addresses.get(node.name)
        if address is None:
            raise ConnectionError(f"worker {node.name} is gone")
        if self._dial_in is None:
            self._dial_in = DialIn(self.driver_address)
        link = self._dial_in.expect(f"a program on {node.name}", events)
        there = link.on_node(program, f"{self.driver_address}:{self._dial_in.port}")
        gpus = program.reserves.get("gpu", 0.0)
        future = self._client.submit(
            run_program,
            there,
            key=f"trimtab-program-{os.urandom(8).hex()}",
            workers=[address],
            resources={"GPU": gpus} if gpus else None,
            pure=False,
        )
        loop = asyncio.get_running_loop()

        def over(done: Any) -> None:
            how = done.result() if done.status == "finished" else f"as Dask gave it up: {done.status}"
            loop.call_soon_threadsafe(link.lost, how)

        future.add_done_callback(over)
        self._links[link] = address
        link.over.add_done_callback(lambda _: self._ended(link, future))
        try:
            async with asyncio.timeout(START_S):
                await asyncio.shield(link.connected)
        except TimeoutError as error:
            await link.stop()
            why = f"worker {node.name} had no thread free for it in {START_S:g} s"
            raise ConnectionError(f"{link.name} has not begun: {why}") from error
        except BaseException:
            await link.stop()
            raise
        return link

    def _ended(self, link: DialledLink, future: Any) -> None:
        """A program has ended: its task is not wanted any more."""
        self._links.pop(link, None)
        future.release()

    async def close(self) -> None:
        """All programs have ended: leave the scheduler, or end an own one."""
        if self._looking is not None:
            self._looking.cancel()
        dial_in, self._dial_in = self._dial_in, None
        if dial_in is not None:
            await dial_in.close()
        client, self._client = self._client, None
        if client is not None:
            await asyncio.to_thread(client.close)
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            await asyncio.to_thread(cluster.close)


def run_program(program: Program) -> str:
    """On a worker: run a program; returns how it ended."""
    process = subprocess.Popen(
        command_here(program.argv),
        stdin=subprocess.DEVNULL,
        env={**environment_here(), **program.env},
        start_new_session=True,
    )
    return how_it_ended(process.wait())


def _host_node(told: Mapping[str, Any]) -> HostNode:
    """A worker as a node of a host."""
    threads, ram_gib = int(told["nthreads"]), told["memory_limit"] / _GIB
    capacity = {"cpu": float(threads), "gpu": float(told["resources"].get("GPU", 0.0)), "memory_gib": ram_gib}
    return HostNode(str(told["name"]), threads, capacity, address=told["host"])
