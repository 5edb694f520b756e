"""The program of an actor: one attempt after another; beside it, cancelling and answers to pings."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import ray

from trimtab.clusters.heartbeats import ticks_used
from trimtab.clusters.messages import NODE_VARIABLE, outcome_fields, read_attempt
from trimtab.clusters.peak_memory import MemoryLimits, PeakMemory, declared_gib
from trimtab.live.stage_backend import Cause, Outcome, Ref, StageError, digest_of
from trimtab.live.stage_execution import Cancelled, LoadedStages, by_worker, execute, install

CONTROL = "control"  # the concurrency group of what must not wait for a stage


class StageWorker:
    """Runs stages. Outcomes come in two parts: what the host awaits, and large values that it does not."""

    def __init__(self, setup: bytes, node: str) -> None:
        stages, self._inline_bytes, folder, paths = pickle.loads(setup)
        sys.path += [path for path in paths if path not in sys.path]
        with contextlib.suppress(OSError):
            os.chdir(folder)
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
            os.environ.setdefault(name, "1")  # threads of several workers would contend
        os.environ[NODE_VARIABLE] = node
        install()
        self._limits = MemoryLimits(declared_gib(stages), lambda _: None)  # an actor is not ended for it
        self._memory = PeakMemory(self._limits)
        self._stages = LoadedStages(stages, self._memory.note_base)
        self._lock = threading.Lock()
        self._runs: tuple[int, int] | None = None  # the number of the attempt, and its thread
        self._cancelled: set[int] = set()

    @ray.method(concurrency_group=CONTROL)
    def ready(self) -> int:
        """The id of this process, once it can work."""
        return os.getpid()

    @ray.method(concurrency_group=CONTROL)
    def ping(self) -> None:
        """Answer."""

    @ray.method(concurrency_group=CONTROL)
    def cancel(self, number: int) -> None:
        """End an attempt: if it runs, by an exception in its thread."""
        with self._lock:
            if self._runs is not None and self._runs[0] == number and number not in self._cancelled:
                _raise_in(self._runs[1], Cancelled)
            self._cancelled.add(number)

    @ray.method(num_returns=2)
    def run(self, number: int, message: bytes, *bundles: Sequence[Any]) -> tuple[bytes, Any]:
        """Run an attempt: its outcome, and its large outputs."""
        large: list[bytes] = []
        outcome = self._outcome(number, message, bundles, large)
        told = pickle.dumps(outcome_fields(outcome), 5)
        return told, tuple(pickle.PickleBuffer(data) for data in large) or None

    def _outcome(self, number: int, message: bytes, bundles: Sequence[Any], large: list[bytes]) -> Outcome:
        attempt, inputs = read_attempt(pickle.loads(message))

        def read(ref: Ref) -> bytes | memoryview:
            if ref.data is not None:
                return ref.data
            bundle, _, part = ref.place.partition("#")
            return memoryview(bundles[int(bundle)][int(part)] if part else large[int(bundle)])

        def write(data: bytes) -> Ref:
            digest = digest_of(data)
            if len(data) <= self._inline_bytes:
                return Ref(digest, len(data), data)
            large.append(data)
            return Ref(digest, len(data), None, str(len(large) - 1))

        outcome = Outcome(error=StageError(Cause.CANCELLED))
        try:
            if self._begins(number):
                self._memory.begin(attempt.stage)
                outcome = execute(
                    self._stages, attempt, inputs, read, write, lambda: number in self._cancelled
                )
                peak_gib, problem = self._memory.end(attempt.stage, outcome.service_s)
                outcome = self._limits.judged(attempt.stage, outcome, problem)
                outcome = by_worker(outcome, str(os.getpid()), peak_gib)
        except Cancelled:  # came after the stage's own code
            pass
        finally:
            try:
                self._ends(number)
            except Cancelled:  # came on the way there; there is no second one
                self._runs = None
        return outcome

    def _begins(self, number: int) -> bool:
        """Note what runs. False if it was cancelled before."""
        with self._lock:
            if number not in self._cancelled:
                self._runs = number, threading.get_ident()
            return self._runs is not None

    def _ends(self, number: int) -> None:
        """From here on no exception comes into this thread. One that is on its way is met here.

        Taking it back (an exception of NULL) would leave CPython's request for it set, and with that set a
        profiled function of Python 3.11 never gets beyond its first instruction.
        """
        with self._lock:
            self._runs = None
        while number in self._cancelled:
            _raise_in(threading.get_ident(), Cancelled)
            time.sleep(0.0)


def _raise_in(thread: int, error: type[BaseException]) -> None:
    """Raise in a thread, as soon as it runs Python code."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error))


class MachineWatch:
    """Knows which processes of its machine live, and keeps copies of values there."""

    @ray.method(concurrency_group=CONTROL)
    def alive(self, pids: Sequence[int]) -> dict[int, int]:
        """Those of these processes that exist, each with the processor time it has used; -1 = not known."""
        ticks = {pid: ticks_used(pid) for pid in pids}
        is_known = os.path.exists("/proc/self")
        return {pid: used for pid, used in ticks.items() if used >= 0 or not is_known}

    @ray.method(num_returns=2)
    def copy(self, bundle: Sequence[Any]) -> tuple[bool, tuple[Any, ...]]:
        """The same values, on this machine; before them what the host awaits."""
        return True, tuple(pickle.PickleBuffer(part) for part in bundle)
