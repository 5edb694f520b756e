"""One worker process, as its host sees it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence

from trimtab.clusters.heartbeats import ProcessSilence
from trimtab.clusters.messages import NODE_VARIABLE
from trimtab.clusters.processes.wire import Frames, Setup, framed, read_outcome, start_message
from trimtab.clusters.processes.worker import CANCEL
from trimtab.clusters.worker_queue import WorkerQueue
from trimtab.live.stage_backend import Argument, Attempt, Cause, Outcome, StageError

_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from trimtab.clusters.processes.worker import main; main(int(sys.argv[1]))"
)


class WorkerProcess(asyncio.Protocol):
    """Starts a process, sends it attempts, and notices its end.

    Args:
        timeouts_s: of each stage.
        lost: called when the process has ended, unless `stop` ended it.
        reached: called when it answers again after `cut_off`.
        unasked: called with the outcome of an attempt that no caller waits for any more.
    """

    def __init__(
        self,
        timeouts_s: dict[str, float],
        lost: Callable[[WorkerProcess], None],
        reached: Callable[[WorkerProcess], None],
        unasked: Callable[[Outcome], None],
    ) -> None:
        self._lost, self._reached, self._unasked, self._frames = lost, reached, unasked, Frames()
        self.is_reachable = True
        self._queue = WorkerQueue(timeouts_s, self._interrupt, self.kill)
        self._cause = StageError(Cause.WORKER_LOST)
        self._is_stopped = False
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def start(self, setup: Setup, node: str) -> None:
        """Start the process; `ready` is done when it can work."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, str(theirs.fileno()), json.dumps(sys.path)],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1", NODE_VARIABLE: node},
            )
        self.silence = ProcessSilence(self.pid, asyncio.get_running_loop().time())
        loop = asyncio.get_running_loop()
        try:
            self._transport, _ = await loop.create_connection(lambda: self, sock=ours)
        except asyncio.CancelledError:
            await self._end()
            raise
        self._transport.write(framed(setup))

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    @property
    def load(self) -> int:
        """Attempts that it has and has not ended."""
        return len(self._queue)

    @property
    def loaded(self) -> set[str]:
        """Stages that it has run."""
        return self._queue.loaded

    def send(self, attempt: Attempt, inputs: Sequence[Argument]) -> asyncio.Future[Outcome]:
        """Run an attempt after those that it has."""
        number, outcome = self._queue.add(attempt)
        self._transport.write(start_message(number, attempt, inputs))
        return outcome

    def cancel(self, attempt: Attempt) -> None:
        """Stop an attempt."""
        self._queue.cancel(attempt)

    def _interrupt(self, _: int, runs: bool) -> None:
        if runs:
            self._signal(CANCEL)

    def kill(self, error: StageError) -> None:
        """Kill the process; the attempt that it runs ends with this error."""
        self._cause = error
        self._signal(signal.SIGKILL)

    def cut_off(self) -> None:
        """Give up a silent worker: its attempts are lost. It cancels them if it goes on."""
        self.is_reachable = False
        if self.load:
            self._signal(CANCEL)
        who = f"process {self.pid}"
        self._queue.lost(StageError(Cause.WORKER_LOST, "", f"{who} is out of reach"), who)

    async def stop(self) -> None:
        """End the process."""
        self._transport.close()
        await self._end()

    async def _end(self) -> None:
        self._is_stopped = True
        self._signal(signal.SIGKILL)
        await asyncio.to_thread(self._process.wait)

    def data_received(self, data: bytes) -> None:
        """Messages of the process: it is ready, it lives, or an attempt has ended."""
        self.silence.heard(asyncio.get_running_loop().time())
        if not self.is_reachable:
            self.is_reachable = True
            self._reached(self)
        for message in self._frames.feed(data):
            if message[0] == "ready":
                if not self.ready.done():
                    self.ready.set_result(None)
            elif message[0] == "memory":  # it kills itself now
                self._cause = StageError(Cause.MEMORY_LIMIT, "", message[1])
            elif message[0] != "beat":
                number, outcome = read_outcome(message)
                if not self._queue.ended(number, outcome):
                    self._unasked(outcome)

    def connection_lost(self, exc: Exception | None) -> None:
        """The process has ended: so have its attempts."""
        code = self._process.poll() if self._is_stopped else self._process.wait()
        error = self._cause
        if error.cause is Cause.WORKER_LOST and not error.message:
            error = StageError(Cause.WORKER_LOST, "", f"process {self.pid} ended {_how(code)}")
        self._queue.lost(error, f"process {self.pid}")
        if self._is_stopped:
            self.ready.cancel()
        elif not self.ready.done():
            self.ready.set_exception(ConnectionError(f"a worker process ended {_how(code)} as it started"))
        if not self._is_stopped:
            self._lost(self)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)


def _how(code: int | None) -> str:
    if code is None:
        return ""
    return f"by {signal.Signals(-code).name}" if code < 0 else f"with code {code}"
