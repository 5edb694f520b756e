"""Runs in a journal: resumed without repeating a stage, made once for a key, results used again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from support.run_journals import recorded
from support.waiting import wait_until
from trimtab.chains import Session, State, chain, run, stage
from trimtab.chains.run_reports import listed, summary
from trimtab.clusters.in_process import InProcess
from trimtab.errors import ClusterLost, UsageError
from trimtab.live.stage_backend import Argument, Attempt, Cause, Outcome, Ref, StageNode

CALLS: Counter[str] = Counter()
BROKEN: set[str] = set()


@stage(retries=0)
def load(name: str) -> list[str]:
    CALLS[f"load {name}"] += 1
    return [f"{name}{i}" for i in range(3)]


@stage(retries=0)
def draw(item: str) -> bytes:
    CALLS[f"draw {item}"] += 1
    if item in BROKEN:
        raise RuntimeError(item)
    return item.encode() * 30_000  # large: it goes to the store


@stage(retries=0)
def measure(pictures: list[bytes]) -> int:
    CALLS["measure"] += 1
    return sum(map(len, pictures))


@stage(deterministic=True)
def square(n: int) -> int:
    CALLS[f"square {n}"] += 1
    return n * n


@chain
def gallery(name: str) -> Any:
    return measure(draw.map(load(name)))


@chain
def squares(items: list[int]) -> Any:
    return square.map(items)


@pytest.fixture(autouse=True)
def _fresh() -> None:
    CALLS.clear()
    BROKEN.clear()


class Stuck(InProcess):
    """Takes attempts and never ends them."""

    async def start(self, node: int, attempt: Attempt, inputs: Sequence[Argument]) -> Outcome:
        return await asyncio.get_running_loop().create_future()


class Forgetful(InProcess):
    """Loses the last of the values in the store once the others were put."""

    def __init__(self, nodes: Sequence[StageNode], place: Path) -> None:
        super().__init__(nodes)
        self._place, self.put_bytes = place, 0

    async def put(self, data: bytes) -> Ref:
        self.put_bytes += len(data)
        if self.put_bytes > 100_000:
            shutil.rmtree(self._place / "values")
        return await super().put(data)


def one() -> InProcess:
    return InProcess([StageNode("one")])


def test_failed_inputs_are_tried_again_without_the_stages_that_finished(tmp_path: Path) -> None:
    BROKEN.add("b1")
    handle = run(gallery, ["a", "b"], on=one(), journal=tmp_path)
    good, bad = handle.wait()
    assert good.value == 180_000
    assert "draw[1]" in str(bad.failure)
    BROKEN.clear()
    with Session(gallery, on=one(), journal=tmp_path) as session:
        again = session.resume(handle.id).wait()
        assert [r.state for r in again] == [State.DONE, State.FAILED]
        assert str(again[1].failure) == str(bad.failure)
        assert CALLS["draw b1"] == 1
        assert session.resume(handle.id, retry_failed=True).values() == [180_000, 180_000]
    assert {name: n for name, n in CALLS.items() if n > 1} == {"draw b1": 2, "measure": 2}
    assert CALLS["measure"] == 2  # once for each input


def test_a_run_of_one_key_is_made_once(tmp_path: Path) -> None:
    with Session(gallery, on=one(), journal=tmp_path) as session:
        first = session.run(gallery, ["a"], key="monday")
        assert first.values() == [180_000]
        second = session.run(gallery, ["other"], key="monday")
        assert second.id == first.id
        assert second.values() == [180_000]
        assert session.run(gallery, ["a"], key="monday", tenant="else").id != first.id
    assert CALLS["load a"] <= 2
    assert CALLS["load other"] == 0


def test_the_first_submission_of_a_key_says_the_deadline(tmp_path: Path) -> None:
    """The process ended two hours ago, before anything was done."""

    def submitted(key: str, **options: Any) -> list[Any]:
        with Session(gallery, on=one(), journal=tmp_path, in_flight=1) as session:
            return session.run(gallery, ["a"], key=key, **options).wait()

    def left_behind(key: str, **options: Any) -> None:
        with Session(gallery, on=Stuck([StageNode("one")]), journal=tmp_path) as session:
            session.run(gallery, ["a"], key=key, **options)
        with contextlib.closing(sqlite3.connect(tmp_path / "journal.db")) as database:
            database.execute("UPDATE chain_runs SET created_s = created_s - 7200 WHERE key = ?", (key,))
            database.commit()

    left_behind("an hour", deadline_s=3600.0)
    (late,) = submitted("an hour", deadline_s=1e9)
    assert late.state is State.FAILED
    assert "past the run's deadline" in str(late.failure)
    left_behind("any time", tags={"by": "first"})
    (done,) = submitted("any time", deadline_s=1e-9)
    assert done.value == 180_000


def test_a_key_of_a_run_of_another_chain_is_refused(tmp_path: Path) -> None:
    with Session([gallery, squares], on=one(), journal=tmp_path) as session:
        made = session.run(gallery, ["a"], key="monday")
        made.wait()
        with pytest.raises(UsageError, match=rf"key: run {made.id} of another chain .*'monday'.*squares"):
            session.run(squares, [[1]], key="monday")


def test_what_was_restored_for_an_attempt_is_released_if_the_rest_cannot_be(tmp_path: Path) -> None:
    """One of three pictures is gone from the store as the last stage reads them."""
    with Session(gallery, on=one(), journal=tmp_path) as session:
        handle = session.run(gallery, ["a"])
        handle.wait()
    with contextlib.closing(sqlite3.connect(tmp_path / "journal.db")) as database:
        database.execute("DELETE FROM chain_results WHERE stage = 'measure'")
        database.execute("UPDATE chain_inputs SET state = 'running'")
        database.commit()
    backend = Forgetful([StageNode("one")], tmp_path)
    with Session(gallery, on=backend, journal=tmp_path) as session:
        (result,) = session.resume(handle.id).wait()
        assert result.failure is not None
        assert (result.failure.stage, result.failure.error.cause) == ("measure", Cause.INPUT_LOST)
        assert backend.put_bytes > 2 * 60_000
        assert [data for data in backend._values.values() if len(data) > 60_000] == []


def test_results_of_deterministic_stages_are_used_again(tmp_path: Path) -> None:
    assert run(squares, [[1, 2, 3]], on=one(), journal=tmp_path).values() == [[1, 4, 9]]
    handle = run(squares, [[3, 4], [3]], on=one(), journal=tmp_path)
    assert handle.values() == [[9, 16], [9]]
    assert {f"square {n}": 1 for n in (1, 2, 3, 4)} == CALLS
    assert handle.counts["square"].reused == 2


def test_a_stage_whose_results_were_all_used_again_is_shown_with_nothing_done(tmp_path: Path) -> None:
    run(squares, [[1, 2]], on=one(), journal=tmp_path).wait()
    handle = run(squares, [[2, 1]], on=one(), journal=tmp_path)
    handle.wait()
    shown = summary(tmp_path, handle.id)["stages"]
    assert {name: (stage["done"], stage["attempts"]) for name, stage in shown.items()} == {"square": (0, 0)}


def test_the_journal_has_one_result_for_each_instance_and_every_attempt(tmp_path: Path) -> None:
    handle = run(gallery, ["a"], on=one(), journal=tmp_path)
    handle.wait()
    results, attempts, inputs = recorded(tmp_path, handle.id)
    wanted = [("draw", 0), ("draw", 1), ("draw", 2), ("load", 0), ("measure", 0)]
    assert sorted((r.stage, r.instance) for r in results) == wanted
    assert sorted((a.stage, a.instance, a.attempt) for a in attempts) == [(*w, 1) for w in wanted]
    assert [(i.number, i.state) for i in inputs] == [(0, "done")]
    assert all(a.started_s <= r.ended_s for a in attempts for r in results if a[1:3] == r[1:3])


def test_runs_that_cannot_be_resumed_are_refused(tmp_path: Path) -> None:
    with Session(gallery, on=one()) as session:
        with pytest.raises(UsageError, match="there is no journal"):
            session.resume("run_1")
        with pytest.raises(UsageError, match="a run key needs a journal"):
            session.run(gallery, ["a"], key="k")
    with Session([gallery, squares], on=one(), journal=tmp_path) as session:
        with pytest.raises(UsageError, match="no such run"):
            session.resume("run_1")
        handle = session.run(squares, [[1]])
        handle.wait()
    with (
        Session(gallery, on=one(), journal=tmp_path) as session,
        pytest.raises(UsageError, match=r"no such chain here.*gallery"),
    ):
        session.resume(handle.id)


GATE = threading.Event()


@stage
def gated(n: int) -> int:
    while n and not GATE.wait(0.01):
        pass
    return n


@chain
def gate(n: int) -> Any:
    return gated(n)


def test_a_resumed_run_keeps_its_deadline_and_what_was_done_before_it(tmp_path: Path) -> None:
    for deadline_s in (2.0, 20.0):  # the longer one where this process was held up
        GATE.clear()
        with Session(gate, on=one(), journal=tmp_path) as session:
            handle = session.run(gate, [0, 1], deadline_s=deadline_s)
            begun_s = time.monotonic()
            first = next(iter(handle))
        GATE.set()
        if first.state is State.DONE:
            break
    assert first.value == 0
    time.sleep(max(0.0, begun_s + deadline_s + 0.1 - time.monotonic()))
    with Session(gate, on=one(), journal=tmp_path) as session:
        done, late = session.resume(handle.id).wait()
    assert (done.value, late.state) == (0, State.FAILED)
    assert "past the run's deadline" in str(late.failure)


DRIVER = """
import sys, time
from pathlib import Path
from trimtab.chains import chain, run, stage
from trimtab.clusters.processes import Processes
from trimtab.live.stage_backend import StageNode

