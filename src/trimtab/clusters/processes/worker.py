"""The program of a worker process: one attempt after another, until the host closes the connection.

The connection is its standard input, a socket (`trimtab.live.program_host`).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import sys
import threading
import time
from types import FrameType
from typing import Any

from trimtab.clusters.heartbeats import BEAT_S
from trimtab.clusters.peak_memory import MemoryLimits, PeakMemory, declared_gib
from trimtab.clusters.processes.large_values import Spool
from trimtab.clusters.processes.wire import Frames, Setup, framed, outcome_message, read_start
from trimtab.live.stage_execution import Cancelled, LoadedStages, by_worker, execute, install

CANCEL = signal.SIGUSR1
_PR_SET_PDEATHSIG = 1


class Worker:
    """Serves one connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._frames = connection, Frames()
        self._in_stage = self._is_cancelled = False
        self._sends = threading.Lock()

    def run(self) -> None:
        """Serve until the host is gone."""
        stages: LoadedStages | None = None
        while data := self._connection.recv(1 << 18):
            for message in self._frames.feed(data):
                if stages is None:
                    stages = self._set_up(message)
                    self._send(framed(("ready", os.getpid())))
                    threading.Thread(target=self._beat, name="trimtab-beat", daemon=True).start()
                else:
                    self._send(self._serve(stages, message))

    def _send(self, data: bytes) -> None:
        with self._sends:
            self._connection.sendall(data)

    def _beat(self) -> None:
        """Say now and then that this process lives."""
        with contextlib.suppress(OSError):  # the host is gone
            while True:
                time.sleep(BEAT_S)
                self._send(framed(("beat",)))

    def cancel(self, _signal: int, _frame: FrameType | None) -> None:
        """Raise Cancelled in the stage that runs."""
        if self._in_stage and not self._is_cancelled:
            self._is_cancelled = True
            raise Cancelled

    def _set_up(self, setup: Setup) -> LoadedStages:
        self._spool = Spool(setup.spool, setup.inline_bytes if setup.spool else float("inf"))
        with contextlib.suppress(OSError):
            os.chdir(setup.folder)
        self._limits = MemoryLimits(declared_gib(setup.stages), self._end_by_memory)
        self._memory = PeakMemory(self._limits)
        return LoadedStages(setup.stages, self._memory.note_base)

    def _serve(self, stages: LoadedStages, message: Any) -> bytes:
        number, attempt, inputs = read_start(message)
        self._memory.begin(attempt.stage)
        self._is_cancelled = False
        try:
            self._in_stage = True
            outcome = execute(
                stages, attempt, inputs, self._spool.read, self._spool.write, lambda: self._is_cancelled
            )
        finally:
            self._in_stage = False
        peak_gib, problem = self._memory.end(attempt.stage, outcome.service_s)
        judged = self._limits.judged(attempt.stage, outcome, problem)
        if judged is not outcome:
            for ref in outcome.values:
                self._spool.drop(ref)
        return outcome_message(number, by_worker(judged, str(os.getpid()), peak_gib))

    def _end_by_memory(self, problem: str) -> None:
        """The stage that runs has exceeded its limit. It may be in C code: only its process can be ended."""
        self._send(framed(("memory", problem)))
        os.kill(os.getpid(), signal.SIGKILL)


def die_with_host() -> None:
    """End this process when its host ends, however that ends."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    """Run a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the host's to handle
    die_with_host()
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # threads of several workers would contend
    install()
    with socket.socket(fileno=os.dup(0)) as connection:
        os.dup2(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), 0)  # what stages read and start
        worker = Worker(connection)
        signal.signal(CANCEL, worker.cancel)
        with contextlib.suppress(ConnectionError, Cancelled):
            worker.run()
    sys.stdout.flush()
    os._exit(0)  # not held up by threads of stages
