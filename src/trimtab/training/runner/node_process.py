"""Nodes on this machine: each has programs that are processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from trimtab.errors import UsageError
from trimtab.training.runner import node_agent
from trimtab.training.runner.node_programs import LOCAL_ADDRESS, NodeEvents, NodeLink, NodeProgram, Slots

END_S = 10.0  # for a program to end before it is killed


def agent_process(
    python: str,
    *,
    lock: Path | None,
    preload: Sequence[str],
    grace_s: float,
    env: Mapping[str, str],
    detach: bool = False,
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a node's program here: the process, and our end of its connection. Raises OSError.

    One that is to `detach` leaves the process, which then ends.
    """
    ours, theirs = socket.socketpair()
    command = [python or sys.executable, node_agent.__file__, "--socket", str(theirs.fileno())]
    command += ["--grace-s", f"{grace_s}", "--preload", ",".join(preload)]
    command += ["--lock", str(lock)] if lock is not None else []
    command += ["--detach"] if detach else []
    try:
        with theirs:
            process = subprocess.Popen(
                command,
                env=env,
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is the run's to handle
            )
            return process, ours
    except OSError:
        ours.close()
        raise


class NodeProcess(asyncio.Protocol):
    """A program as a process of this machine.

    Args:
        lost: called with this object when the program has ended, unless `stop` ended it.
    """

    def __init__(self, events: NodeEvents, lost: Callable[[NodeProgram], None]) -> None:
        self.link = NodeLink(events, lambda data: self._transport.write(data))
        self._lost, self._is_stopped = lost, False

    async def start(self, python: str, *, lock: Path | None, preload: Sequence[str], grace_s: float) -> None:
        """Start the program. Raises OSError."""
        self._process, ours = agent_process(
            python, lock=lock, preload=preload, grace_s=grace_s, env=os.environ
        )
        self._transport, _ = await asyncio.get_running_loop().create_connection(lambda: self, sock=ours)

    def data_received(self, data: bytes) -> None:
        """Lines of the program."""
        self.link.received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """The program has ended, and its ranks with it."""
        if not self._is_stopped:
            self._process.kill()  # the socket is closed only after this: one that lives would wait for that
        code = self._process.poll() if self._is_stopped else self._process.wait()
        self.link.closed(f"ended with code {code} as it started")
        if not self._is_stopped:
            self._lost(self)

    async def stop(self) -> None:
        """End the program; its ranks have ended before."""
        self._is_stopped = True
        self._transport.close()
        if not self.link.is_ready:
            self._process.kill()  # it imports modules, and would see the end of its socket only after that
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self._process.wait, END_S)
        self._process.kill()
        await asyncio.to_thread(self._process.wait)


class ThisMachine:
    """All nodes are on this machine."""

    async def open(self, wanted: Mapping[str, int], *, cuda: bool) -> Slots:
        """The nodes that are wanted. Raises UsageError."""
        if not wanted:
            raise UsageError("names no slots", field="nodes", expected="nodes in the file, or --slots N")
        return Slots(wanted, cuda)

    def address(self, node: str) -> str:
        """This machine."""
        return LOCAL_ADDRESS

    def program(self, node: str, events: NodeEvents, lost: Callable[[NodeProgram], None]) -> NodeProgram:
        """A process of this machine."""
        return NodeProcess(events, lost)

    async def close(self) -> None:
        """Nothing is left."""
