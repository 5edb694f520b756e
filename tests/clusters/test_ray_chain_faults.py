"""Chains on a Ray cluster with faults: work goes on elsewhere, and every output is recorded once."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from support.ray_machines import POOLS, TwoMachines, two_machines
from support.run_journals import recorded
from support.waiting import wait_until
from trimtab.chains import RunHandle, Session, StageContext, chain, stage
from trimtab.clusters import backends
from trimtab.clusters.messages import NODE_VARIABLE
from trimtab.live.stage_backend import StageBackend

pytestmark = [pytest.mark.faults, pytest.mark.xdist_group("ray")]
HELD = 100  # the first attempt at this input, or a later one, goes on when the file `go` is there


@pytest.fixture(scope="module")
def machines() -> Iterator[TwoMachines]:
    """Tests leave it as they found it. One that needs its own cluster comes before them."""
    with two_machines() as made:
        yield made


class Begun(NamedTuple):
    """An attempt that has begun."""

    n: int
    attempt: int
    node: str
    pid: int


def begun(folder: Path) -> list[Begun]:
    """The attempts, in the order of their starts."""
    file = folder / "begun"
    rows = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
    return [Begun(int(n), int(attempt), node, int(pid)) for n, attempt, node, pid in rows]


@stage(retries=0)
def noted(n: int, folder: str, ctx: StageContext) -> int:
    with (Path(folder) / "begun").open("a") as file:
        file.write(f"{n} {ctx.attempt} {os.environ[NODE_VARIABLE]} {os.getpid()}\n")
    while n >= HELD and ctx.attempt == 1 and not (Path(folder) / "go").exists():
        time.sleep(0.02)
    time.sleep(0.2 if n < HELD else 0.0)
    return 10 * n


@stage(retries=0)
def worked(n: int, folder: str) -> int:
    found = 0
    for k in range(1_000_000):
        found += k % 7
    return 10 * n + 0 * found


@chain
def one(n: int, folder: str) -> Any:
    return noted(n, folder=folder)


@chain
def copied(n: int, folder: str) -> Any:
    return noted.options(speculate=3.0)(n, folder=folder)


@chain
def heavy(n: int, folder: str) -> Any:
    return worked.options(speculate=3.0)(n, folder=folder)


def on_ray(pools: Sequence[Any] = POOLS) -> StageBackend:
    return backends.backend("ray", nodes=pools)


def given(folder: Path, numbers: Sequence[int]) -> list[dict[str, Any]]:
    return [{"n": n, "folder": str(folder)} for n in numbers]


def all_once(folder: Path, handle: RunHandle, numbers: Sequence[int]) -> None:
    """Every output is right, and recorded once."""
    assert [result.value for result in handle.wait(timeout_s=300.0)] == [10 * n for n in numbers]
    results = Counter(row.number for row in recorded(folder, handle.id).results)
    assert results == dict.fromkeys(range(len(numbers)), 1)


def test_runs_go_on_while_the_head_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its state is in a file. A worker that dies meanwhile is replaced when it is back."""
    monkeypatch.setenv("RAY_gcs_storage", "rocksdb")
    monkeypatch.setenv("RAY_gcs_storage_path", str(tmp_path / "head"))
    backend: Any = on_ray()
    with two_machines() as machines, Session(one, on=backend, journal=tmp_path) as session:
        handle = session.run(one, given(tmp_path, range(60)))
        wait_until(lambda: len(begun(tmp_path)) >= 4)
        machines.cluster.head_node.kill_gcs_server()
        killed = backend.pids[1]
        os.kill(killed, signal.SIGKILL)
        served = len(begun(tmp_path))
        wait_until(lambda: len(begun(tmp_path)) >= served + 10)  # by the other one
        machines.cluster.head_node.start_gcs_server()
        all_once(tmp_path, handle, range(60))
        wait_until(lambda: len(backend.pids) == 2 and killed not in backend.pids)
        wait_until(lambda: _serves(session, tmp_path, "far", one))


