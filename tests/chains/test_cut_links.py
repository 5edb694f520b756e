"""A worker that cannot be reached for a while: SIGSTOP stands for a link that is cut."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from support.run_journals import recorded
from support.waiting import wait_until
from trimtab.chains import Session, StageContext, chain, stage
from trimtab.clusters.heartbeats import ProcessSilence
from trimtab.clusters.processes import Processes
from trimtab.live.stage_backend import StageNode


@stage(retries=0)
def note(n: int, folder: str, ctx: StageContext) -> int:
    """The first attempt at 0 ends when the file `go` is there, and does not let itself be cancelled."""
    import os
    import time
    from pathlib import Path

    def told(what: str) -> None:
        with open(Path(folder) / what, "a") as file:
            file.write(f"{n} {ctx.attempt} {os.getpid()}\n")

    told("begun")
    end_s = time.monotonic() + (60.0 if n == 0 and ctx.attempt == 1 else 0.05)
    while time.monotonic() < end_s and not (Path(folder) / "go").exists():
        try:
            time.sleep(0.02)
        except BaseException:
            told("cancelled")
    told("ended")
    return 100 * n + ctx.attempt


@chain
def noted(n: int, folder: str) -> Any:
    return note(n, folder=folder)


def lines(file: Path) -> list[list[int]]:
    return [[int(x) for x in line.split()] for line in file.read_text().splitlines()] if file.exists() else []


def _cut(folder: Path, cut_s: float, stopped_s: float, inputs: int) -> None:
    """Stop a worker in the middle of an attempt; it goes on after a while."""
    given = [{"n": n, "folder": str(folder)} for n in range(inputs)]
    backend = Processes([StageNode("a"), StageNode("b")], cut_s=cut_s)
    with Session(noted, on=backend, journal=folder) as session:
        handle = session.run(noted, given)
        wait_until(lambda: any(n == 0 for n, *_ in lines(folder / "begun")))
        (pid,) = [pid for n, _, pid in lines(folder / "begun") if n == 0]
        os.kill(pid, signal.SIGSTOP)
        begun_s = time.monotonic()
        try:
            values = [result.value for result in handle.wait(timeout_s=60.0)]
            assert values == [2, *(100 * n + 1 for n in range(1, inputs))]  # the second attempt at 0
            assert pid not in {line[2] for line in lines(folder / "ended")}  # it went on without that worker
            time.sleep(max(0.0, begun_s + stopped_s - time.monotonic()))
        finally:
            os.kill(pid, signal.SIGCONT)
        wait_until(lambda: [0, 1, pid] in lines(folder / "cancelled"))
        (folder / "go").touch()
        wait_until(lambda: [0, 1, pid] in lines(folder / "ended"))  # its late answer is on the way
        again = session.run(noted, given[1:] * 8)
        assert [result.value for result in again.wait()] == values[1:] * 8
        assert pid in {line[2] for line in lines(folder / "ended") if line[0] > 0}  # it has work again
    results = sorted((row.number, row.attempt) for row in recorded(folder, handle.id).results)
    assert results == [(n, 2 if n == 0 else 1) for n in range(inputs)]


def test_a_worker_out_of_reach_loses_its_attempt_and_its_late_answer_is_not_recorded(tmp_path: Path) -> None:
    _cut(tmp_path, cut_s=2.0, stopped_s=0.0, inputs=4)


@pytest.mark.faults
@pytest.mark.parametrize("stopped_s", [8.0, 60.0])
def test_work_goes_on_while_a_link_is_cut(tmp_path: Path, stopped_s: float) -> None:
    _cut(tmp_path, cut_s=5.0, stopped_s=stopped_s, inputs=60)


def test_silence_is_broken_by_messages_and_by_use_of_the_processor() -> None:
    asleep = subprocess.Popen(["sleep", "60"])
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        held = ProcessSilence(busy.pid, 0.0)
        wait_until(lambda: held.lasted_s(100.0) == 0.0)  # it holds its interpreter, and works
        quiet = ProcessSilence(asleep.pid, 0.0)
        assert quiet.lasted_s(3.0) == 3.0
        quiet.heard(4.0)
        assert quiet.lasted_s(4.5) == 0.5
    finally:
        for process in (asleep, busy):
            process.kill()
            process.wait()
    assert ProcessSilence(busy.pid, 0.0).lasted_s(100.0) == 0.0  # nothing is known of it
