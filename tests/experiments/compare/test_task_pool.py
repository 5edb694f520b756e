"""What an interrupted comparison left is used again, unless it is damaged or no result at all."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import yaml

import trimtab as tt
from support.shared_clusters import small_shared
from trimtab.errors import PolicyError
from trimtab.experiments.colocation.shared_kind import SHARED_KIND
from trimtab.experiments.compare.pace import Expected, expected_of, left_s
from trimtab.experiments.compare.task_pool import _next_task
from trimtab.experiments.compare.tasks import Task, TaskResult, file_name, run_task
from trimtab.experiments.compare.workfolder import Workfolder
from trimtab.experiments.serving.serving_kind import SERVING
from trimtab.experiments.training.training_kind import TRAINING_KIND

TASK = Task(
    SERVING,
    tt.scenario("tiny"),
    0,
    None,
    "random",
    "random",
    "interpreted",
    with_bound=True,
    with_curves=True,
    key="abc",
)
SWEPT = replace(TASK, load=0.5, with_bound=False, key="def")  # writes no record


@pytest.fixture(scope="module")
def result() -> TaskResult:
    return run_task(TASK)


def test_a_result_is_found_again_as_it_was(tmp_path: Path, result: TaskResult) -> None:
    folder = Workfolder(tmp_path, [SWEPT])
    folder.save(SWEPT, result)
    found = folder.load(SWEPT)
    assert found is not None
    assert found.bound == result.bound
    assert found.run.metrics == pytest.approx(result.run.metrics, rel=0, abs=0, nan_ok=True)
    np.testing.assert_array_equal(found.run.curves.edges_s, result.run.curves.edges_s)
    assert folder.load(TASK) is None


@pytest.mark.parametrize("content", [b"", b"\x80\x05nonsense", pickle.dumps([1, 2])])
def test_what_is_no_result_is_computed_again(tmp_path: Path, content: bytes) -> None:
    folder = Workfolder(tmp_path, [SWEPT])
    (folder.path / "def.pickle").write_bytes(content)
    assert folder.load(SWEPT) is None


class Mine:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.mark,))


def test_nothing_in_a_folder_is_run(tmp_path: Path) -> None:
    folder, mark = Workfolder(tmp_path, [SWEPT]), tmp_path / "was-run"
    (folder.path / "def.pickle").write_bytes(pickle.dumps(Mine(mark)))
    assert folder.load(SWEPT) is None
    assert not mark.exists()


def test_a_result_whose_records_are_gone_is_computed_again(tmp_path: Path) -> None:
    folder = Workfolder(tmp_path, [TASK])
    (task,) = folder.tasks
    folder.save(task, run_task(task))
    assert folder.load(task) is not None
    task.record.unlink()
    assert folder.load(task) is None


def test_different_policies_have_different_folders() -> None:
    names = ["my/p.py:X", "my_p.py:X", "my_p.py_X", "random"]
    assert len({file_name(name) for name in names}) == len(names)
    assert file_name("least-expected-wait+edf") == "least-expected-wait+edf"


def test_results_of_each_kind_are_found_again(tmp_path: Path) -> None:
    """The loader knows the classes of results: what a kind puts into its remarks must be of them."""
    (tmp_path / "shared.yaml").write_text(yaml.safe_dump(small_shared()))
    for kind, source, policy in (
        (SHARED_KIND, tmp_path / "shared.yaml", "static(nodes=3)"),
        (TRAINING_KIND, "elastic-training", "fifo"),
        (SERVING, "multimodal", "round-robin"),
    ):
        settings: Any = kind.read(source, load=None, policies=None, seeds=1)
        short = kind.shortened(settings, 20)
        task = Task(kind, short, 0, None, policy, policy, with_curves=True, key=policy)
        folder = Workfolder(tmp_path, [task])
        folder.save(task, run_task(folder.tasks[0]))
        assert folder.load(folder.tasks[0]) is not None, policy


class Fails(tt.Policy):
    @staticmethod
    def dispatch(*_: object) -> int:
        raise ValueError


def test_a_comparison_without_any_result_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(PolicyError):
        tt.compare("tiny", [Fails()], 1, sweep=(), out=tmp_path, mode="interpreted")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_a_result_stays(tmp_path: Path, result: TaskResult) -> None:
    def fails() -> None:
        with Workfolder(tmp_path, [SWEPT]) as folder:
            folder.save(SWEPT, result)
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine") as failed:
        fails()
    assert Workfolder(tmp_path, [SWEPT]).load(SWEPT) is not None
    assert failed.value.__notes__ == [
        f"finished runs are in {tmp_path}/.unfinished; the same command continues from there"
    ]


@pytest.mark.parametrize(
    ("left", "has", "chosen"),
    [
        ([0, 1, 2, 3], {}, 0),
        ([1, 2, 3], {0: (0, None)}, 2),  # inputs that no process has
        ([1, 2, 3], {0: (0, None), 1: (1, None)}, 2),  # its own
        ([1, 3], {0: (0, None), 1: (2, None)}, 3),
        ([0, 1, 3], {0: (0, None), 2: (1, None)}, 0),  # none is without a process: most are left of these
    ],
)
def test_a_process_goes_on_with_the_inputs_that_it_has(left, has, chosen) -> None:
    tasks = [replace(TASK, seed=seed) for seed in (0, 0, 1, 1)]
    assert _next_task(left, tasks, has, process=1) == chosen


def test_time_left_is_of_each_policys_own_runs_and_else_of_what_was_expected(result: TaskResult) -> None:
    tasks = [replace(TASK, name=name) for name in ("a", "a", "b", "c")]
    tasks += [replace(TASK, name="a", seed=1)]
    ended = [replace(result, build_s=7.0, run_s=4.0), None, None, None, None]
    expected = Expected(build_s=1.0, run_s={"a": 2.0, "b": 10.0}, record_bytes=0.0)
    assert left_s(tasks, [None] * 5, {}, None, 2) is None
    assert left_s(tasks, ended, {}, None, 1) == 3 * 4.0 + (7.0 + 4.0)
    # a takes its mean of 4, b 2 s more than was expected, as a did; c is like the mean of the ended
    assert left_s(tasks, ended, {1: 1.0}, expected, 2) == (3.0 + 12.0 + 4.0 + (7.0 + 4.0)) / 2
    # one that takes 60 s so far is told before it ends: others of a take as long, b 58 s more than expected
    assert left_s(tasks, [None] * 5, {0: 60.0}, expected, 1) == 60.0 + 68.0 + 60.0 + (1.0 + 60.0)


class Counts(tt.Policy):
    ran: ClassVar[set[str]] = set()

    def __init__(self, name: str) -> None:
        self.name = name

    def choose(self, cluster: object, request: object) -> int:
        self.ran.add(self.name)
        return 0


def test_measuring_stops_in_time_and_counts_the_rest_as_the_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trimtab.experiments.compare.pace.MEASURED_S", 0.0)
    settings = SERVING.read("tiny", load=None, policies=None, seeds=1)
    found = expected_of(SERVING, settings, [Counts("one"), Counts("two")], 1000, 100, "interpreted")
    assert found is not None
    assert Counts.ran == {"one"}
    assert found.run_s["two"] == found.run_s["one"] > 0.0
