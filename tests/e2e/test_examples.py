"""Every example runs, in an empty folder, and prints something."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example(example: Path, tmp_path: Path):
    command = [sys.executable, str(example)]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout
    assert result.stderr == ""
    assert list(tmp_path.iterdir()) == []


def test_there_is_one_for_each_use():
    assert {e.stem for e in EXAMPLES} == {
        "compare_policies",
        "own_allocator",
        "own_policy",
        "own_trace",
        "read_results",
        "size_a_fleet",
    }
