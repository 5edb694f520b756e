"""Ctrl-C: exit code 130, nothing half-written, and the same command continues from there."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import process
from support.waiting import wait_until

# Writes one character per run; the second run then waits for Ctrl-C, until there is a file `released`.
POLICY = """
import time
from pathlib import Path

import trimtab as tt


class Blocks(tt.Policy):
    @staticmethod
    def dispatch(view, plan, work, memory, draws, ranking):
        if work.serial == 0:
            with Path("runs").open("a") as runs:
                runs.write("x")
            if Path("runs").read_text() == "xx" and not Path("released").exists():
                time.sleep(300)
        ranking[0] = 0
        return 1
"""


def interrupted(folder: Path, *arguments: str, by: int = signal.SIGINT) -> subprocess.CompletedProcess[str]:
    """Start a command, press Ctrl-C (or send another signal) once the policy waits for it, and let it end."""
    (folder / "blocks.py").write_text(POLICY)
    runs = folder / "runs"
    with subprocess.Popen(
        [sys.executable, "-m", "trimtab", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # jobs in the background ignore it
    ) as running:
        wait_until(
            lambda: running.poll() is not None or (runs.exists() and runs.read_text() == "xx"),
            timeout_s=250.0,
        )
        for patience_s in (30, 30, 60):  # Python drops a signal that arrives in a finaliser: press again
            running.send_signal(by)
            try:
                stdout, stderr = running.communicate(timeout=patience_s)
                break
            except subprocess.TimeoutExpired as error:
                late = error
        else:
            running.kill()
            raise late
    return subprocess.CompletedProcess(arguments, running.returncode, stdout, stderr)


def test_interrupted_run_writes_nothing(tmp_path):
    (tmp_path / "runs").write_text("x")
    result = interrupted(tmp_path, "run", "tiny", "-p", "blocks.py:Blocks", "--out", "out")
    assert result.returncode == 130
    assert result.stderr.splitlines()[-1] == "interrupted"
    assert result.stdout == ""
    assert not (tmp_path / "out").exists()


def test_interrupted_comparison_goes_on_where_it_was(tmp_path):
    out = tmp_path / "trimtab-out"
    command = ("compare", "tiny", "-p", "blocks.py:Blocks", "-n", "3", "--no-sweep", "-j", "1")
    result = interrupted(tmp_path, *command)
    assert result.returncode == 130
    assert "the same command continues from there" in result.stderr
    assert "1 of 3 runs are finished; the table has seed 0\n" in result.stderr
    assert "Traceback" not in result.stderr
    assert "blocks.py:Blocks" in result.stdout
    assert [path.name.split("-")[0] for path in out.iterdir()] == [".unfinished"]
    (tmp_path / "released").touch()
    again = process(*command, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "runs").read_text() == "xx" + "xx"  # the first seed was kept
    assert json.loads((out / "results.json").read_text())["seeds"] == [0, 1, 2]
    assert not list(out.glob(".unfinished*"))


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_workers_end_too(tmp_path, by):
    command = ("compare", "tiny", "-p", "blocks.py:Blocks", "-n", "2", "--no-sweep", "-j", "2", "--quiet")
    result = interrupted(tmp_path, *command, by=by)
    assert result.returncode == 130
    assert result.stderr.startswith("interrupted\n")
    assert "Traceback" not in result.stderr
    assert "Warning" not in result.stderr
