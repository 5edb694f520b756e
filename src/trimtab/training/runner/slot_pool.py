"""The nodes of a run: which slots are free, and the programs that start ranks there."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from trimtab.errors import UsageError
from trimtab.live.program_host import LOCAL_ADDRESS, PYTHON, Host, HostNode
from trimtab.training.runner.node_program import (
    NodeEvents,
    NodeProgram,
    RankStart,
    Warm,
    node_program,
    slots_on,
)
from trimtab.training.runner.run_ledger import RunSettings

RESTART_S: Final = 1.0  # before a node's program is started again; doubled up to
LONGEST_S: Final = 30.0
_STARTS: Final = "starts a program"  # name of tasks

PLAIN: Final[Warm] = ("", ())


class PoolEvents(NodeEvents, Protocol):
    """A listener to the events of all nodes."""

    def node_came(self, name: str, slots: int) -> None:
        """There is a further node, which is not up yet."""

    def node_changed(self, node_idx: int, up: bool, why: str) -> None:
        """A node is there again, or is gone; `ended` follows for each of its ranks."""

    def said(self, text: str) -> None:
        """Something that the user should know."""


def warm_program(command: Sequence[str], preload: Sequence[str]) -> Warm:
    """The program that can start a command as a fork; PLAIN where none can."""
    if not preload or not os.path.basename(command[0]).startswith("python") or len(command) < 2:
        return PLAIN
    if command[1].startswith("-") and not (command[1] == "-m" and len(command) > 2):
        return PLAIN
    if command[0] == PYTHON:
        return "", tuple(preload)
    python = shutil.which(command[0])
    return (python, tuple(preload)) if python else PLAIN


class SlotPool:
    """Slots of nodes.

    Args:
        host: where the nodes are.
        settings: of the run, with the slots of each node.
        warm: the programs that each node starts beside its own.
        folder: where the nodes' locks are.
    """

    def __init__(
        self,
        host: Host,
        settings: RunSettings,
        warm: Sequence[Warm],
        folder: Path,
        grace_s: float,
        events: PoolEvents,
    ) -> None:
        self.names = list(settings.slots)
        self.free = [list(range(count)) for count in settings.slots.values()]
        self.is_up = [False] * len(self.names)
        self._host, self._cuda, self._takes_all = host, settings.cuda, settings.all_nodes
        self._slots = list(settings.slots.values())
        self._nodes: dict[str, HostNode] = {}
        self._came = asyncio.Event()
        self._trouble = ""
        self._warm, self._folder, self._grace_s, self._events = tuple(warm), folder, grace_s, events
        self._programs: dict[int, NodeProgram] = {}
        self._of_rank: dict[str, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_open = False

    async def open(self) -> None:
        """Start the programs of all nodes. Raises UsageError; a warm one that does not start is left out."""
        self._is_open = True
        self._nodes = {node.name: node for node in await asyncio.to_thread(self._host.nodes)}
        try:
            await asyncio.gather(*(self._start(j) for j in range(len(self.names))))
        except OSError as error:
            await self.close()
            raise UsageError(f"nodes do not start: {error}", field="nodes") from error
        self.is_up = [True] * len(self.names)
        self._host.follow(self._on_added, self._on_changed, self._on_removed, self._on_trouble)
        for warm in self._warm:
            starts = (program.warm_up(warm) for program in self._programs.values())
            for failed in await asyncio.gather(*starts, return_exceptions=True):
                if isinstance(failed, OSError):
                    self._events.said(f"{warm[0]} with {', '.join(warm[1])} does not start: {failed}")
                    break

    async def _start(self, node_idx: int) -> None:
        name = self.names[node_idx]
        if name not in self._nodes:
            raise ConnectionError(f"there is no node {name}")
        program = NodeProgram(
            self._events,
            lambda: self._lost(node_idx),
            lambda warm: self._spawn(self._warm_again(node_idx, program, warm), _STARTS),
        )
        command = node_program(
            is_here=not self._host.driver_address,
            lock=self._folder / f"node-{name}.lock",
            grace_s=self._grace_s,
            reserves={"gpu" if self._cuda else "cpu": float(self._slots[node_idx])},
        )
        await program.start(self._host, self._nodes[name], command)
        self._programs[node_idx] = program

    def _on_added(self, node: HostNode) -> None:
        self._nodes[node.name] = node
        self._came.set()
        self._came.clear()
        if self._takes_all and node.name not in self.names and (count := slots_on(node, cuda=self._cuda)):
            self.names.append(node.name)
            self._slots.append(count)
            self.free.append(list(range(count)))
            self.is_up.append(False)
            self._events.node_came(node.name, count)
            self._spawn(self._started_again(len(self.names) - 1, 0.0, "has come"), _STARTS)

    def _on_changed(self, node: HostNode) -> None:
        self._nodes[node.name] = node

    def _on_removed(self, node: HostNode) -> None:
        self._nodes.pop(node.name, None)
        node_idx = self.names.index(node.name) if node.name in self.names else -1
        if (program := self._programs.get(node_idx)) is not None:
            self._lost(node_idx)
            self._spawn(program.stop())

    def _on_trouble(self, why: str) -> None:
        if why not in ("", self._trouble):
            self._events.said(f"which nodes there are is not known now: {why}")
        self._trouble = why

    def take(self, node_idx: int, count: int) -> tuple[int, ...]:
        """Slots of a node, which has so many free."""
        taken = tuple(self.free[node_idx][:count])
        del self.free[node_idx][:count]
        return taken

    def give_back(self, node_idx: int, slots: Sequence[int]) -> None:
        """Slots are free again."""
        self.free[node_idx] = sorted([*self.free[node_idx], *slots])

    async def meeting_point(self, node_idxs: Sequence[int]) -> tuple[str, int]:
        """Address and port, on the first of these nodes, where all of them meet. Raises ConnectionError."""
        first = node_idxs[0]
        program = self._programs.get(first)
        if program is None:
            raise ConnectionError(f"node {self.names[first]} is gone")
        own, port = await program.free_port()
        is_alone = len(node_idxs) == 1
        return LOCAL_ADDRESS if is_alone else own or self._nodes[self.names[first]].address, port

    def start_rank(self, node_idx: int, start: RankStart, warm: Warm) -> None:
        """Start a rank: as a fork of a warm program that is ready, else anew."""
        if node_idx not in self._programs:
            self._events.ended(start.key, 127, f"node {self.names[node_idx]} is gone")
            return
        self._of_rank[start.key] = node_idx
        self._programs[node_idx].start_rank(start, warm)

    def signal_rank(self, key: str, number: Any) -> None:
        """Send a signal to a rank."""
        if (program := self._programs.get(self._of_rank.get(key, -1))) is not None:
            program.signal_rank(key, number)

    def forget(self, key: str) -> None:
        """A rank has ended."""
        self._of_rank.pop(key, None)

    def _lost(self, node_idx: int) -> None:
        """The program of a node has ended: so have its ranks, and the node is gone."""
        if self._programs.pop(node_idx, None) is None:
            return  # its node has gone before
        self.is_up[node_idx] = False
        self._events.node_changed(node_idx, False, f"node {self.names[node_idx]} is gone")
        for key in [key for key, j in self._of_rank.items() if j == node_idx]:
            self._events.ended(key, -9, "")
        if self._is_open:
            self._spawn(self._started_again(node_idx, RESTART_S), _STARTS)

    async def _started_again(self, node_idx: int, delay_s: float, why: str = "is there again") -> None:
        while node_idx not in self._programs:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._came.wait(), delay_s)
            delay_s = min(LONGEST_S, 2.0 * max(delay_s, RESTART_S))
            with contextlib.suppress(OSError):
                await self._start(node_idx)
        self.is_up[node_idx] = True
        self._events.node_changed(node_idx, True, f"node {self.names[node_idx]} {why}")
        for warm in self._warm:
            self._spawn(self._warm_again(node_idx, self._programs[node_idx], warm), _STARTS)

    async def _warm_again(self, node_idx: int, program: NodeProgram, warm: Warm) -> None:
        delay_s = RESTART_S
        while self._programs.get(node_idx) is program:
            await asyncio.sleep(delay_s)
            delay_s = min(LONGEST_S, 2.0 * delay_s)
            with contextlib.suppress(OSError):
                await program.warm_up(warm)
                return

    def _spawn(self, work: Coroutine[Any, Any, None], name: str = "") -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """End all programs. Their ranks have ended before, or end now."""
        self._is_open = False
        for task in self._tasks:
            if task.get_name() == _STARTS:
                task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(program.stop() for program in self._programs.values()))
        self._programs.clear()
