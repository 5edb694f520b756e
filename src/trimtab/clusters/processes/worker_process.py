"""One worker process, as the host of chains sees it."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Callable, Mapping, Sequence

from trimtab.clusters.heartbeats import ProcessSilence
from trimtab.clusters.messages import NODE_VARIABLE
from trimtab.clusters.processes.wire import Frames, Setup, framed, read_outcome, start_message
from trimtab.clusters.processes.worker import CANCEL
from trimtab.clusters.worker_queue import WorkerQueue
from trimtab.live.program_host import PYTHON, HostNode, Launcher, Program
from trimtab.live.stage_backend import Argument, Attempt, Cause, Outcome, StageError, StageNode

_MAIN = "from trimtab.clusters.processes.worker import main; main()"
_BOOT = f"import json, sys; sys.path[:] = json.loads(sys.argv[1]); {_MAIN}"


def worker_program(node: StageNode, *, is_here: bool) -> Program:
    """What runs on a node: a worker that imports what this process can, or what its node has."""
    return Program(
        [PYTHON, "-c", _BOOT, json.dumps(sys.path)] if is_here else [PYTHON, "-c", _MAIN],
        {"PYTHONUNBUFFERED": "1", NODE_VARIABLE: node.name},
        {name: amount / node.slots for name, amount in node.capacity.items()},
    )


class WorkerProcess:
    """Starts a process, sends it attempts, and notices its end.

    Args:
        timeouts_s: of each stage.
        lost: called when the process has ended, unless `stop` ended it.
        reached: called when it answers again after `cut_off`.
        unasked: called with the outcome of an attempt that no caller waits for any more.
    """

    def __init__(
        self,
        timeouts_s: Mapping[str, float],
        lost: Callable[[WorkerProcess], None],
        reached: Callable[[WorkerProcess], None],
        unasked: Callable[[Outcome], None],
    ) -> None:
        self._lost, self._reached, self._unasked, self._frames = lost, reached, unasked, Frames()
        self.is_reachable = True
        self._queue = WorkerQueue(timeouts_s, self._interrupt, self.kill)
        self._cause = StageError(Cause.WORKER_LOST)
        self._is_stopped = False
        self._name = "a worker process"
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def start(self, launcher: Launcher, machine: HostNode, program: Program, setup: Setup) -> None:
        """Start the process; `ready` is done when it can work. Raises OSError."""
        self._link = await launcher.start(machine, program, self)
        self._name = self._link.name
        self.silence = ProcessSilence(self.pid, asyncio.get_running_loop().time())
        self._link.write(framed(setup))

    @property
    def pid(self) -> int:
        """The process's id; 0 = it is on another machine."""
        return self._link.pid

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
        self._link.write(start_message(number, attempt, inputs))
        return outcome

    def cancel(self, attempt: Attempt) -> None:
        """Stop an attempt."""
        self._queue.cancel(attempt)

    def _interrupt(self, _: int, runs: bool) -> None:
        if runs:
            self._link.signal(CANCEL)

    def kill(self, error: StageError) -> None:
        """Kill the process; the attempt that it runs ends with this error."""
        self._cause = error
        self._link.signal(signal.SIGKILL)

    def cut_off(self) -> None:
        """Give up a silent worker: its attempts are lost. It cancels them if it goes on."""
        self.is_reachable = False
        if self.load:
            self._link.signal(CANCEL)
        self._queue.lost(StageError(Cause.WORKER_LOST, "", f"{self._name} is out of reach"), self._name)

    async def stop(self) -> None:
        """End the process."""
        self._is_stopped = True
        await self._link.stop()

    def received(self, data: bytes) -> None:
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

    def ended(self, how: str) -> None:
        """The process has ended: so have its attempts."""
        error = self._cause
        if error.cause is Cause.WORKER_LOST and not error.message:
            error = StageError(Cause.WORKER_LOST, "", f"{self._name} ended {how}")
        self._queue.lost(error, self._name)
        if self._is_stopped:
            self.ready.cancel()
        else:
            if not self.ready.done():
                self.ready.set_exception(ConnectionError(f"a worker process ended {how} as it started"))
                self.ready.exception()  # seen
            self._lost(self)
