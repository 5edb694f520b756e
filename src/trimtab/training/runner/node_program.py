"""The program of a node (`node_agent.py`), as the run sees it, and the nodes that a run has on a host."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from trimtab.errors import UsageError
from trimtab.live.program_host import PYTHON, HostNode, Launcher, Link, Program
from trimtab.training.runner import node_agent

END_S: Final = 10.0  # for a program to end before it is killed

Warm = tuple[str, tuple[str, ...]]  # Python, "" = the node's own; modules that it has imported


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


class NodeProgram:
    """Commands to the program of a node, and what it tells: lines of JSON.

    Args:
        lost: called when the program has ended, unless `stop` ended it, or it was not ready.
        cold: called when a warm program of it has ended.
    """

    def __init__(
        self, events: NodeEvents, lost: Callable[[], None], cold: Callable[[Warm], None] = lambda warm: None
    ) -> None:
        self._events, self._lost, self._cold, self._data = events, lost, cold, b""
        self._link: Link | None = None
        self._is_stopped, self._why = False, ""
        self._ready: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._ports: list[asyncio.Future[tuple[str, int]]] = []
        self._warming: dict[str, tuple[Warm, asyncio.Future[None]]] = {}

    async def start(self, launcher: Launcher, node: HostNode, program: Program) -> int:
        """Start the program; its process id, once it is ready. Raises OSError."""
        self._link = await launcher.start(node, program, self)
        try:
            return await self._ready
        except BaseException:
            await self.stop()
            raise

    def start_rank(self, start: RankStart, warm: Warm) -> None:
        """Start a rank: as a fork of a warm program that is ready, else anew."""
        given: dict[str, Any] = {"argv": list(start.argv), "env": dict(start.env), "gpus": list(start.gpus)}
        given |= {"memory_gib": start.memory_gib, "program": _name(warm)}
        self._send(do="start", rank=start.key, cwd=str(start.cwd), log=str(start.log), **given)

    def signal_rank(self, key: str, number: int) -> None:
        """Send a signal to a rank, if it still runs."""
        self._send(do="signal", rank=key, signal=int(number))

    def free_port(self) -> asyncio.Future[tuple[str, int]]:
        """A free port, and the address if the program knows it; ConnectionError where it ends before."""
        port: asyncio.Future[tuple[str, int]] = asyncio.get_running_loop().create_future()
        self._ports.append(port)
        self._send(do="port")
        return port

    def warm_up(self, warm: Warm) -> asyncio.Future[None]:
        """Start a warm program there; ConnectionError where it does not start."""
        python, preload = warm
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._warming[_name(warm)] = warm, ready
        self._send(do="warm", program=_name(warm), python=python, preload=preload)
        return ready

    def _send(self, **message: Any) -> None:
        assert self._link is not None
        self._link.write(json.dumps(message).encode() + b"\n")

    def received(self, data: bytes) -> None:
        """Bytes of the program."""
        *lines, self._data = (self._data + data).split(b"\n")
        for line in lines:
            self._heard(json.loads(line))

    def _heard(self, message: Mapping[str, Any]) -> None:
        match message["event"]:
            case "ready":
                self._ready.set_result(int(message["pid"]))
            case "port":
                self._ports.pop(0).set_result((message["address"], int(message["port"])))
            case "warm":
                self._warming[message["program"]][1].set_result(None)
            case "cold":
                warm, ready = self._warming.pop(message["program"])
                if ready.done():
                    self._cold(warm)
                else:
                    _refuse(ready, message["why"])
            case "failed":
                self._why = message["why"]
            case "report":
                self._events.reported(message["rank"], message["line"])
            case "end":
                self._events.ended(message["rank"], message["code"], "")
            case _:
                self._events.ended(message["rank"], 127, message["why"])

    def ended(self, how: str) -> None:
        """The program has ended, and its ranks with it: calls that wait for an answer get none."""
        was_ready = self._ready.done()
        warming = [ready for _, ready in self._warming.values()]
        waiting: list[asyncio.Future[Any]] = [self._ready, *self._ports, *warming]
        for each in waiting:
            _refuse(each, self._why or f"ended {how}" + ("" if was_ready else " as it started"))
        self._ports.clear()
        if was_ready and not self._is_stopped:
            self._lost()

    async def stop(self) -> None:
        """End the program; its ranks have ended before."""
        self._is_stopped = True
        if self._link is not None:
            await self._link.stop(END_S)


def _name(warm: Warm) -> str:
    return json.dumps(warm)


def _refuse(waiting: asyncio.Future[Any], why: str) -> None:
    if not waiting.done():
        waiting.set_exception(ConnectionError(why))
        waiting.exception()  # seen


def node_program(*, is_here: bool, lock: Path, grace_s: float, reserves: Mapping[str, float]) -> Program:
    """What runs on a node."""
    file = [node_agent.__file__] if is_here else ["-m", node_agent.__name__]
    words = ["--grace-s", f"{grace_s}", "--lock", str(lock.absolute())]
    return Program([PYTHON, *file, *words], {}, reserves, grace_s)


class Slots(NamedTuple):
    """The nodes of a run and their slots."""

    slots: Mapping[str, int]  # node → its slots
    cuda: bool  # whether slots are GPUs


def slots_on(node: HostNode, *, cuda: bool) -> int:
    """The slots of a node: its GPUs or its CPUs; one that counts nothing has those that it says."""
    return int(node.capacity.get("gpu" if cuda else "cpu", 0.0)) if node.capacity else node.slots


def slots_of(nodes: Sequence[HostNode], wanted: Mapping[str, int], *, cuda: bool) -> Slots:
    """The slots of the nodes that are wanted, else of all: GPUs, or CPUs where no node has any.

    Raises UsageError.
    """
    known = {node.name: node for node in nodes}
    for name in wanted:
        if name not in known:
            raise UsageError("no such node", field="nodes", value=name, expected=", ".join(known))
    found = {name: known[name] for name in wanted} or known
    are_gpus = cuda or any(node.capacity.get("gpu", 0.0) >= 1.0 for node in found.values())
    resource = "gpu" if are_gpus else "cpu"
    slots = {name: slots_on(node, cuda=are_gpus) for name, node in found.items()}
    for name, count in wanted.items():
        if count > slots[name]:
            expected = f"at most {slots[name]}, the {resource.upper()}s that it has"
            raise UsageError("is too many slots", field=f"nodes.{name}", value=count, expected=expected)
    slots = dict(wanted) or {name: count for name, count in slots.items() if count}
    if not slots:
        expected = f"a host with {resource.upper()}s"
        raise UsageError("no node has any", field="cuda", value=cuda, expected=expected)
    return Slots(slots, are_gpus)
