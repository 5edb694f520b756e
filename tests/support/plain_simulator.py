"""A second simulator, written from the semantics alone: slots, resources, bounded FIFO queues, the held.

Objects, lists and heapq; nothing is shared with the package.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class PlainNode:
    """A server with `slots` places, a bounded queue, and so much of one resource, in whole numbers."""

    slots: int
    queue_max: int
    capacity: int = 0
    running: set[int] = field(default_factory=set)
    queue: list[int] = field(default_factory=list)

    @property
    def in_flight(self) -> int:
        return len(self.running) + len(self.queue)

    @property
    def has_room(self) -> bool:
        return self.in_flight < self.slots + self.queue_max


Chooser = Callable[[list[PlainNode]], list[int]]


def in_turn() -> Chooser:
    """Round robin with two fallbacks; every decision moves on by one."""
    turn = -1

    def choose(nodes: list[PlainNode]) -> list[int]:
        nonlocal turn
        turn += 1
        return [(turn + i) % len(nodes) for i in range(min(3, len(nodes)))]

    return choose


def emptiest() -> Chooser:
    """Fewest in flight among the nodes with room."""

    def choose(nodes: list[PlainNode]) -> list[int]:
        open_nodes = [j for j, node in enumerate(nodes) if node.has_room]
        return sorted(open_nodes, key=lambda j: (nodes[j].in_flight, j))[:1]

    return choose


class PlainSimulator:
    """Runs to the end when made; `start_s`, `finish_s`, `node` by request, missing where it never was."""

    def __init__(
        self,
        nodes: list[PlainNode],
        arrival_s: list[float],
        service_s: Callable[[int, int], float],
        choose: Chooser,
        held_max: int,
        lookahead: int,
        reject_refused: bool,
        demand: list[int] | None = None,
    ) -> None:
        self.demand = demand or [0] * len(arrival_s)
        self.nodes, self.choose, self.service_s = nodes, choose, service_s
        self.held_max, self.lookahead, self.reject_refused = held_max, lookahead, reject_refused
        self.held: list[int] = []
        self.rejected: list[int] = []
        self.start_s: dict[int, float] = {}
        self.finish_s: dict[int, float] = {}
        self.node: dict[int, int] = {}
        self._running: list[tuple[float, int]] = []
        for request, time_s in enumerate(arrival_s):
            self._complete_up_to(time_s)
            self._arrive(request, time_s)
        self._complete_up_to(float("inf"))

    def _complete_up_to(self, until_s: float) -> None:
        while self._running and self._running[0][0] <= until_s:
            now_s, request = heapq.heappop(self._running)
            self.finish_s[request] = now_s
            node = self.nodes[self.node[request]]
            node.running.remove(request)
            self._serve(node, now_s)
            self._offer_held(now_s)

    def _serve(self, node: PlainNode, now_s: float) -> None:
        while node.queue and len(node.running) < node.slots and self._fits(node, node.queue[0]):
            request = node.queue.pop(0)
            node.running.add(request)
            self.start_s[request] = now_s
            heapq.heappush(self._running, (now_s + self.service_s(request, self.node[request]), request))

    def _fits(self, node: PlainNode, request: int) -> bool:
        return sum(self.demand[r] for r in (*node.running, request)) <= node.capacity

    def _takes(self, node: PlainNode, request: int) -> bool:
        return node.has_room and self.demand[request] <= node.capacity

    def _offer(self, request: int, now_s: float) -> str:
        candidates = self.choose(self.nodes)
        for j in candidates:
            if self._takes(self.nodes[j], request):
                self.node[request] = j
                self.nodes[j].queue.append(request)
                self._serve(self.nodes[j], now_s)
                return "sent"
        if self.reject_refused and (candidates or not any(self._takes(n, request) for n in self.nodes)):
            self.rejected.append(request)
            return "rejected"
        return "refused"

    def _arrive(self, request: int, now_s: float) -> None:
        if self._offer(request, now_s) == "refused":
            (self.held if len(self.held) < self.held_max else self.rejected).append(request)

    def _offer_held(self, now_s: float) -> None:
        refused: list[int] = []
        while self.held and len(refused) < self.lookahead:
            request = self.held.pop(0)
            if self._offer(request, now_s) == "refused":
                refused.append(request)
        self.held = refused + self.held
