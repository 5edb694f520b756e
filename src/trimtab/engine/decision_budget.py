"""Bounds the time that a policy in plain Python takes from a host that must not stand still.

A host with an event loop decides in it: while the policy's code runs, nothing else does. So one call may take
CALL_S, and all calls together half of each SPAN_S. A call that takes longer is interrupted: on the main
thread by a signal that raises in it, on another by an asynchronous exception. Then the policy is not asked
again for SUSPENDED_S, twice as long each time in a row, and the host's fallback decides.

What remains: code that a call runs outside Python (a solver, NumPy on large arrays; on other threads than the
main one `sleep` and reads of sockets too) ends before it can be interrupted; and machine code of `@kernel` is
not bounded.
"""

from __future__ import annotations

import ctypes
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from math import inf
from time import monotonic, sleep
from types import FrameType
from typing import Any, ClassVar, Final, TypeVar

T = TypeVar("T")

CALL_S: Final = 0.5
SPAN_S: Final = 5.0
MOST_FRAC: Final = 0.5  # of a span
SUSPENDED_S: Final = 10.0
MOST_SUSPENDED_S: Final = 600.0


class TooSlow(Exception):  # noqa: N818 - reads as the sentence it prints
    """A policy took more time than its host can give it, and is not asked for a while."""


class _Watch:
    """A thread that interrupts calls that are due."""

    under_way: ClassVar[set[_Call]] = set()
    _thread: ClassVar[threading.Thread | None] = None
    _starting: ClassVar[threading.Lock] = threading.Lock()

    @classmethod
    def start(cls) -> None:
        """Start it, if it does not run."""
        with cls._starting:
            if cls._thread is None or not cls._thread.is_alive():  # it does not outlive a fork
                cls.under_way.clear()
                cls._thread = threading.Thread(target=cls._run, name="trimtab-decisions", daemon=True)
                cls._thread.start()

    @classmethod
    def _run(cls) -> None:
        while True:
            sleep(CALL_S / 5)
            for call in cls.under_way.copy():
                call.interrupt_if_due()


class _Call(ABC):
    """A call that can be interrupted."""

    due_s = inf  # when it has taken too long; inf = it is not under way

    def run(self, function: Callable[..., T], *args: Any) -> T:
        """`function(*args)`, or TooSlow."""
        try:
            try:
                _Watch.under_way.add(self)
                self.due_s = monotonic() + CALL_S
                return function(*args)
            except TooSlow:
                raise TooSlow(f"a decision took more than {CALL_S:g} s") from None
            finally:
                self.end()
        finally:
            self.end()  # the exception may have come in the first
            _Watch.under_way.discard(self)

    def end(self) -> None:
        """From here on no exception comes."""
        self.due_s = inf

    @abstractmethod
    def interrupt_if_due(self) -> None:
        """Raise TooSlow in it: again and again, since the policy's own code may catch the first."""


class _MainCall(_Call):
    """On the main thread: by SIGURG, which is ignored by default. It ends a sleep too."""

    current: ClassVar[_MainCall | None] = None

    @classmethod
    def install(cls) -> None:
        """Handle the signal."""
        signal.signal(signal.SIGURG, cls._interrupt)

    def run(self, function: Callable[..., T], *args: Any) -> T:
        """`function(*args)`, or TooSlow."""
        _MainCall.current = self
        return super().run(function, *args)

    def interrupt_if_due(self) -> None:
        """Send the signal."""
        if monotonic() >= self.due_s:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGURG)

    @classmethod
    def _interrupt(cls, number: int, frame: FrameType | None) -> None:
        if cls.current is not None and monotonic() >= cls.current.due_s:
            raise TooSlow


class _ThreadCall(_Call):
    """On another thread, as soon as it runs Python code."""

    def __init__(self) -> None:
        self._thread, self._lock, self._is_raised = threading.get_ident(), threading.Lock(), False

    def end(self) -> None:
        """From here on no exception comes. One that is on its way is met here, by raising it once more.

        Taking it back (an exception of NULL) would leave CPython's request for it set (see `StageWorker`).
        """
        while self.due_s < inf or self._is_raised:
            try:
                with self._lock:
                    self.due_s = inf
                while self._is_raised:
                    self._raise()
            except TooSlow:
                if self.due_s == inf:
                    self._is_raised = False

    def interrupt_if_due(self) -> None:
        """Raise in its thread; again after CALL_S."""
        with self._lock:
            if monotonic() >= self.due_s:
                self._is_raised, self.due_s = True, monotonic() + CALL_S
                self._raise()

    def _raise(self) -> None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread), ctypes.py_object(TooSlow))


class DecisionBudget:
    """The time of one policy's calls. `clock`: seconds, monotonic."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        _Watch.start()
        if threading.current_thread() is threading.main_thread():
            _MainCall.install()
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
            is_main = threading.current_thread() is threading.main_thread()
            return (_MainCall if is_main else _ThreadCall)().run(function, *args)
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
