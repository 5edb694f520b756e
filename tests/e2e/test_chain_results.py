"""What `trimtab chain run` writes where: results alone on stdout, messages that name lines and time left."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trimtab.chains.run_state import State
from trimtab.cli.chain_tables import left_text

STAGES = """
import subprocess
from trimtab.chains import chain, stage

@stage(retries=0)
def dots(n: int) -> int:
    print(".", end="", flush=True)
    subprocess.run(["echo", "from a child"])
    return 12 // n

@chain
def line(n: int):
    return dots(n)
"""


def chain_run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "trimtab", "chain", "run", str(folder / "stages.py:line"), *arguments]
    return subprocess.run(
        [*command, "--journal", str(folder / "journal")], capture_output=True, text=True, check=False
    )


def messages(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Messages about inputs; a dot that a worker has just printed stands before one at times."""
    lines = (line.lstrip(".") for line in done.stderr.splitlines())
    return [line for line in lines if line.startswith("input ")]


@pytest.mark.parametrize("on", ["processes", "in-process"])
def test_results_are_alone_on_stdout_and_a_resumed_run_names_the_same_lines(tmp_path: Path, on: str) -> None:
    (tmp_path / "stages.py").write_text(STAGES)
    inputs = tmp_path / "in.jsonl"
    inputs.write_text("1\n\n2\n\n\n0\n4\n")
    done = chain_run(tmp_path, "--input", str(inputs), "--on", on)
    told = {row["input"]: row["output"] for row in map(json.loads, done.stdout.splitlines())}
    assert told == {0: 12, 1: 6, 3: 3}
    assert done.stderr.count("from a child") == 4
    (message,) = messages(done)
    assert message.startswith("input of line 6: dots[0] after 1 attempt: ZeroDivisionError")
    assert "stages.py:9 in dots)" in message
    run = next(line.split()[1] for line in done.stderr.splitlines() if line.startswith("run "))
    assert messages(chain_run(tmp_path, "--resume", run, "--on", on)) == [message]


def test_the_time_left_counts_what_this_process_has_done() -> None:
    """100 inputs, 60 of them over before: 10 in 20 s leave 30 for 60 s."""
    handle: Any = SimpleNamespace(endings={State.DONE: 70}, n_inputs=100, n_before=60)
    assert left_text(handle, 20.0) == "70 of 100 inputs; 60 s left"
    handle.endings = {State.DONE: 60}
    assert left_text(handle, 20.0) == "60 of 100 inputs"
