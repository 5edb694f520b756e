"""What an interrupted comparison left is used again, unless it is damaged or no result at all."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import trimtab as tt
from trimtab.errors import PolicyError
from trimtab.experiments.compare.task_pool import Workfolder
from trimtab.experiments.compare.tasks import Task, TaskResult, file_name, record_files, run_task
from trimtab.experiments.serving.serving_kind import SERVING

TASK = Task(
    SERVING, tt.scenario("tiny"), 0, None, ("random",), "interpreted", with_bound=True, with_curves=True
)


@pytest.fixture(scope="module")
def result() -> TaskResult:
    return run_task(TASK)


def test_a_result_is_found_again_as_it_was(tmp_path: Path, result: TaskResult) -> None:
    folder = Workfolder(tmp_path, "abc")
    folder.save(0, result)
    found = folder.load(0, TASK)
    assert found is not None
    assert found.bound == result.bound
    assert found.runs[0].metrics == pytest.approx(result.runs[0].metrics, rel=0, abs=0, nan_ok=True)
    np.testing.assert_array_equal(found.runs[0].curves.edges_s, result.runs[0].curves.edges_s)
    assert folder.load(1, TASK) is None


@pytest.mark.parametrize("content", [b"", b"\x80\x05nonsense", pickle.dumps([1, 2])])
def test_what_is_no_result_is_computed_again(tmp_path: Path, content: bytes) -> None:
    folder = Workfolder(tmp_path, "abc")
    (folder.path / "task-0.pickle").write_bytes(content)
    assert folder.load(0, TASK) is None


class Mine:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.mark,))


def test_nothing_in_a_folder_is_run(tmp_path: Path) -> None:
    folder, mark = Workfolder(tmp_path, "abc"), tmp_path / "was-run"
    (folder.path / "task-0.pickle").write_bytes(pickle.dumps(Mine(mark)))
    assert folder.load(0, TASK) is None
    assert not mark.exists()


def test_a_result_whose_records_are_gone_is_computed_again(tmp_path: Path) -> None:
    folder = Workfolder(tmp_path, "abc")
    task = replace(TASK, records_folder=folder.records)
    folder.save(0, run_task(task))
    assert folder.load(0, task) is not None
    record_files(task)[0].unlink()
    assert folder.load(0, task) is None


def test_different_policies_have_different_folders() -> None:
    names = ["my/p.py:X", "my_p.py:X", "my_p.py_X", "random"]
    assert len({file_name(name) for name in names}) == len(names)
    assert file_name("least-expected-wait+edf") == "least-expected-wait+edf"


class Fails(tt.Policy):
    @staticmethod
    def dispatch(*_: object) -> int:
        raise ValueError


def test_a_comparison_without_any_result_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(PolicyError):
        tt.compare("tiny", [Fails()], 1, sweep=(), out=tmp_path, mode="interpreted")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_a_result_stays(tmp_path: Path, result: TaskResult) -> None:
    with Workfolder(tmp_path, "abc") as folder:
        folder.save(0, result)
    assert folder.load(0, TASK) is not None
