"""Limits of stages over all nodes: attempts at a time, and attempts that start in a second."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Generic, TypeVar

T = TypeVar("T")


class StageLimit(Generic[T]):
    """The limits of one stage, and the attempts that wait for their turn.

    Args:
        concurrency: attempts at a time; 0 = no limit.
        rate_per_s: attempts that start in a second, evenly spaced; 0 = no limit.
    """

    def __init__(self, concurrency: int, rate_per_s: float) -> None:
        self._concurrency = concurrency
        self._gap_s = 1.0 / rate_per_s if rate_per_s > 0.0 else 0.0
        self._next_s = 0.0
        self._running = 0
        self._waiting: deque[T] = deque()
        self._booked: set[T] = set()  # that have a time at which they may start

    @property
    def has_room(self) -> bool:
        """Whether one more attempt may run at this time."""
        return not self._concurrency or self._running < self._concurrency

    def begin(self, who: T, now_s: float) -> float:
        """The time from which `who` may begin: now or earlier = it begins; inf = `end` will name it."""
        if not self.has_room:
            self._waiting.append(who)
            return float("inf")
        if self._gap_s and who not in self._booked:
            at_s = max(now_s, self._next_s)
            self._next_s = at_s + self._gap_s
            if at_s > now_s:
                self._booked.add(who)
                return at_s
        self._booked.discard(who)
        self._running += 1
        return now_s

    def pass_by(self, who: T) -> T | None:
        """`who` does not begin now. Returns who may try in its place."""
        self._booked.discard(who)
        return self.next() if self.has_room else None

    def forget(self, over: Iterable[T]) -> None:
        """These will not begin."""
        self._booked.difference_update(over)

    def end(self) -> T | None:
        """An attempt is over. Returns who may try to begin in its place."""
        self._running -= 1
        return self.next()

    def next(self) -> T | None:
        """Remove and return the entry that has waited longest."""
        return self._waiting.popleft() if self._waiting else None
