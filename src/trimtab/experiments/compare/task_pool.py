"""Runs tasks in parallel processes or on Ray, and says how far they are."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, TypeAlias

from trimtab.errors import UsageError
from trimtab.experiments.compare.pace import Expected, left_s
from trimtab.experiments.compare.tasks import Task, TaskResult, run_task, run_task_elsewhere
from trimtab.experiments.compare.workfolder import Workfolder
from trimtab.experiments.machine import cores

if TYPE_CHECKING:
    from concurrent.futures import Future

HERE = "processes"  # of this machine
POLL_S = 0.2  # how soon a lost interruption is noticed


@dataclass(frozen=True, slots=True)
class RunsDone:
    """How far a comparison is: runs finished, in all, and kept from before; those that run now; time left."""

    done: int
    total: int
    kept: int
    running: tuple[str, ...]  # policy, seed and load of each; empty on Ray
    left_s: float | None  # None until it can be told


Progress: TypeAlias = Callable[[RunsDone], None]


@dataclass(frozen=True, slots=True)
class _Step:
    """A task that ended, if one did, and those that run now, each with its start."""

    running: Mapping[int, float]
    ended: tuple[int, TaskResult] | None = None


class TaskRuns:
    """The runs of a comparison: those that an earlier one left, and those that `run` makes."""

    def __init__(self, tasks: Sequence[Task], folder: Workfolder | None) -> None:
        self._tasks, self._folder = tasks, folder
        self._results = [folder.load(task) if folder else None for task in tasks]
        self._kept = len(self.ended)

    @property
    def ended(self) -> list[TaskResult]:
        """The results that there are, in the order of the tasks."""
        return [result for result in self._results if result is not None]

    @property
    def left_policies(self) -> list[str]:
        """The policy of each task without a result."""
        pairs = zip(self._tasks, self._results, strict=True)
        return [task.name for task, result in pairs if result is None]

    def left_s(self, running_s: Mapping[int, float], expected: Expected | None, at_once: int) -> float | None:
        """Seconds until all have ended; see `pace.left_s`."""
        return left_s(self._tasks, self._results, running_s, expected, at_once)

    def run(
        self, jobs: int | None, progress: Progress | None, expected: Expected | None, on: str = HERE
    ) -> None:
        """Run the tasks without a result, and keep each result at once.

        `on`: "processes" of this machine, "ray" for a Ray cluster of its own, or the address of one.
        """
        open_ = [i for i, result in enumerate(self._results) if result is None]
        at_once = max(1, min(jobs or cores(), len(open_)))
        self._report(progress, {}, expected, at_once)
        for step in _run(open_, self._tasks, jobs, on):
            if step.ended is not None:
                i, result = step.ended
                self._results[i] = result
                if self._folder is not None:
                    self._folder.save(self._tasks[i], result)
            self._report(progress, step.running, expected, at_once)

    def _report(
        self,
        progress: Progress | None,
        running: Mapping[int, float],
        expected: Expected | None,
        at_once: int,
    ) -> None:
        if progress is None:
            return
        now_s = time.monotonic()
        running_s = {i: now_s - begun_s for i, begun_s in running.items()}
        progress(
            RunsDone(
                done=len(self.ended),
                total=len(self._tasks),
                kept=self._kept,
                running=tuple(str(self._tasks[i]) for i in running),
                left_s=self.left_s(running_s, expected, at_once),
            )
        )


def check_place(on: str) -> None:
    """Raise UsageError if tasks can't run there."""
    if on not in (HERE, "ray") and not on.startswith("ray://"):
        raise UsageError("no such place", field="on", value=on, expected=f"{HERE}, ray or ray://HOST:PORT")


