"""What several dispatching processes have sent to each node: rows in shared memory, one writer each.

A process writes only its own row: requests in flight and estimated seconds of each node. It reads the sum of
the others' rows. Nothing is locked on the way of a request; only a new node's slot is given under a lock.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import numpy as np

from trimtab.gateway.model import Node

SLOTS: Final = 4096  # nodes that can be shared at a time
_REQUESTS, _SECONDS = 0, 1


class Change(NamedTuple):
    """What others have sent to a node since it was last taken in; negative = taken back."""

    node_idx: int
    requests: int
    seconds: float


class SharedLoads:
    """The memory. Made before the processes are forked, which inherit it."""

    def __init__(self, rows: int, slots: int = SLOTS) -> None:
        sizes = (8 * (1 + rows), 8 * slots, 8 * rows * 2 * slots, rows * slots)
        self._fd = _memory_file(sum(sizes))
        weakref.finalize(self, os.close, self._fd)
        self._map = mmap.mmap(self._fd, sum(sizes))
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        self.head = np.ndarray(1 + rows, np.int64, self._map, starts[0])  # slots in use; versions [rows]
        self.names = np.ndarray(slots, np.int64, self._map, starts[1])
        self.loads = np.ndarray((rows, 2, slots), np.float64, self._map, starts[2])
        self.claims = np.ndarray((rows, slots), np.uint8, self._map, starts[3])

    def zero(self, row: int) -> None:
        """Its process is dead: what it had sent out is no load any more."""
        self.loads[row] = 0.0
        with self.locked():
            self.claims[row] = 0
        self.head[1 + row] += 1

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep the other processes from giving slots. The lock of a process that dies is free."""
        fcntl.lockf(self._fd, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN)


class Loads:
    """The shared loads as one process sees them: its own row, and the sum of the others'."""

    def __init__(self, shared: SharedLoads, row: int) -> None:
        self._shared, self._row = shared, row
        self._others = [other for other in range(len(shared.loads)) if other != row]
        self._versions: Any = memoryview(shared.head.data)
        self._own: Any = memoryview(shared.loads.data)
        self._taken = np.zeros(shared.loads.shape[1:])  # of the others' sum
        self._seen = -1
        self._slot_of: dict[int, int] = {}  # by the node's index
        self._node_at: dict[int, int] = {}

    def know(self, node: Node) -> None:
        """Share this node's load from now on. Where there is no slot left it is this process's alone."""
        if node.idx in self._slot_of:
            return
        slot = self._claimed(_identity(node))
        if slot >= 0:
            self._slot_of[node.idx], self._node_at[slot] = slot, node.idx
            self._seen = -1

    def forget(self, node: Node) -> None:
        """It is gone. Its slot is free when no process has work there."""
        slot = self._slot_of.get(node.idx, -1)
        if slot < 0 or self._own[self._row, _REQUESTS, slot]:
            return
        del self._slot_of[node.idx], self._node_at[slot]
        self._taken[:, slot] = 0.0
        with self._shared.locked():
            self._shared.claims[self._row, slot] = 0

    def add(self, node_idx: int, requests: int, seconds: float) -> None:
        """This process sends a node work, or takes it back."""
        slot = self._slot_of.get(node_idx, -1)
        if slot < 0:
            return
        own, row = self._own, self._row
        count = own[row, _REQUESTS, slot] + requests
        own[row, _REQUESTS, slot] = count
        # without requests there are no seconds, whatever the rounding
        own[row, _SECONDS, slot] = own[row, _SECONDS, slot] + seconds if count > 0.0 else 0.0
        self._versions[1 + row] += 1

    def changes(self) -> list[Change]:
        """What the others have sent out, or taken back, since it was taken in; `take` takes it in."""
        versions = self._versions
        seen = sum(versions) - versions[1 + self._row]
        if seen == self._seen:
            return []
        self._seen = seen
        used = versions[0]
        delta = self._shared.loads[self._others, :, :used].sum(axis=0) - self._taken[:, :used]
        found = []
        for slot in np.flatnonzero(delta.any(axis=0)).tolist():
            node_idx = self._node_at.get(slot, -1)
            if node_idx >= 0:
                found.append(Change(node_idx, int(delta[_REQUESTS, slot]), float(delta[_SECONDS, slot])))
        return found

    def take(self, change: Change) -> None:
        """This change, or a part of it, is known from now on."""
        self._taken[:, self._slot_of[change.node_idx]] += change[1:]

    def look_again(self) -> None:
        """Not all of the changes were taken in: the next look finds the rest."""
        self._seen = -1

    def taken(self) -> list[Change]:
        """All that is known of the others' loads."""
        return [
            Change(node_idx, int(self._taken[_REQUESTS, slot]), float(self._taken[_SECONDS, slot]))
            for node_idx, slot in self._slot_of.items()
            if self._taken[:, slot].any()
        ]

    def _claimed(self, identity: int) -> int:
        shared = self._shared
        with shared.locked():
            is_claimed = shared.claims.any(axis=0)
            named = np.flatnonzero(is_claimed & (shared.names == identity))
            free = named if len(named) else np.flatnonzero(~is_claimed)
            if not len(free):
                return -1
            slot = int(free[0])
            shared.names[slot], shared.claims[self._row, slot] = identity, 1
            shared.head[0] = max(shared.head[0], slot + 1)
        return slot


def _identity(node: Node) -> int:
    """The same in every process: indexes may differ where nodes come and go."""
    digest = blake2b(f"{node.name}\n{node.url}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def _memory_file(size: int) -> int:
    """A file that is nowhere, as a descriptor."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("trimtab-loads")
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, size)
    return fd
