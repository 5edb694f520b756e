"""The nodes of a run: which slots are free, and the programs that start ranks there."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from trimtab.errors import UsageError
from trimtab.training.runner.node_programs import (
    LOCAL_ADDRESS,
    NodeEvents,
    NodeProgram,
    RankStart,
    SlotSource,
)

RESTART_S: Final = 1.0  # before a node's program is started again; doubled up to
LONGEST_S: Final = 30.0
_STARTS: Final = "starts a program"  # name of tasks

Warm = tuple[str, tuple[str, ...]]  # Python, "" = the node's own; modules that it has imported
PLAIN: Final[Warm] = ("", ())
NODES_PYTHON: Final = "python"  # as the word of a command: the one that runs the node's program


class PoolEvents(NodeEvents, Protocol):
    """A listener to the events of all nodes."""

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
    if command[0] == NODES_PYTHON:
        return "", tuple(preload)
    python = shutil.which(command[0])
    return (python, tuple(preload)) if python else PLAIN


class SlotPool:
    """Slots of nodes.

    Args:
        source: where the nodes are.
        slots: name of each node → its slots.
        warm: the programs that each node starts beside the plain one.
        folder: where the nodes' locks are.
    """

    def __init__(
        self,
        source: SlotSource,
        slots: Mapping[str, int],
        warm: Sequence[Warm],
        folder: Path,
        grace_s: float,
        events: PoolEvents,
    ) -> None:
        self.names = tuple(slots)
        self.free = [list(range(count)) for count in slots.values()]
        self.is_up = [False] * len(self.names)
        self._source = source
        self._warm, self._folder, self._grace_s, self._events = tuple(warm), folder, grace_s, events
        self._programs: dict[tuple[int, Warm], NodeProgram] = {}
        self._of_rank: dict[str, tuple[int, Warm]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_open = False

    async def open(self) -> None:
        """Start the programs of all nodes. Raises UsageError; a warm one that does not start is left out."""
        self._is_open = True
        try:
            await asyncio.gather(*(self._start(j, PLAIN) for j in range(len(self.names))))
        except OSError as error:
            await self.close()
            raise UsageError(f"nodes do not start: {error}", field="nodes") from error
        self.is_up = [True] * len(self.names)
        for warm in self._warm:
            starts = (self._start(j, warm) for j in range(len(self.names)))
            for failed in await asyncio.gather(*starts, return_exceptions=True):
                if isinstance(failed, OSError):
                    self._events.said(f"{warm[0]} with {', '.join(warm[1])} does not start: {failed}")
                    break

    async def _start(self, node_idx: int, warm: Warm) -> None:
        def lost(_: NodeProgram) -> None:
            self._lost(node_idx, warm)

        program = self._source.program(self.names[node_idx], self._events, lost)
        lock = self._folder / f"node-{self.names[node_idx]}.lock" if warm == PLAIN else None
        await program.start(warm[0], lock=lock, preload=warm[1], grace_s=self._grace_s)
        try:
            await program.link.ready
        except BaseException:
            await program.stop()
            raise
        self._programs[node_idx, warm] = program

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
        program = self._programs.get((first, PLAIN))
        if program is None:
            raise ConnectionError(f"node {self.names[first]} is gone")
        address = LOCAL_ADDRESS if len(node_idxs) == 1 else self._source.address(self.names[first])
        return address, await program.link.free_port()

    def start_rank(self, node_idx: int, start: RankStart, warm: Warm) -> None:
        """Start a rank: as a fork of a warm program that is ready, else anew."""
        at = (node_idx, warm) if (node_idx, warm) in self._programs else (node_idx, PLAIN)
        if at not in self._programs:
            self._events.ended(start.key, 127, f"node {self.names[node_idx]} is gone")
            return
        self._of_rank[start.key] = at
        self._programs[at].link.start_rank(start)

    def signal_rank(self, key: str, number: Any) -> None:
        """Send a signal to a rank."""
        if (program := self._programs.get(self._of_rank.get(key, (-1, PLAIN)))) is not None:
            program.link.signal_rank(key, number)

    def forget(self, key: str) -> None:
        """A rank has ended."""
        self._of_rank.pop(key, None)

    def _lost(self, node_idx: int, warm: Warm) -> None:
        """A program has ended: so have its ranks; without the plain one the node is gone."""
        if self._programs.pop((node_idx, warm), None) is None:
            return  # it has not been ready: its start reports that
        lost = [key for key, at in self._of_rank.items() if at == (node_idx, warm)]
        if warm == PLAIN:
            self.is_up[node_idx] = False
            for other in self._warm:
                if (program := self._programs.pop((node_idx, other), None)) is not None:
                    self._spawn(program.stop())
            lost = [key for key, at in self._of_rank.items() if at[0] == node_idx]
            self._events.node_changed(node_idx, False, f"node {self.names[node_idx]} is gone")
        for key in lost:
            self._events.ended(key, -9, "")
        if self._is_open:
            self._spawn(self._keep_trying(node_idx, warm, RESTART_S), _STARTS)

    async def _keep_trying(self, node_idx: int, warm: Warm, delay_s: float) -> None:
        while self._is_open:
            await asyncio.sleep(delay_s)
            delay_s = min(LONGEST_S, 2.0 * max(delay_s, RESTART_S))
            if warm != PLAIN and not self.is_up[node_idx]:
                continue
            with contextlib.suppress(OSError):
                await self._start(node_idx, warm)
                break
        if warm == PLAIN and self._is_open:
            self.is_up[node_idx] = True
            self._events.node_changed(node_idx, True, "")
            for other in self._warm:
                self._spawn(self._keep_trying(node_idx, other, RESTART_S), _STARTS)

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
        await self._source.close()
