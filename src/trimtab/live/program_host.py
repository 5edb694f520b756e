"""Hosts: where programs run. A host knows its nodes (`NodeSource`) and starts programs there (`Launcher`).

Chains run their workers on it, training jobs the programs that start their ranks. A host of another package
is found by the entry point `trimtab.hosts`: a class that is called with its address, the whole NAME://REST
or empty, and with the slots that the user gave names of nodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

LOCAL_ADDRESS: Final = "127.0.0.1"
NO_SLOTS: Final[Mapping[str, int]] = {}  # no nodes are named
PYTHON: Final = "python"  # as the first word of a command: the node's Python that has trimtab


@dataclass(frozen=True, slots=True)
class HostNode:
    """A node: a machine, or a part of one."""

    name: str
    slots: int = 1  # programs that it takes at a time, where `capacity` says nothing
    capacity: Mapping[str, float] = field(default_factory=dict)  # cpu, gpu, memory_gib, …; empty = any
    labels: Mapping[str, str] = field(default_factory=dict)
    address: str = LOCAL_ADDRESS  # where other nodes reach it; HOST:PORT, if it is one port there
    type: str = ""  # nodes of a type are equally fast; empty = its own
    zone: str = ""
    usd_per_hour: float = 0.0


Told = Callable[[HostNode], None]
Troubled = Callable[[str], None]


async def tell_by_asking(
    known: Mapping[str, HostNode],
    ask: Callable[[], Awaitable[Mapping[str, HostNode]]],
    every_s: float,
    silent: str,
    told: tuple[Told, Told, Told, Troubled],
) -> None:
    """Ask for the nodes, by name, again and again; tell `added`, `changed`, `removed` and `troubled`.

    `silent` says that there is no answer.
    """
    added, changed, removed, troubled = told
    while True:
        await asyncio.sleep(every_s)
        before = known
        try:
            known = await ask()
        except Exception as error:  # clients of clusters raise many kinds
            troubled(f"{silent}: {error}")
            continue
        troubled("")
        for name, node in known.items():
            if name not in before:
                added(node)
            elif node != before[name]:
                changed(node)
        for name, node in before.items():
            if name not in known:
                removed(node)


class NodeSource(Protocol):
    """Where nodes come from."""

    def nodes(self) -> Sequence[HostNode]:
        """The nodes that are there now. Connects if it has to, and may take seconds. Raises UsageError."""

    def follow(self, added: Told, changed: Told, removed: Told, troubled: Troubled) -> None:
        """Tell from now on, on this event loop, what differs from what `nodes` gave last.

        `troubled`: why that is not known now, and all nodes stay as they are; empty = it is known again.
        """

    async def close(self) -> None:
        """Stop telling, disconnect. All programs have ended. May be called twice."""


@dataclass(frozen=True, slots=True)
class Program:
    """A command for a node.

    Its standard input is a socket, by which it talks to the host in both directions; it ends when that ends.
    What it prints goes where the node keeps the output of programs.
    """

    argv: Sequence[str]  # begins with PYTHON, or with a path on the node
    env: Mapping[str, str] = field(default_factory=dict)  # over the environment of the node
    reserves: Mapping[str, float] = field(default_factory=dict)  # of the node's capacity, as long as it runs
    grace_s: float = 0.0  # that it may go on for when its socket has ended, as when this process is killed


class ProgramEvents(Protocol):
    """A listener to one program. It may be told things before `start` has returned the link."""

    def received(self, data: bytes) -> None:
        """It sent bytes."""

    def ended(self, how: str) -> None:
        """It has ended, or is out of reach for good. Called once, after all `received`.

        `how` follows the word "ended": "by SIGKILL", "with code 1", "as its node was lost".
        """


class Link(Protocol):
    """A program that was started."""

    name: str  # that people find it by: "process 4711", "pod worker-3"
    pid: int  # of its process on this machine; 0 = it is elsewhere

    def write(self, data: bytes) -> None:
        """Send it bytes, in this order; for nothing if it has ended."""

    def signal(self, number: int) -> None:
        """Send it a signal, if it still runs."""

    async def stop(self, within_s: float = 0.0) -> None:
        """Close its socket, kill it unless it ends within this time, and return when it has ended."""


class Launcher(Protocol):
    """Starts programs on nodes."""

    driver_address: str  # where nodes reach this machine; empty = they are on it, with its files and memory

    async def start(self, node: HostNode, program: Program, events: ProgramEvents) -> Link:
        """Start a program. Raises OSError if it does not start, as where the node has no room, or is gone."""


class Host(NodeSource, Launcher, Protocol):
    """Nodes, and programs on them."""
