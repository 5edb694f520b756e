"""What an interrupted comparison left is used again, unless it is damaged or no result at all."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

import trimtab as tt
from trimtab.experiments.pool import Workfolder
from trimtab.experiments.tasks import Task, TaskResult, run_task


@pytest.fixture(scope="module")
def result() -> TaskResult:
    task = Task(tt.scenario("tiny"), 0, None, ("random",), "interpreted", with_bound=True, with_curves=True)
    return run_task(task)


def test_a_result_is_found_again_as_it_was(tmp_path: Path, result: TaskResult) -> None:
    folder = Workfolder(tmp_path, "abc")
    folder.save(0, result)
    found = folder.load(0)
    assert found is not None
    assert (found.bound, found.runs[0].metrics) == (result.bound, result.runs[0].metrics)
    np.testing.assert_array_equal(found.runs[0].curves.edges_s, result.runs[0].curves.edges_s)
    assert folder.load(1) is None


@pytest.mark.parametrize("content", [b"", b"\x80\x05nonsense", pickle.dumps([1, 2])])
def test_what_is_no_result_is_computed_again(tmp_path: Path, content: bytes) -> None:
    folder = Workfolder(tmp_path, "abc")
    (folder.path / "task-0.pickle").write_bytes(content)
    assert folder.load(0) is None


class Mine:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.mark,))


def test_nothing_in_a_folder_is_run(tmp_path: Path) -> None:
    folder, mark = Workfolder(tmp_path, "abc"), tmp_path / "was-run"
    (folder.path / "task-0.pickle").write_bytes(pickle.dumps(Mine(mark)))
    assert folder.load(0) is None
    assert not mark.exists()
