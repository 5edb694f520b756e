"""kill -9 of a gateway process in each state of its jobs: none is lost, none runs twice."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.waiting import wait_until

_PROCESS = Path(__file__).parents[1] / "support" / "job_process.py"


def _start(url: str, folder: Path, log: Path, stage: str, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, str(_PROCESS), url, str(folder), str(log), stage, str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _wait_for(log: Path, word: str, times: int) -> None:
    wait_until(lambda: log.exists() and log.read_text().count(word) >= times, timeout_s=90)


@pytest.mark.parametrize(
    ("stage", "end", "sends"),
    [
        ("queued", "done", 1),
        ("dispatched", "unknown", 1),
        ("idempotent", "done", 2),  # declared so: it may
        ("attached", "done", 1),
        ("finished", "done", 1),
    ],
)
def test_killed_in_each_state(store_url: str, tmp_path: Path, stage: str, end: str, sends: int) -> None:
    folder, log = tmp_path / "jobs", tmp_path / "log"
    with _start(store_url, folder, log, stage, 3) as victim:
        _wait_for(log, f"at {stage}", 3)
        victim.kill()
    with _start(store_url, folder, log, "", 0) as heir:
        output, _ = heir.communicate(timeout=120)
    assert output.strip() == str({end: 3})
    sent = [line for line in log.read_text().splitlines() if line.startswith("sent")]
    assert len(sent) == 3 * sends
    assert len(set(sent)) == 3
    assert list((folder / "bodies").iterdir()) == []
    if end == "done":
        results = [
            path.read_bytes() for path in (folder / "results").glob("video_*") if path.suffix != ".meta"
        ]
        assert results == [b"film"] * 3
