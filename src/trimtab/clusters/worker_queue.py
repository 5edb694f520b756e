"""The attempts that one worker has: it runs the first, the others wait there."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping

from trimtab.live.stage_backend import Attempt, Cause, Outcome, StageError

CANCEL_GRACE_S = 2.0  # for the code of a cancelled stage to end; then its process is killed

Waiter = tuple[Attempt, "asyncio.Future[Outcome]"]


def timeout_s(attempt: Attempt, of: Callable[[str], float]) -> float:
    """The least of the timeouts of an attempt and of those that follow it, so that none takes longer."""
    return min(of(each.stage) for each in attempt.in_turn)


class WorkerQueue:
    """Counts the time of the attempt that runs, cancels, and tells the outcomes.

    Args:
        timeouts_s: of each stage.
        interrupt: asks the worker to end the attempt of this number; `runs`: it is the one that runs.
        kill: ends the worker's process; the attempt that runs ends with this error.
    """

    def __init__(
        self,
        timeouts_s: Mapping[str, float],
        interrupt: Callable[[int, bool], None],
        kill: Callable[[StageError], None],
    ) -> None:
        self._timeouts_s, self._interrupt, self._kill = timeouts_s, interrupt, kill
        self._waiters: OrderedDict[int, Waiter] = OrderedDict()
        self._number = 0
        self._timer: asyncio.TimerHandle | None = None
        self.loaded: set[str] = set()

    def __len__(self) -> int:
        return len(self._waiters)

    @property
    def numbers(self) -> list[int]:
        """Of the attempts that it has."""
        return list(self._waiters)

    def add(self, attempt: Attempt) -> tuple[int, asyncio.Future[Outcome]]:
        """An attempt after those that it has: its number, and its outcome once it is there."""
        self._number += 1
        outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiters[self._number] = attempt, outcome
        if len(self._waiters) == 1:
            self._watch()
        return self._number, outcome

    def cancel(self, attempt: Attempt) -> None:
        """Stop an attempt: the code that runs is interrupted, and after a while its process is killed."""
        for place, (number, (waiting, outcome)) in enumerate(list(self._waiters.items())):
            if waiting == attempt and place == 0:
                self._interrupt(number, True)
                loop = asyncio.get_running_loop()
                loop.call_later(CANCEL_GRACE_S, self._kill_if, attempt, Cause.CANCELLED)
            elif waiting == attempt and not outcome.done():  # sent, not begun: no caller waits for it
                self._interrupt(number, False)
                outcome.set_result(Outcome(error=StageError(Cause.CANCELLED)))

    def ended(self, number: int, ended: Outcome) -> bool:
        """The worker reports an attempt's end. False if no caller waits for it any more."""
        if number not in self._waiters:
            return False
        attempt, outcome = self._waiters.pop(number)
        for each, end in zip(attempt.in_turn, ended.in_turn, strict=False):
            if end.error is None:
                self.loaded.add(each.stage)
        self._unwatch()
        self._watch()
        is_awaited = not outcome.done()
        if is_awaited:
            outcome.set_result(ended)
        return is_awaited

    def lost(self, error: StageError, who: str) -> None:
        """The worker has ended, and so have its attempts: the first with this error."""
        self._unwatch()
        for attempt, outcome in self._waiters.values():
            if not outcome.done():
                outcome.set_result(Outcome(error=error))
            error = StageError(Cause.WORKER_LOST, "", f"{who} ended before {attempt.stage} began")
        self._waiters.clear()

    def _watch(self) -> None:
        """Begin to count the time of the attempt that runs now."""
        if not self._waiters:
            return
        attempt = next(iter(self._waiters.values()))[0]
        timeout_s = self._timeout_s(attempt)
        if timeout_s < float("inf"):
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(timeout_s, self._kill_if, attempt, Cause.TIMEOUT)

    def _timeout_s(self, attempt: Attempt) -> float:
        return timeout_s(attempt, self._timeouts_s.__getitem__)

    def _unwatch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _kill_if(self, attempt: Attempt, cause: Cause) -> None:
        """Kill the process if it still runs this attempt."""
        first = next(iter(self._waiters.values()), None)
        if first is not None and first[0] == attempt:
            message = f"took longer than {self._timeout_s(attempt):g} s" if cause is Cause.TIMEOUT else ""
            self._kill(StageError(cause, "", message))