@pytest.mark.parametrize("cut_s", [8.0, 60.0])
def test_work_goes_on_while_a_machine_is_cut_off(machines: TwoMachines, tmp_path: Path, cut_s: float) -> None:
    with Session(one, on=on_ray(), journal=tmp_path) as session:
        handle = session.run(one, given(tmp_path, range(40)))
        wait_until(lambda: any(row.node == "far" for row in begun(tmp_path)))
        begun_s = time.monotonic()
        mend = machines.freeze_far()
        try:
            all_once(tmp_path, handle, range(40))  # on the other machine
            time.sleep(max(0.0, begun_s + cut_s - time.monotonic()))
        finally:
            mend()
        before, runs = len(begun(tmp_path)), 0
        while not any(row.node == "far" for row in begun(tmp_path)[before:]):  # it has work again
            all_once(tmp_path, session.run(one, given(tmp_path, range(8))), range(8))
            runs += 1
            assert runs < 60
        assert runs >= 1


def test_an_attempt_on_a_worker_that_stands_still_gets_a_copy_on_another_machine(
    machines: TwoMachines, tmp_path: Path
) -> None:
    with Session(copied, on=on_ray(), journal=tmp_path) as session:
        all_once(tmp_path, session.run(copied, given(tmp_path, range(8))), range(8))
        handle = session.run(copied, given(tmp_path, [HELD]))
        wait_until(lambda: any(row.n == HELD for row in begun(tmp_path)))
        (first,) = [row for row in begun(tmp_path) if row.n == HELD and row.attempt == 1]
        os.kill(first.pid, signal.SIGSTOP)
        try:
            all_once(tmp_path, handle, [HELD])
            assert handle.counts["noted"].copies == 1
        finally:
            (tmp_path / "go").touch()
            with contextlib.suppress(ProcessLookupError):  # replaced meanwhile
                os.kill(first.pid, signal.SIGCONT)
        rows = recorded(tmp_path, handle.id)
        assert [row.attempt for row in rows.results] == [2]
        assert {row.node for row in rows.attempts} == {"near", "far"}
        wait_until(lambda: _serves(session, tmp_path, first.node))


def _serves(session: Session, folder: Path, node: str, served: Any = copied) -> bool:
    """Whether a node has work of a run."""
    before = len(begun(folder))
    all_once(folder, session.run(served, given(folder, range(8))), range(8))
    return node in {row.node for row in begun(folder)[before:]}


def test_a_slow_machine_gets_less_of_the_work(machines: TwoMachines, tmp_path: Path) -> None:
    """It stands still for nine tenths of the time."""
    backend: Any = on_ray()
    over = threading.Event()

    def slow_down(pid: int) -> None:
        while not over.is_set():
            os.kill(pid, signal.SIGSTOP)
            over.wait(0.09)
            os.kill(pid, signal.SIGCONT)
            over.wait(0.01)

    with Session(heavy, on=backend, journal=tmp_path) as session:
        slow = threading.Thread(target=slow_down, args=(backend.pids[1],))
        slow.start()
        try:
            handle = session.run(heavy, given(tmp_path, range(60)))
            all_once(tmp_path, handle, range(60))
        finally:
            over.set()
            slow.join()
    served = Counter(row.node for row in recorded(tmp_path, handle.id).results)
    assert served["near"] > 2 * served["far"]


@pytest.mark.parametrize(
    ("policy", "options", "order"),
    [
        ("downstream-aware(priority_s=60)", {"priority": 3}, "bbbbaaaa"),
        ("downstream-aware", {"priority": 3}, "aaaabbbb"),
        ("least-connections+vtc", {"tenant": "few"}, None),
    ],
)
def test_starts_follow_priorities_and_tenants(
    machines: TwoMachines, tmp_path: Path, policy: str, options: dict[str, Any], order: str | None
) -> None:
    with Session(one, on=on_ray(POOLS[:1]), journal=tmp_path, policy=policy) as session:
        runs = [session.run(one, given(tmp_path, [HELD]), tenant="gate")]
        wait_until(lambda: begun(tmp_path))
        runs.append(session.run(one, given(tmp_path, [1] * 4), tenant="many"))
        runs.append(session.run(one, given(tmp_path, [2] * 4), **{"tenant": "many", **options}))
        wait_until(lambda: sum(run.counts["noted"].queued if run.counts else 0 for run in runs) == 8)
        (tmp_path / "go").touch()
        for run, numbers in zip(runs, ([HELD], [1] * 4, [2] * 4), strict=True):
            all_once(tmp_path, run, numbers)
    starts = "".join(" ab"[row.n] for row in begun(tmp_path)[1:])
    if order is None:  # whoever was given less is next, so neither is ever two ahead
        assert max(abs(starts[:k].count("a") - starts[:k].count("b")) for k in range(9)) <= 2
        assert starts.count("b") == 4
    else:
        assert starts == order
