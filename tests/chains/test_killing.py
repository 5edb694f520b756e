"""Random worker processes are killed while runs are under way: every output comes exactly once."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from support.run_journals import recorded
from trimtab.chains import Session, chain, stage
from trimtab.clusters.processes import Processes
from trimtab.live.stage_backend import StageNode


@stage
def split(n: int) -> list[int]:
    return [n, n + 1, n + 2]


@stage
def square(n: int) -> int:
    import time

    time.sleep(0.005)
    return n * n


@stage
def total(parts: list[int]) -> int:
    return sum(parts)


@chain
def quick(n: int) -> Any:
    return total(square.map(split(n)))


def test_every_output_comes_once_while_workers_are_killed(tmp_path: Path) -> None:
    _killed(tmp_path, inputs=30, kills=3)


@pytest.mark.faults
def test_every_output_comes_once_in_200_runs_while_workers_are_killed(tmp_path: Path) -> None:
    for run in range(200):
        _killed(tmp_path / str(run), inputs=10, kills=2, seed=run)


def _killed(folder: Path, inputs: int, kills: int, seed: int = 0) -> None:
    backend, draw = Processes([StageNode("one", slots=2)]), random.Random(seed)
    with Session(quick, on=backend, journal=folder) as session:
        over = threading.Event()
        killed = [0]

        def kill() -> None:
            """The first time at once."""
            while killed[0] < kills and not over.wait(draw.uniform(0.0, 0.15) if killed[0] else 0.0):
                if pids := backend.pids:
                    os.kill(draw.choice(pids), signal.SIGKILL)
                    killed[0] += 1

        killer = threading.Thread(target=kill)
        killer.start()
        handle = session.run(quick, range(inputs))
        told = [(result.index, result.value) for result in handle]
        over.set()
        killer.join()
    assert sorted(told) == [(n, n**2 + (n + 1) ** 2 + (n + 2) ** 2) for n in range(inputs)]
    assert handle.counts["split"].done == handle.counts["total"].done == inputs
    assert handle.counts["square"].done == 3 * inputs
    assert killed[0] >= 1
    rows = recorded(folder, handle.id)
    assert {row.state for row in rows.inputs} == {"done"}
    results = Counter(row.stage for row in rows.results)
    assert results == {"split": inputs, "square": 3 * inputs, "total": inputs}


def test_a_worker_that_dies_is_noticed_within_three_seconds() -> None:
    """Its attempt begins again elsewhere at once: here the stage waits for the second attempt."""
    backend = Processes([StageNode("one", slots=2)])
    with Session(waiting, on=backend) as session:
        handle = session.run(waiting, [1])
        while not handle.counts or handle.counts["hang"].running == 0:
            time.sleep(0.01)
        time.sleep(0.2)
        for pid in backend.pids:
            os.kill(pid, signal.SIGKILL)
        assert handle.wait(timeout_s=30.0)[0].value == 2


@stage
def hang(n: int, ctx: Any) -> int:
    import time

    if ctx.attempt == 1:
        time.sleep(60.0)
    return ctx.attempt


@chain
def waiting(n: int) -> Any:
    return hang(n)
