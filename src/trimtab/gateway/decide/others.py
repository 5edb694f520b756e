"""Several processes: what the others have sent to the shared nodes, and room that they have left."""

from __future__ import annotations

import asyncio
from typing import Final

from trimtab.gateway.decide.loads import Change, Loads
from trimtab.gateway.decide.pool import Pool
from trimtab.gateway.decide.pools import Pools, Turns
from trimtab.gateway.model import Node
from trimtab.gateway.nodes.fleet import Fleet

LOOK_S: Final = 0.002  # how often a queue looks for room that other processes have left


class Others:
    """Takes in what other processes do to the nodes, before anything is decided here."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, fleet: Fleet, loads: Loads, pools: Pools, turns: Turns
    ) -> None:
        self._loop, self._loads, self._pools, self._turns = loop, loads, pools, turns
        self._folding = False
        self._timer: asyncio.TimerHandle | None = None
        for node in fleet.nodes:
            loads.know(node)

    def close(self) -> None:
        """No timer is left."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def know(self, node: Node) -> None:
        """A node more to share."""
        self._loads.know(node)

    def forget(self, node: Node) -> None:
        """It is gone."""
        self._loads.forget(node)

    def fold(self, now_s: float) -> None:
        """Take in what other processes have sent to nodes, or taken back.

        Each start follows such a look at once, and a look lets at most one request start on a node. So all
        processes together send a node at most as many requests too many as there are other processes.
        """
        loads = self._loads
        if self._folding:
            return
        self._folding = True
        try:
            while changes := loads.changes():
                given_back = [c for c in changes if c.requests < 0 and self._pools.any_waits]
                for change in changes:
                    if change not in given_back:
                        self._take_in(change, now_s)
                if given_back:
                    loads.look_again()
                    if self._starts_now(now_s):  # in room of its own, of which the others knew nothing
                        continue
                    first = given_back[0]
                    self._take_in(Change(first.node_idx, -1, first.seconds / -first.requests), now_s)
                    self._starts_now(now_s)
        finally:
            self._folding = False

    def look_later(self) -> None:
        """Nobody tells a queue that another process has left room: it looks."""
        if self._timer is None and self._pools.any_waits:
            self._timer = self._loop.call_later(LOOK_S, self._look)

    def offer(self, pool: Pool, now_s: float) -> None:
        """Offer room that is new, a place of each node at a time: other processes look for it too."""
        kept: list[int] = []
        if any(entry.node_idx < 0 for entry in pool.entries.values()):
            room = pool.live.nodes.room
            for j in range(len(room)):
                kept.append(max(0, room[j] - 1))
                room[j] -= kept[j]
        self._turns.turn(pool, now_s)
        for j, places in enumerate(kept):
            for left in range(places, 0, -1):
                offered = 1 if pool.live.n_held else left
                pool.live.change_room(j, offered, now_s)
                self._turns.turn(pool, now_s)
                if offered == left:
                    break

    def _look(self) -> None:
        self._timer = None
        self.fold(self._pools.now_s())
        self.look_later()

    def _starts_now(self, now_s: float) -> bool:
        """Give every pool its turn; whether one of them starts a request."""
        before = self._turns.decisions
        for pool in tuple(self._pools.by_spec.values()):
            self._turns.turn_now(pool, now_s)
        return self._turns.decisions > before

    def _take_in(self, change: Change, now_s: float) -> None:
        self._loads.take(change)
        for pool in self._pools.by_spec.values():
            pool.live.add_load(*change, now_s)
