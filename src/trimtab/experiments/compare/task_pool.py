"""Runs tasks in parallel processes, and keeps results so that an interrupted comparison can continue."""

from __future__ import annotations

import pickle
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Self, TypeAlias

import numpy as np

from trimtab.errors import UsageError
from trimtab.experiments.compare.tasks import (
    BoundResult,
    RunResult,
    Task,
    TaskResult,
    record_files,
    run_task,
    run_task_elsewhere,
)
from trimtab.experiments.curves import Curves
from trimtab.experiments.machine import cores

HERE = "processes"  # of this machine
Progress: TypeAlias = Callable[[int, int], None]  # runs done, runs in all
_IN_RESULTS = frozenset(
    (cls.__module__, cls.__qualname__)
    for cls in (TaskResult, RunResult, BoundResult, Curves, np.ndarray, np.dtype)
) | {("numpy._core.numeric", "_frombuffer"), ("numpy._core.multiarray", "_reconstruct")}


class _Unpickler(pickle.Unpickler):
    """Loads results and arrays only, because a pickle from an untrusted folder could run code."""

    def find_class(self, module: str, name: str) -> Any:
        """Refuse classes that no result contains."""
        if (module, name) not in _IN_RESULTS:
            raise pickle.UnpicklingError(f"{module}.{name} is no part of a result")
        return super().find_class(module, name)


POLL_S = 0.2  # how soon a lost interruption is noticed


class Workfolder:
    """Hidden folder beside the results: finished tasks and records, until the comparison is whole.

    As a context it is removed at the end if no task finished, because there is nothing to continue.
    """

    def __init__(self, out: Path, key: str) -> None:
        self.path = out / f".unfinished-{key}"
        self.records = self.path / "requests"
        try:
            self.records.mkdir(parents=True, exist_ok=True)
            (self.path / ".writable").touch()
        except OSError as error:
            raise UsageError(
                f"can't write there: {error.strerror}",
                field="out",
                value=str(out),
                expected="a writable folder",
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not any(self.path.glob("task-*.pickle")):
            self.remove()

    def remove(self) -> None:
        """Delete the folder."""
        shutil.rmtree(self.path, ignore_errors=True)

    def load(self, i: int, task: Task) -> TaskResult | None:
        """Result of task i, if an earlier run finished it and its records are complete."""
        return self._result(i) if all(path.exists() for path in record_files(task)) else None

    def _result(self, i: int) -> TaskResult | None:
        try:
            with self._file(i).open("rb") as file:
                found = _Unpickler(file).load()
        except (
            OSError,
            EOFError,
            pickle.UnpicklingError,
            AttributeError,
            ImportError,
            TypeError,
            ValueError,
        ):
            return None
        return found if isinstance(found, TaskResult) else None

    def save(self, i: int, result: TaskResult) -> None:
        """Keep the result of task i."""
        part = self._file(i).with_suffix(".part")
        part.write_bytes(pickle.dumps(result))
        part.replace(self._file(i))

    def _file(self, i: int) -> Path:
        return self.path / f"task-{i}.pickle"


def run_tasks(
    tasks: Sequence[Task],
    folder: Workfolder | None,
    jobs: int | None,
    progress: Progress | None,
    on: str = HERE,
) -> list[TaskResult]:
    """Results of all tasks, in their order; tasks with a result in `folder` do not run again.

    `on`: "processes" of this machine, "ray" for a Ray cluster of its own, or the address of one.
    """
    results: list[TaskResult | None] = [
        folder.load(i, task) if folder else None for i, task in enumerate(tasks)
    ]
    total = sum(len(task.policies) for task in tasks)
    _report(progress, tasks, results, total)
    for i, result in _run([i for i, r in enumerate(results) if r is None], tasks, jobs, on):
        results[i] = result
        if folder is not None:
            folder.save(i, result)
        _report(progress, tasks, results, total)
    return [result for result in results if result is not None]


def _report(
    progress: Progress | None, tasks: Sequence[Task], results: Sequence[TaskResult | None], total: int
) -> None:
    if progress is not None:
        progress(sum(len(t.policies) for t, r in zip(tasks, results, strict=True) if r is not None), total)


def check_place(on: str) -> None:
    """Raise UsageError if tasks can't run there."""
    if on not in (HERE, "ray") and not on.startswith("ray://"):
        raise UsageError("no such place", field="on", value=on, expected=f"{HERE}, ray or ray://HOST:PORT")


def _run(
    open_: Sequence[int], tasks: Sequence[Task], jobs: int | None, on: str
) -> Iterator[tuple[int, TaskResult]]:
    if on != HERE:
        yield from _run_on_ray(open_, tasks, jobs, None if on == "ray" else on)
        return
    jobs = jobs or cores()
    if jobs == 1 or len(open_) <= 1:
        yield from ((i, run_task(tasks[i])) for i in open_)
        return
    yield from _run_in_processes(open_, tasks, min(jobs, len(open_)))


def _run_on_ray(
    open_: Sequence[int], tasks: Sequence[Task], jobs: int | None, address: str | None
) -> Iterator[tuple[int, TaskResult]]:
    from trimtab.clusters.ray.ray_tasks import run_calls

    for k, (result, files) in run_calls(address, run_task_elsewhere, [tasks[i] for i in open_], jobs):
        folder = tasks[open_[k]].records_folder
        for name, data in files.items():
            assert folder is not None  # no other task has files
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)
        yield open_[k], result


def _run_in_processes(
    open_: Sequence[int], tasks: Sequence[Task], jobs: int
) -> Iterator[tuple[int, TaskResult]]:
    from concurrent.futures import FIRST_COMPLETED, wait

    from loky import ProcessPoolExecutor  # unlike the standard one it needs no main guard in users' scripts

    _start_tracker()
    executor = ProcessPoolExecutor(max_workers=jobs)
    try:
        with _interruptions() as seen:
            futures = {executor.submit(run_task, tasks[i]): i for i in open_}
            left = set(futures)
            while left:
                done, left = wait(left, timeout=POLL_S, return_when=FIRST_COMPLETED)
                if seen:
                    raise KeyboardInterrupt
                for future in done:
                    yield futures[future], future.result()
    finally:
        executor.shutdown(wait=True, kill_workers=True)


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
