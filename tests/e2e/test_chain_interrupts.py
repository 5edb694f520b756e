"""Ctrl-C on a terminal while `trimtab chain run` is under way, and `--resume` after it."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from trimtab.chains.run_reports import summary

STAGES = """
import os, time
from pathlib import Path
from trimtab.chains import chain, stage

HERE = Path(__file__).parent

@stage
def begin(n: int) -> int:
    with open(HERE / "begun", "a") as file:
        file.write(f"{n} {os.getpid()}\\n")
    return n

@stage
def end(n: int) -> int:
    while n > 1 and not (HERE / "gate").exists():
        (HERE / f"waits-{n}").touch()
        time.sleep(0.02)
    return 10 * n

@chain
def line(n: int):
    return end(begin(n))
"""


class Terminal:
    """`trimtab chain run` as the foreground process of a terminal of its own."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [
                sys.executable, "-m", "trimtab", "chain", "run", f"{folder / 'stages.py'}:line", *arguments,
                "--workers", "2", "--journal", str(folder / "journal"), "--out", str(folder / "out.jsonl"),
            ],
            stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
            preexec_fn=lambda: _take(theirs),
        )  # fmt: skip
        os.close(theirs)

    def press_ctrl_c(self) -> None:
        os.write(self._ours, b"\x03")

    def ended(self) -> tuple[int, str]:
        """Its exit code, and what it showed."""
        shown = b""
        while True:
            try:
                data = os.read(self._ours, 65_536)
            except OSError:  # the terminal is gone with its process
                data = b""
            if not data:
                break
            shown += data
        os.close(self._ours)
        return self.process.wait(timeout=60.0), re.sub(r"\s+", " ", shown.decode())


def _take(terminal: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # what a shell starts in the background ignores it


def outputs(folder: Path) -> list[dict[str, Any]]:
    file = folder / "out.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "stages.py").write_text(STAGES)
    (tmp_path / "inputs.jsonl").write_text("".join(f"{n}\n" for n in range(6)))
    return tmp_path


def until(condition: Any) -> None:
    deadline_s = time.monotonic() + 60.0
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def is_alive(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


def interrupted(folder: Path, presses: int) -> str:
    """Interrupt a run after its first two results, while both workers wait in the next ones: its id."""
    terminal = Terminal(folder, "--input", str(folder / "inputs.jsonl"))
    until(lambda: len(outputs(folder)) == len(list(folder.glob("waits-*"))) == 2)
    for _ in range(presses):
        terminal.press_ctrl_c()
        time.sleep(0.01)
    code, shown = terminal.ended()
    assert code in (130, -signal.SIGINT), shown  # as it exits Python leaves the last one to the system
    assert "Traceback" not in shown
    told = re.search(r"go on with: trimtab chain run \S+ --journal \S+ --resume (run_\w+)", shown)
    assert told is not None, shown
    workers = {line.split()[1] for line in (folder / "begun").read_text().splitlines()}
    until(lambda: not any(map(is_alive, workers)))
    return told[1]


def test_ctrl_c_stops_a_run_and_resume_repeats_no_finished_stage(folder: Path) -> None:
    run = interrupted(folder, presses=1)
    found = summary(folder / "journal", run)
    assert (found["state"], found["inputs"]["done"]) == ("stopped", 2)
    first = outputs(folder)
    (folder / "gate").touch()
    code, shown = Terminal(folder, "--resume", run).ended()
    assert code == 0, shown
    assert "6 done" in shown
    both = {told["input"]: told["output"] for told in (*first, *outputs(folder))}
    assert both == {n: 10 * n for n in range(6)}
    begun = Counter(line.split()[0] for line in (folder / "begun").read_text().splitlines())
    assert begun == {str(n): 1 for n in range(6)}


@pytest.mark.faults
def test_a_second_ctrl_c_ends_it_at_once_and_it_can_still_be_resumed(folder: Path) -> None:
    run = interrupted(folder, presses=3)
    (folder / "gate").touch()
    time.sleep(11.0)  # its process may have left no sign of its end: then its run is free after 10 s
    code, shown = Terminal(folder, "--resume", run).ended()
    assert code == 0, shown
    assert "6 done" in shown
