"""Keeps every finished run of a comparison, so that an interrupted one goes on from there."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from trimtab.errors import UsageError
from trimtab.experiments.compare.kind import Curves
from trimtab.experiments.compare.tasks import BoundResult, RunResult, Task, TaskResult, file_name

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


class Workfolder:
    """Hidden folder beside the results: finished runs and their records, until the comparison is whole.

    Runs are found by their keys, so that other seeds, policies or loads use those that they share. As a
    context it is removed at the end if no run finished; else an exception is told that runs are kept.
    """

    def __init__(self, out: Path, tasks: Sequence[Task]) -> None:
        self.path = out / ".unfinished"
        self.tasks = tuple(
            task if task.load is not None else replace(task, record=self.path / f"{task.key}.parquet")
            for task in tasks
        )
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._probe.touch()
        except OSError as error:
            raise UsageError(
                f"can't write there: {error.strerror}",
                field="out",
                value=str(out),
                expected="a writable folder",
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if not any(self._file(task).exists() for task in self.tasks):
            self.remove()
        elif error is not None:
            error.add_note(f"finished runs are in {self.path}; the same command continues from there")

    def load(self, task: Task) -> TaskResult | None:
        """The result of a task, if an earlier run finished it and its record is there."""
        return self._result(task) if task.record is None or task.record.exists() else None

    def _result(self, task: Task) -> TaskResult | None:
        try:
            with self._file(task).open("rb") as file:
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

    def save(self, task: Task, result: TaskResult) -> None:
        """Keep the result of a task."""
        part = self._file(task).with_suffix(".part")
        part.write_bytes(pickle.dumps(result))
        part.replace(self._file(task))

    def gathered(self) -> Path:
        """A folder of links to all records, by policy and seed. Raises UsageError if some are gone."""
        folder = self.path / "records"
        shutil.rmtree(folder, ignore_errors=True)  # left by a stopped write
        for task in self.tasks:
            if task.record is None:
                continue
            path = folder / file_name(task.name) / f"seed-{task.seed}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                _link(task.record, path)
            except FileNotFoundError:
                expected = "a folder that no other comparison writes to at the same time"
                raise UsageError(
                    "records of finished runs are gone",
                    field="out",
                    value=str(self.path.parent),
                    expected=expected,
                ) from None
        return folder

    def remove(self) -> None:
        """Delete all of these tasks; runs of other comparisons stay."""
        shutil.rmtree(self.path / "records", ignore_errors=True)
        for task in self.tasks:
            for suffix in (".pickle", ".parquet", ".part"):
                self._file(task).with_suffix(suffix).unlink(missing_ok=True)
        self._probe.unlink(missing_ok=True)
        if self.path.is_dir() and not any(self.path.iterdir()):
            self.path.rmdir()

    @property
    def _probe(self) -> Path:
        return self.path / ".writable"

    def _file(self, task: Task) -> Path:
        return self.path / f"{task.key}.pickle"


def _link(source: Path, target: Path) -> None:
    """A second name of a file; a copy where the file system has no links."""
    try:
        target.hardlink_to(source)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copyfile(source, target)
