"""Where the slots of a run are, and what starts its ranks there.

A node has programs (`node_agent.py`): a plain one, and others that have imported modules. A `SlotSource`
knows the nodes and makes their programs; all else of a run is the same wherever its nodes are.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

LOCAL_ADDRESS = "127.0.0.1"


class NodeEvents(Protocol):
    """A listener to the events of one node."""

    def reported(self, rank: str, line: str) -> None:
        """A rank wrote a line."""

    def ended(self, rank: str, code: int, why: str) -> None:
        """A rank ended; below 0 by a signal. `why` it did not start, else empty."""


@dataclass(frozen=True, slots=True)
class RankStart:
    """The command of a rank."""

    key: str
    argv: Sequence[str]
    env: Mapping[str, str]
    gpus: Sequence[int]  # slots of the node whose GPUs it sees; empty = slots are no GPUs
    cwd: Path
    log: Path
    memory_gib: float = 0.0  # that it may use; 0 = any amount


class NodeLink:
    """Commands to a program of a node, and what it tells: lines of JSON over any stream of bytes.

    Args:
        write: sends bytes to the program.
    """

    def __init__(self, events: NodeEvents, write: Callable[[bytes], None]) -> None:
        self._events, self._write, self._data = events, write, b""
        self.ready: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._ports: list[asyncio.Future[int]] = []

    @property
    def is_ready(self) -> bool:
        """Whether the program serves."""
        return self.ready.done() and not self.ready.cancelled() and self.ready.exception() is None

    def start_rank(self, start: RankStart) -> None:
        """Start a rank."""
        given: dict[str, Any] = {"argv": list(start.argv), "env": dict(start.env), "gpus": list(start.gpus)}
        given["memory_gib"] = start.memory_gib
        self._send(do="start", rank=start.key, cwd=str(start.cwd), log=str(start.log), **given)

    def signal_rank(self, key: str, number: int) -> None:
        """Send a signal to a rank, if it still runs."""
        self._send(do="signal", rank=key, signal=int(number))

    def free_port(self) -> asyncio.Future[int]:
        """A free port; ConnectionError where the program ends before it answers."""
        port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._ports.append(port)
        self._send(do="port")
        return port

    def _send(self, **message: Any) -> None:
        self._write(json.dumps(message).encode() + b"\n")

    def received(self, data: bytes) -> None:
        """Bytes of the program."""
        *lines, self._data = (self._data + data).split(b"\n")
        for line in lines:
            self._heard(json.loads(line))

    def _heard(self, message: Mapping[str, Any]) -> None:
        match message["event"]:
            case "ready":
                self.ready.set_result(int(message["pid"]))
            case "port":
                self._ports.pop(0).set_result(int(message["port"]))
            case "report":
                self._events.reported(message["rank"], message["line"])
            case "end":
                self._events.ended(message["rank"], message["code"], "")
            case _:
                self._events.ended(message["rank"], 127, message["why"])

    def closed(self, why: str) -> None:
        """The program has ended: calls that wait for an answer get none."""
        for waiting in (self.ready, *self._ports):
            if not waiting.done():
                waiting.set_exception(ConnectionError(why))
                waiting.exception()  # seen
        self._ports.clear()


class NodeProgram(Protocol):
    """A program of a node."""

    link: NodeLink

    async def start(self, python: str, *, lock: Path | None, preload: Sequence[str], grace_s: float) -> None:
        """Start the program under this Python, "" = the node's own; `link.ready` is done when it is ready.

        Raises OSError.
        """

    async def stop(self) -> None:
        """End the program; its ranks have ended before."""


class Slots(NamedTuple):
    """The nodes and their slots."""

    slots: Mapping[str, int]  # node → its slots
    cuda: bool  # whether slots are GPUs


class SlotSource(Protocol):
    """Where nodes come from."""

    async def open(self, wanted: Mapping[str, int], *, cuda: bool) -> Slots:
        """The nodes: those that are wanted, else all. Raises UsageError."""

    def address(self, node: str) -> str:
        """Where other nodes reach this one."""

    def program(self, node: str, events: NodeEvents, lost: Callable[[NodeProgram], None]) -> NodeProgram:
        """A program of a node, not started; `lost` is called when it has ended, unless `stop` ended it."""

    async def close(self) -> None:
        """All programs have ended."""