def _run(open_: Sequence[int], tasks: Sequence[Task], jobs: int | None, on: str) -> Iterator[_Step]:
    if on != HERE:
        yield from _run_on_ray(open_, tasks, jobs, None if on == "ray" else on)
        return
    jobs = jobs or cores()
    if jobs > 1 and len(open_) > 1:
        yield from _run_in_processes(open_, tasks, min(jobs, len(open_)))
        return
    for i in open_:
        yield _Step({i: time.monotonic()})
        yield _Step({}, (i, run_task(tasks[i])))


def _run_on_ray(
    open_: Sequence[int], tasks: Sequence[Task], jobs: int | None, address: str | None
) -> Iterator[_Step]:
    from trimtab.clusters.ray.ray_tasks import run_calls

    for k, (result, record) in run_calls(address, run_task_elsewhere, [tasks[i] for i in open_], jobs):
        path = tasks[open_[k]].record
        if path is not None:
            path.write_bytes(record)
        yield _Step({}, (open_[k], result))


def _run_in_processes(open_: Sequence[int], tasks: Sequence[Task], jobs: int) -> Iterator[_Step]:
    """Each process takes tasks on the inputs that it has, so that they are seldom built twice."""
    from concurrent.futures import FIRST_COMPLETED, wait

    from loky import ProcessPoolExecutor  # unlike the standard one it needs no main guard in users' scripts

    _start_tracker()
    processes = [ProcessPoolExecutor(max_workers=1) for _ in range(jobs)]
    running: dict[Future[TaskResult], tuple[int, int]] = {}  # → process, task
    begun_s: dict[int, float] = {}
    left = list(open_)
    last: dict[int, tuple[int, float | None]] = {}  # process → inputs that it has

    def begin(process: int) -> None:
        if not left:
            last.pop(process, None)
            return
        i = _next_task(left, tasks, last, process)
        left.remove(i)
        last[process] = tasks[i].inputs
        begun_s[i] = time.monotonic()
        running[processes[process].submit(run_task, tasks[i])] = process, i

    try:
        with _interruptions() as seen:
            for process in range(jobs):
                begin(process)
            while running:
                done, _ = wait(running, timeout=POLL_S, return_when=FIRST_COMPLETED)
                if seen:
                    raise KeyboardInterrupt
                for future in done:
                    process, i = running.pop(future)
                    del begun_s[i]
                    result = future.result()
                    begin(process)
                    yield _Step(begun_s, (i, result))
                if not done:
                    yield _Step(begun_s)
    finally:
        for executor in processes:
            executor.shutdown(wait=True, kill_workers=True)


def _next_task(
    left: Sequence[int],
    tasks: Sequence[Task],
    last: Mapping[int, tuple[int, float | None]],
    process: int,
) -> int:
    """A task on the inputs that the process has, else on inputs that none has, else where most are left."""
    counts = Counter(tasks[i].inputs for i in left)
    if last.get(process) in counts:
        wanted = last[process]
    else:
        used = set(last.values())
        wanted = next((inputs for inputs in counts if inputs not in used), counts.most_common(1)[0][0])
    return next(i for i in left if tasks[i].inputs == wanted)


def _start_tracker() -> None:
    """Start loky's tracker of resources, silent.

    An interruption while a worker starts may leave it the name of a semaphore that is gone: it would warn.
    """
    from loky.backend import resource_tracker

    sys.warnoptions.append("ignore:resource_tracker:UserWarning")  # its process takes these over
    try:
        resource_tracker.ensure_running()
    finally:
        sys.warnoptions.pop()


@contextmanager
def _interruptions() -> Iterator[list[int]]:
    """Signals that arrive while a worker starts, where an exception would be lost."""
    seen: list[int] = []
    before = {}
    if threading.current_thread() is threading.main_thread():
        before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}

    def heard(number: int, frame: FrameType | None) -> None:
        seen.append(number)
        handler = before[signal.Signals(number)]
        if callable(handler):
            handler(number, frame)

    callables = {n: handler for n, handler in before.items() if callable(handler)}
    for number in callables:
        signal.signal(number, heard)
    try:
        yield seen
    finally:
        for number, handler in callables.items():
            signal.signal(number, handler)
