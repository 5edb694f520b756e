"""This machine as a host: programs are its processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence

from trimtab.live.dial import command_here, how_it_ended
from trimtab.live.program_host import NO_SLOTS, HostNode, Link, Program, ProgramEvents, Told, Troubled


class ThisMachine:
    """Processes of this machine.

    Args:
        slots: of nodes by name, which are all this machine; default: one with a slot for each core.
    """

    driver_address = ""

    def __init__(self, address: str = "", slots: Mapping[str, int] = NO_SLOTS) -> None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self._nodes = [HostNode(name, count) for name, count in (slots or {"local": cores}).items()]

    def nodes(self) -> Sequence[HostNode]:
        """The nodes."""
        return self._nodes

    def follow(self, added: Told, changed: Told, removed: Told, troubled: Troubled) -> None:
        """They stay as they are."""

    async def close(self) -> None:
        """Nothing is left."""

    async def start(self, node: HostNode, program: Program, events: ProgramEvents) -> Link:
        """Start a process. Raises OSError."""
        started = ProcessLink(program, events)
        await started.connect()
        return started


class ProcessLink(asyncio.Protocol):
    """A process of this machine, and the socket that is its standard input.

    Raises OSError if it does not start.
    """

    def __init__(self, program: Program, events: ProgramEvents) -> None:
        self._events, self._is_stopped = events, False
        self._ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = subprocess.Popen(
                    command_here(program.argv),
                    stdin=theirs.fileno(),
                    start_new_session=True,  # Ctrl-C is the host's to handle
                    env={**os.environ, **program.env},
                )
        except OSError:
            self._ours.close()
            raise
        self.pid = self._process.pid
        self.name = f"process {self.pid}"

    async def connect(self) -> None:
        """Have what the process sends told."""
        loop = asyncio.get_running_loop()
        try:
            self._transport, _ = await loop.create_connection(lambda: self, sock=self._ours)
        except asyncio.CancelledError:
            self.signal(signal.SIGKILL)
            await asyncio.to_thread(self._process.wait)
            raise

    def write(self, data: bytes) -> None:
        """Send bytes."""
        self._transport.write(data)

    def signal(self, number: int) -> None:
        """Send it a signal."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def stop(self, within_s: float = 0.0) -> None:
        """Close its socket, kill it unless it ends within this time, and return when it has ended."""
        self._is_stopped = True
        self._transport.close()
        if within_s:
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(self._process.wait, within_s)
        self._process.kill()
        await asyncio.to_thread(self._process.wait)

    def data_received(self, data: bytes) -> None:
        """It sent bytes."""
        self._events.received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """It has ended, or has closed its socket, which counts as that."""
        if not self._is_stopped:
            self._process.kill()  # the socket is closed only after this: one that lives would wait for that
        code = self._process.poll() if self._is_stopped else self._process.wait()
        self._events.ended("as it was stopped" if code is None else how_it_ended(code))
