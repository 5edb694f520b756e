"""A host as another package would write it: programs on "nodes" that only connect back, as from pods."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint
from typing import Any

from trimtab.live.dial import command_here
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
)


class FarHost:
    """Nodes that come and go by hand."""

    def __init__(self, address: str = "far", slots: Mapping[str, int] = NO_SLOTS) -> None:
        self.driver_address = LOCAL_ADDRESS
        self.known = {name: HostNode(name, count) for name, count in (slots or {"far-1": 1}).items()}
        self.env: dict[str, str] = {}  # of its nodes
        self.processes: dict[str, list[subprocess.Popen[bytes]]] = {}
        self._dial_in: DialIn | None = None
        self._told: tuple[Any, ...] = ()
        self._loop: Any = None

    def nodes(self) -> Sequence[HostNode]:
        return list(self.known.values())

    def follow(self, added: Told, changed: Told, removed: Told, troubled: Troubled) -> None:
        self._told, self._loop = (added, changed, removed), asyncio.get_running_loop()

    def add(self, node: HostNode) -> None:
        """From any thread."""
        self.known[node.name] = node
        self._loop.call_soon_threadsafe(self._told[0], node)

    def remove(self, name: str) -> None:
        """From any thread: the node and its processes are gone."""
        node = self.known.pop(name)
        for process in self.processes.pop(name, ()):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._loop.call_soon_threadsafe(self._told[2], node)

    async def start(self, node: HostNode, program: Program, events: ProgramEvents) -> Link:
        if node.name not in self.known:
            raise ConnectionError(f"{node.name} is gone")
        if self._dial_in is None:
            self._dial_in = DialIn(self.driver_address)
        link: DialledLink = self._dial_in.expect(f"a program on {node.name}", events)
        there = link.on_node(program, f"{self.driver_address}:{self._dial_in.port}")
        process = subprocess.Popen(
            command_here(there.argv),
            env={**os.environ, **self.env, **there.env},
            start_new_session=True,
            stdin=subprocess.DEVNULL,
        )
        self.processes.setdefault(node.name, []).append(process)
        try:
            async with asyncio.timeout(30.0):
                await link.connected
        except BaseException:
            await link.stop()
            raise
        return link

    async def close(self) -> None:
        if self._dial_in is not None:
            await self._dial_in.close()
            self._dial_in = None
        for process in (process for there in self.processes.values() for process in there):
            await asyncio.to_thread(process.wait)
        self.processes.clear()


def far_entry_points(host: FarHost) -> Any:
    """What `entry_points` gives where a package has registered this host."""

    class Point(EntryPoint):
        def load(self) -> Any:
            def made(address: str, slots: Mapping[str, int]) -> FarHost:
                if slots:
                    host.known = {name: HostNode(name, count) for name, count in slots.items()}
                return host

            return made

    def entry_points(group: str, name: str = "far") -> list[EntryPoint]:
        return [Point("far", "far_host:FarHost", group)] if (group, name) == ("trimtab.hosts", "far") else []

    return entry_points
