"""Bounds the time that a policy in plain Python takes from a host that must not stand still.

A host with an event loop decides in it: while the policy's code runs, nothing else does. So one call may take
CALL_S, and all calls together half of each SPAN_S. A call that takes longer is interrupted, by a signal that
raises in it; then the policy is not asked again for SUSPENDED_S, twice as long each time in a row, and
the host's fallback decides.

What remains: code that a call runs outside Python (a solver, NumPy on large arrays) ends before it can be
interrupted; only the main thread can be; and machine code of `@kernel` is not bounded.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from math import inf
from time import monotonic, sleep
from types import FrameType
from typing import Any, Final, TypeVar

T = TypeVar("T")

CALL_S: Final = 0.5
SPAN_S: Final = 5.0
MOST_FRAC: Final = 0.5  # of a span
SUSPENDED_S: Final = 10.0
MOST_SUSPENDED_S: Final = 600.0


class TooSlow(Exception):  # noqa: N818 - reads as the sentence it prints
    """A policy took more time than its host can give it, and is not asked for a while."""


class _Interrupter:
    """Raises TooSlow in a call on the main thread that takes too long.

    A thread watches the calls and sends the main thread a signal: SIGURG, which is ignored by default.
    """

    due_s = inf  # when the call under way has taken too long; inf = none is under way
    _watch: threading.Thread | None = None

    @classmethod
    def install(cls) -> bool:
        """Handle the signal. False = this is not the main thread."""
        if threading.current_thread() is not threading.main_thread():
            return False
        signal.signal(signal.SIGURG, cls._interrupt)
        if cls._watch is None or not cls._watch.is_alive():  # it does not outlive a fork
            cls._watch = threading.Thread(target=cls._run, name="trimtab-decisions", daemon=True)
            cls._watch.start()
        return True

    @classmethod
    def call(cls, function: Callable[..., T], *args: Any) -> T:
        """`function(*args)`, or TooSlow."""
        try:
            cls.due_s = monotonic() + CALL_S
            try:
                return function(*args)
            finally:
                cls.due_s = inf
        finally:
            cls.due_s = inf  # the signal may have come in the first

    @classmethod
    def _run(cls) -> None:
        while True:
            sleep(CALL_S / 5)
            if monotonic() >= cls.due_s:  # again and again: the policy's own code may catch the first
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGURG)

    @classmethod
    def _interrupt(cls, number: int, frame: FrameType | None) -> None:
        if monotonic() >= cls.due_s:
            raise TooSlow(f"a decision took more than {CALL_S:g} s")


class DecisionBudget:
    """The time of one policy's calls. `clock`: seconds, monotonic."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock, self._can_interrupt = clock, _Interrupter.install()
        self._span_ends_s = self._resumes_s = float("-inf")
        self._spent_s, self._n_calls = 0.0, 0  # in this span
        self._suspended_s, self._was_suspended = SUSPENDED_S, False
        self._reason = ""

    def call(self, function: Callable[..., T], *args: Any) -> T:
        """`function(*args)`. Raises TooSlow instead of it, or in the middle of it."""
        begun_s = self._clock()
        if begun_s < self._resumes_s:
            raise TooSlow(self._reason)
        if begun_s >= self._span_ends_s:
            self._begin_span(begun_s)
        try:
            return _Interrupter.call(function, *args) if self._can_interrupt else function(*args)
        finally:
            self._charge(begun_s)

    def _begin_span(self, now_s: float) -> None:
        if not self._was_suspended:
            self._suspended_s = SUSPENDED_S
        self._was_suspended = False
        self._span_ends_s, self._spent_s, self._n_calls = now_s + SPAN_S, 0.0, 0

    def _charge(self, begun_s: float) -> None:
        now_s = self._clock()
        took_s = now_s - begun_s
        self._spent_s, self._n_calls = self._spent_s + took_s, self._n_calls + 1
        if took_s >= CALL_S:
            self._suspend(now_s, f"a decision took {took_s:.2g} s")
        elif self._spent_s > MOST_FRAC * SPAN_S:
            self._suspend(now_s, f"{self._n_calls} decisions took {self._spent_s:.2g} s in {SPAN_S:g} s")

    def _suspend(self, now_s: float, why: str) -> None:
        self._reason = f"{why}: it is not asked for {self._suspended_s:g} s"
        self._span_ends_s = self._resumes_s = now_s + self._suspended_s
        self._suspended_s, self._was_suspended = min(2 * self._suspended_s, MOST_SUSPENDED_S), True
