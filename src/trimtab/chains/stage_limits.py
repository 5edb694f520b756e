"""Limits of stages over all nodes: attempts at a time, and attempts that start in a second."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from trimtab.chains.graph import StageCall
from trimtab.chains.host_state import HostState
from trimtab.chains.run_progress import StageInstance
from trimtab.chains.run_state import ItemRun

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


_Waiter = tuple[ItemRun, StageInstance]  # of a batch, the one that takes the others with it


class LimitedStages:
    """The limits of all stages that have some."""

    def __init__(self, host: HostState) -> None:
        self._host = host
        self._limits: dict[str, StageLimit[_Waiter]] = {
            step.code_name: StageLimit(options.concurrency, options.rate_per_s)
            for step in host.steps
            if (options := step.stage.stage_options).concurrency or options.rate_per_s
        }

    def holds_back(self, item: ItemRun, at: StageInstance) -> bool:
        """Whether an instance that the loop has started may not begin. Then it is started again later."""
        limit, now_s = self._limits.get(item.run.chain.steps[at.step].code_name), self._host.now_s()
        if limit is None:
            return False
        begins = limit.begin((item, at), now_s)
        if not begins:
            self._host.loop.runs.lose(item.row(at), now_s, float("inf"))
            self._host.wake()
        self._offer(limit)  # under a rate, the next one has its time only now
        return not begins

    def pass_by(self, item: ItemRun, at: StageInstance) -> None:
        """An instance does not begin, though its turn may have come: another takes it."""
        if (limit := self._limits.get(item.run.chain.steps[at.step].code_name)) is not None:
            limit.forget([(item, at)])
            self._offer(limit)

    def end(self, step: StageCall) -> None:
        """An attempt at a stage is over: another may begin in its place."""
        if (limit := self._limits.get(step.code_name)) is not None:
            limit.end()
            self._offer(limit)

    def end_run(self, item: ItemRun) -> None:
        """A run is over. Others take the turns that its instances had."""
        for k, step in enumerate(item.run.chain.steps if self._limits else ()):
            if (limit := self._limits.get(step.code_name)) is not None:
                limit.forget((item, at) for at in item.progress.instances(k))
                self._offer(limit)

    def _offer(self, limit: StageLimit[_Waiter]) -> None:
        now_s = self._host.now_s()
        for (item, at), from_s in limit.turns(lambda waiter: self._host.is_waiting(*waiter)):
            self._host.loop.runs.offer(item.row(at), max(now_s, from_s))
            self._host.wake()
