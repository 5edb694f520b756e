"""Failures and drains of nodes, in the order in which they happen."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """A node goes down or comes back.

    Jobs on a node that fails lose their GPUs at once; those on a node that is drained, at the next decision.
    """

    time_s: float
    node_idx: int
    up: bool
    drains: bool = False


@dataclass(frozen=True, slots=True)
class FailingNode:
    """A node that fails again and again; times to failure and to repair are exponential."""

    node_idx: int
    mtbf_s: float
    mttr_s: float
    seed: int

    def events(self) -> Iterator[NodeEvent]:
        """Failures and repairs, for ever. The time to the next failure begins at the repair."""
        rng, now_s = np.random.default_rng(self.seed), 0.0
        while True:
            now_s += self.mtbf_s * rng.standard_exponential()
            yield NodeEvent(now_s, self.node_idx, up=False)
            now_s += self.mttr_s * rng.standard_exponential()
            yield NodeEvent(now_s, self.node_idx, up=True)


class NodeEvents:
    """The events of a run, one after the other."""

    def __init__(self, known: Sequence[NodeEvent], failing: Sequence[FailingNode]) -> None:
        sources = [iter(sorted(known, key=lambda event: event.time_s)), *(node.events() for node in failing)]
        self._events = heapq.merge(*sources, key=lambda event: event.time_s)
        self._next = next(self._events, None)

    @property
    def next_s(self) -> float:
        """Time of the next event; inf = there is none."""
        return math.inf if self._next is None else self._next.time_s

    def until(self, time_s: float) -> Iterator[NodeEvent]:
        """Events up to this time, each given once."""
        while self._next is not None and self._next.time_s <= time_s:
            event, self._next = self._next, next(self._events, None)
            yield event
