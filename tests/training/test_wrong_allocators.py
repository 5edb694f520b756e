"""An allocator of a user's that returns nonsense is named, with the place of its function, in every host."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from support.train_runs import job, train
from trimtab.cli.app import app
from trimtab.errors import PolicyError

HEAD = """\
import numpy as np
from trimtab.domain.allocator import Allocation, Allocator

class Mine(Allocator):
    def allocate(self, jobs, cluster, now_s, speed, memory):
        n = len(jobs)
"""
PLACE = "mine.py:5, in allocate"
WRONG = {
    "none": ("pass", "returned None; expected an Allocation"),
    "array": ("return np.zeros((n, 1))", "returned array([[0.]]); expected an Allocation"),
    "nothing": ("return Allocation()", "returned both gpus and counts, or neither"),
    "shape": ("return Allocation(counts=np.zeros(n))", "returned shape (1,); expected (1, 1)"),
    "nan": ("return Allocation(counts=np.full((n, 1), np.nan))", "returned nan in counts, at [0, 0]"),
    "part": (
        "return Allocation(counts=np.full((n, 1), 0.5))",
        "returned 0.5 in counts, at [0, 0]; expected whole",
    ),
    "text": ("return Allocation(counts='all')", "returned counts = 'all'; expected an array of numbers"),
    "ragged": (
        "return Allocation(counts=[[1], [1, 2]])",
        "returned counts = [[1], [1, 2]]; expected an array",
    ),
    "wake": (
        "return Allocation(counts=np.zeros((n, 1)), wake_s=np.nan)",
        "returned wake_s = nan; expected seconds",
    ),
    "batch": (
        "return Allocation(counts=np.zeros((n, 1)), local_batch=np.zeros(n + 1))",
        "returned local_batch of shape (2,); expected (1,)",
    ),
    "rejected": (
        "return Allocation(counts=np.zeros((n, 1)), rejected={n: 'why'})",
        "returned rejected = {1: 'why'}; expected rows of jobs",
    ),
    "admitted": (
        "return Allocation(counts=np.zeros((n, 1)), admitted=0)",
        "returned admitted = 0; expected rows of jobs",
    ),
    "mask": (  # read as numbers it would admit the first job
        "return Allocation(counts=np.zeros((n, 1)), admitted=np.zeros(n, bool))",
        "returned admitted = array([False]); expected rows of jobs",
    ),
}
CLUSTER = "types: {a: {accelerators: 4, memory_gib: 1}}\nnodes: [{type: a, count: 1}]\n"


@pytest.fixture
def allocate(tmp_path: Path) -> Any:
    """`trimtab allocate` with an allocator whose class has these lines."""

    def run(lines: str) -> Any:
        (tmp_path / "mine.py").write_text(lines)
        (tmp_path / "cluster.yaml").write_text(CLUSTER)
        (tmp_path / "jobs.csv").write_text("job_id,submit_s,gpus,duration_s\na,0,2,60\n")
        words = "--jobs", "jobs.csv", "--cluster", "cluster.yaml", "--policy", "mine.py:Mine"
        return CliRunner().invoke(app, ["allocate", *words])

    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(tmp_path)
        yield run


@pytest.mark.parametrize(("body", "told"), WRONG.values(), ids=WRONG)
def test_nonsense_is_named_with_the_users_function(allocate: Any, body: str, told: str) -> None:
    result = allocate(f"{HEAD}        {body}\n")
    assert result.exit_code == 3, result.output
    assert f"allocator 'Mine' at 0 s: {told}" in result.stderr
    assert f"\n  {PLACE}" in result.stderr


def test_whole_numbers_of_any_type_will_do(allocate: Any) -> None:
    result = allocate(f"{HEAD}        return Allocation(counts=[[2.0]] * n)\n")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["jobs"][0]["gpus"] == 2


def test_what_begins_wrong_is_named_too(allocate: Any) -> None:
    result = allocate(f"{HEAD}        pass\n    def init(self, cluster, n_jobs):\n        return 1 / 0\n")
    assert result.exit_code == 3
    assert "allocator 'Mine' begins: ZeroDivisionError" in result.stderr
    assert "mine.py:9, in init: return 1 / 0" in result.stderr
    refuses = f"{HEAD}        pass\n    def __init__(self):\n        raise ValueError('no')\n"
    result = allocate(refuses)
    assert result.exit_code == 2
    assert "policy: cannot be made: ValueError: no" in result.stderr
    assert "mine.py:9, in __init__" in result.stderr


@pytest.mark.parametrize("thresholds", ["abc", "3600/-1", "7200/3600", ""])
def test_thresholds_that_are_none_are_the_users_error(thresholds: str) -> None:
    words = ["compare", "elastic-training", "--policy", f"tiresias(thresholds={thresholds})", "--no-sweep"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2, result.output
    assert f"tiresias.thresholds: out of range (got '{thresholds}')" in result.stderr


def test_simulator_and_real_jobs_name_it_alike(tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(f"{HEAD}        pass\n")
    words = [
        "compare",
        "elastic-training",
        "-p",
        f"{mine}:Mine",
        "--no-sweep",
        "--out",
        str(tmp_path / "out"),
    ]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 3, result.output
    assert "returned None; expected an Allocation" in result.stderr
    assert PLACE in result.stderr
    with pytest.raises(
        PolicyError, match=r"allocator 'Mine' at 0(\.\d+)? s: returned None; expected an Alloc"
    ):
        train(tmp_path / "runs", f"{mine}:Mine", job("fit", 8))