JOURNAL, LOG, GATE = sys.argv[1:] if __name__ == "__main__" else ("", "", "")

@stage
def begin(n: int) -> int:
    with open(LOG, "a") as file:
        file.write(f"begin {n}\\n")
    return n

@stage
def end(n: int) -> int:
    while not Path(GATE).exists():
        Path(f"{GATE}-{n}").touch()
        time.sleep(0.02)
    return n + 1

@chain
def two(n: int):
    return end(begin(n))

if __name__ == "__main__":
    handle = run(two, range(4), on=Processes([StageNode("one", slots=2)]), journal=JOURNAL)
    print(handle.id, flush=True)
    handle.wait()
"""


def test_a_run_of_a_killed_process_goes_on_in_another(tmp_path: Path) -> None:
    """Its process is killed between two stages. Another finishes the run; no finished stage runs again."""
    script, log, gate = tmp_path / "driver.py", tmp_path / "log", tmp_path / "gate"
    script.write_text(DRIVER)
    arguments = [sys.executable, str(script), str(tmp_path / "journal"), str(log), str(gate)]
    driver = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    run_id = driver.stdout.readline().strip()
    journal = tmp_path / "journal"
    wait_until(lambda: len(list(tmp_path.glob("gate-*"))) == 2 == len(recorded(journal, run_id).results))
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    driver.stdout.close()
    before = Counter(log.read_text().splitlines())

    @stage
    def begin(n: int) -> int:
        CALLS[f"begin {n}"] += 1
        return n

    @stage
    def end(n: int) -> int:
        return n + 1

    @chain
    def two(n: int) -> Any:
        return end(begin(n))

    with Session(two, on=one(), journal=tmp_path / "journal") as session:
        deadline_s = time.monotonic() + 60.0
        while True:  # until the killed process has been silent for so long that its runs are free
            try:
                handle = session.resume(run_id)
                break
            except UsageError:
                assert time.monotonic() < deadline_s
                assert listed(journal, 1)[0]["state"] == "running"
                time.sleep(0.2)
        assert handle.values() == [1, 2, 3, 4]
        assert handle.counts["begin"].reused == len(before)
    assert set(before.values()) == {1}


HOLDS = threading.Event()


@stage(retries=0)
def held(item: str) -> str:
    CALLS[f"held {item}"] += 1
    HOLDS.wait(60.0)
    return item.upper()


@chain
def holding(name: str) -> Any:
    return held(load(name)[0])


class Losable(InProcess):
    """A cluster that a test can end."""

    def tell_loss(self, lost: Callable[[Exception], None]) -> None:
        self.lose = lost


def test_a_run_whose_cluster_is_gone_ends_with_that_error_and_is_free_to_be_resumed(tmp_path: Path) -> None:
    HOLDS.clear()
    backend = Losable([StageNode("one")])
    with Session(holding, on=backend, journal=tmp_path) as session:
        handle = session.run(holding, ["a"])
        while not CALLS["held a0"]:
            time.sleep(0.01)
        session._thread.loop.call_soon_threadsafe(backend.lose, ClusterLost("gone"))
        with pytest.raises(ClusterLost, match="gone"):
            handle.wait(30.0)
        with pytest.raises(ClusterLost, match="gone"):  # not for ever in the queue of nobody
            session.run(holding, ["b"]).wait(30.0)
    HOLDS.set()
    with Session(holding, on=one(), journal=tmp_path) as session:
        assert session.resume(handle.id).values() == ["A0"]
    assert (CALLS["load a"], CALLS["held a0"]) == (1, 2)
