"""Limits of stages over all nodes: attempts at a time, and attempts that start in a second."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class StageLimit(Generic[T]):
    """The limits of one stage, the entries that wait, and those whose turn has come or has a time.

    Args:
        concurrency: attempts at a time; 0 = no limit.
        rate_per_s: attempts that start in a second, evenly spaced; 0 = no limit. One that starts late by
            less than a space does not delay those after it.
    """

    def __init__(self, concurrency: int, rate_per_s: float) -> None:
        self._concurrency = concurrency
        self._gap_s = 1.0 / rate_per_s if rate_per_s > 0.0 else 0.0
        self._next_s = 0.0  # from which the next one may start
        self._running = 0
        self._waiting: deque[T] = deque()
        self._turns: set[T] = set()  # entries that `turns` named and that have not tried yet

    def begin(self, entry: T, now_s: float) -> bool:
        """Whether an entry begins now. If not, it waits until `turns` names it."""
        had_turn = entry in self._turns
        self._turns.discard(entry)
        is_full = 0 < self._concurrency <= self._running
        is_early = self._gap_s > 0.0 and (now_s < self._next_s or (bool(self._turns) and not had_turn))
        if is_full or is_early:
            (self._waiting.appendleft if had_turn else self._waiting.append)(entry)
            return False
        self._running += 1
        is_on_time = had_turn and now_s < self._next_s + self._gap_s
        self._next_s = (self._next_s if is_on_time else now_s) + self._gap_s
        return True

    def forget(self, over: Iterable[T]) -> None:
        """These entries will not begin: their turns are free."""
        self._turns.difference_update(over)

    def end(self) -> None:
        """An attempt is over: its place is free."""
        self._running -= 1

    def turns(self, is_waiting: Callable[[T], bool]) -> Iterator[tuple[T, float]]:
        """Entries that may try, and the time from which on: those that have waited longest and wait still."""
        while self._waiting and self._has_turn:
            entry = self._waiting.popleft()
            if is_waiting(entry):
                self._turns.add(entry)
                yield entry, self._next_s

    @property
    def _has_turn(self) -> bool:
        if self._gap_s and self._turns:
            return False
        return not self._concurrency or self._running + len(self._turns) < self._concurrency
