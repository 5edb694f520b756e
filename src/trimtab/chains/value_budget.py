"""Bounds the values of inputs in flight, so that they do not fill the backend's store."""

from __future__ import annotations

from collections import deque

from trimtab.chains.host_state import GIB, HostState
from trimtab.chains.run_progress import StageInstance
from trimtab.chains.run_state import ItemRun
from trimtab.errors import UsageError
from trimtab.live.stage_backend import BoundedBackend


class ValueBudget:
    """Holds attempts back while values take as many bytes as they may.

    Then only the input that entered first gets attempts, until it is over and its values are free: so one
    always goes on, and the others follow. Attempts that run at that time still add their outputs.

    Args:
        most_gib: that values may take; None = what the backend says.
    """

    def __init__(self, host: HostState, most_gib: float | None) -> None:
        if most_gib is not None and not most_gib > 0.0:
            raise UsageError("not a size", field="values_gib", value=most_gib, expected="more than 0")
        self._host, self._most_gib = host, most_gib
        self._most_bytes, self._places = float("inf"), 0
        self._waiting: dict[ItemRun, deque[StageInstance]] = {}

    def open(self) -> None:
        """The backend is open: its nodes, and its room for values, are known."""
        backend = self._host.backend
        self._places = sum(node.slots * node.depth for node in backend.nodes)
        if self._most_gib is not None:
            self._most_bytes = self._most_gib * GIB
        elif isinstance(backend, BoundedBackend):
            self._most_bytes = backend.value_bytes

    def allows(self, item: ItemRun) -> bool:
        """Whether an instance of this input may be sent now."""
        return self._has_room() or item is self._first()

    def holds_back(self, item: ItemRun, at: StageInstance) -> bool:
        """Whether an instance that the loop has placed must wait. Then the loop has it back."""
        host = self._host
        if self.allows(item):
            return False
        self._waiting.setdefault(item, deque()).append(at)
        host.loop.runs.lose(item.row(at), host.now_s(), float("inf"))
        host.wake()
        return True

    @property
    def is_holding(self) -> bool:
        """Whether attempts are held back."""
        return bool(self._waiting)

    def offer(self) -> None:
        """Offer the loop what may go on now, but no more than fills its places. To be called in each turn."""
        if not self.is_holding:
            return
        offered = []
        if (first := self._first()) in self._waiting:
            offered += [(first, at) for at in self._waiting.pop(first)]
        if self._has_room():
            free = self._places - sum(self._host.loop.waiting())
            while self._waiting and len(offered) < free:
                item, instances = next(iter(self._waiting.items()))
                if self._host.is_in_flight(item):
                    offered.append((item, instances.popleft()))
                else:  # its run is over
                    instances.clear()
                if not instances:
                    del self._waiting[item]
        for item, at in offered:
            self._host.loop.runs.offer(item.row(at), self._host.now_s())
            self._host.wake()

    def _has_room(self) -> bool:
        return self._host.refs.held_bytes < self._most_bytes

    def _first(self) -> ItemRun | None:
        """The input in flight that entered first."""
        return next(iter(self._host.items.values()), None)
