"""Pools that grow with their queue and shrink when idle: by hand on a virtual clock, and on processes."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from random import Random
from typing import Any

import psutil
import pytest

from support.stage_backends import demand, on
from trimtab.chains import Session, chain, stage
from trimtab.clusters.backends import pool_of, worker_counts
from trimtab.clusters.pool_sizes import PoolSize, PoolSizes
from trimtab.clusters.processes import Processes
from trimtab.errors import UsageError
from trimtab.live.stage_backend import Argument, StageCode, StageDemand, StageNode

POOL = StageNode("pool", slots=3, slots_min=1)


def missing(
    size: PoolSize[str], now_s: float, waiting: int, live: int, starting: int = 0, idle: int = 0
) -> int:
    return size.missing(now_s, waiting=waiting, idle=idle, live=live, starting=starting, start_s=2.0)


def test_a_worker_starts_when_instances_have_waited_as_long_as_a_start_takes() -> None:
    size = PoolSize[str](1, 4, 60.0)
    assert missing(size, 10.0, waiting=2, live=1) == 0
    assert missing(size, 11.9, waiting=2, live=1) == 0
    assert missing(size, 12.0, waiting=2, live=1) == 2
    assert missing(size, 12.1, waiting=2, live=1, starting=2) == 0  # both are on their way
    assert missing(size, 12.2, waiting=9, live=1, starting=2) == 1  # the most is 4
    assert missing(size, 12.3, waiting=9, live=4) == 0


def test_waiting_begins_anew_after_a_worker_was_idle() -> None:
    size = PoolSize[str](1, 4, 60.0)
    assert missing(size, 0.0, waiting=1, live=1) == 0
    assert missing(size, 1.0, waiting=1, live=1, idle=1) == 0  # it waits for something else than workers
    assert missing(size, 2.5, waiting=1, live=1) == 0
    assert missing(size, 4.0, waiting=0, live=1) == 0
    assert missing(size, 4.5, waiting=1, live=1) == 0
    assert missing(size, 6.5, waiting=1, live=1) == 1


def test_idle_workers_end_after_a_while_except_the_least() -> None:
    size = PoolSize[str](1, 4, 60.0)
    assert size.needless(0.0, ["a", "b", "c"], 3) == []
    assert size.needless(50.0, ["a", "c"], 3) == []  # b works
    assert size.needless(60.0, ["a", "b", "c"], 3) == ["c", "a"]
    assert size.needless(60.0, ["a", "b", "c"], 2) == ["c"]
    assert size.needless(109.9, ["b"], 2) == []
    assert size.needless(120.0, ["b"], 2) == ["b"]
    assert size.needless(120.0, ["b"], 1) == []


@pytest.mark.parametrize("seed", range(5))
def test_pools_stay_in_their_bounds_and_count_only_stages_that_fit(seed: int) -> None:
    draw, workers, starting = Random(seed), [[0], [0, 0, 0]], [0, 0]
    nodes = [StageNode("gpu", 3, {"gpu": 1.0}, slots_min=1), StageNode("cpu", 3)]
    stages = [StageCode("draw", b"", demand={"gpu": 0.5}), StageCode("sound", b"", labels={"voice": "yes"})]
    busy: set[int] = set()

    def start(node: int) -> None:
        starting[node] += 1

    def end(node: int, worker: int) -> None:
        assert worker not in busy
        workers[node].remove(worker)

    sizes = PoolSizes[int](
        nodes, stages, 2.0, workers, starting, is_idle=lambda w: w not in busy, start=start, end=end
    )
    seen = set()
    for k in range(1, 300):
        if starting[0] and draw.random() < 0.5:
            starting[0] -= 1
            workers[0].append(k)
        n_waiting = draw.choice([0, 0, 4]) if k % 40 < 20 else 0
        busy = set(workers[0]) if n_waiting else set()
        sizes.look(float(k), {"draw": StageDemand(n_waiting), "sound": StageDemand(50)})
        assert len(workers[0]) >= 1
        assert len(workers[0]) + starting[0] <= 3
        assert (len(workers[1]), starting[1]) == (3, 0)  # its size is fixed
        seen.add(len(workers[0]))
    assert seen == {1, 2, 3}


async def until(holds: Any) -> None:
    async with asyncio.timeout(30.0):
        while not holds():
            await asyncio.sleep(0.02)


async def test_processes_start_and_end_with_the_queue() -> None:
    waiting = {"sleep": 0}
    async with on(
        lambda nodes: Processes(nodes, idle_s=0.3), StageNode("pool", slots=3, slots_min=1, depth=2)
    ) as bench:
        backend = bench.backend
        assert isinstance(backend, Processes)
        backend.follow_queue(lambda: demand(waiting))
        assert [change.places for change in bench.changes] == [-4]  # room for the worker that lives
        (first,) = backend.pids
        attempt, seconds = bench.attempt("sleep"), Argument("seconds", (await bench.value(60.0),))
        running = asyncio.ensure_future(backend.start(0, attempt, [seconds]))
        waiting["sleep"] = 5
        await until(lambda: len(backend.pids) == 3)
        assert [change.places for change in bench.changes] == [-4, 2, 2]
        backend.cancel(attempt)
        assert (await running).error is not None
        waiting["sleep"] = 0
        await until(lambda: len(backend.pids) == 1)
        assert [change.places for change in bench.changes] == [-4, 2, 2, -2, -2]
        assert backend.pids == [first]
        assert await bench.call("add", a=2) == 2


async def test_a_pool_that_is_closed_while_a_worker_ends_leaves_no_process() -> None:
    ended: list[int] = []
    async with on(Processes, StageNode("pool", slots=2)) as bench:
        backend: Any = bench.backend
        ended.extend(backend.pids)
        backend.pools.end(0, backend.pools.workers[0][0])
    assert len(ended) == 2
    assert not [pid for pid in ended if psutil.pid_exists(pid)]


@pytest.mark.parametrize("later_s", [0.0, 0.05])
async def test_a_pool_that_is_closed_while_a_worker_starts_leaves_no_process(later_s: float) -> None:
    """In the turn of the loop in which its process is there, and later."""

    def children() -> set[int]:
        return {child.pid for child in psutil.Process().children()} - of_other_tests

    of_other_tests: set[int] = set()
    of_other_tests = children()
    async with on(Processes, StageNode("pool", slots=2, slots_min=1)) as bench:
        backend: Any = bench.backend
        backend.follow_queue(lambda: demand({"add": 1}))
        busy = asyncio.ensure_future(bench.start("sleep", seconds=60.0))  # no worker is idle
        async with asyncio.timeout(60.0):
            while len(children()) < 2:
                await asyncio.sleep(0)
        started = children()
        busy.cancel()
        if later_s:
            await asyncio.sleep(later_s)
    assert len(started) == 2
    assert not children() & started


@stage
def meet(place: str, n: int) -> int:
    """Ends once three attempts run at the same time."""
    Path(place, str(n)).touch()
    until_s = time.monotonic() + 30.0
    while len(list(Path(place).iterdir())) < 3 and time.monotonic() < until_s:
        time.sleep(0.01)
    return len(list(Path(place).iterdir()))


@chain
def meeting(place: str, n: int) -> Any:
    return meet(place, n)


def test_a_session_grows_its_pool_until_all_that_waits_runs(tmp_path: Path) -> None:
    backend: Any = Processes([POOL], idle_s=0.3)
    seen: list[dict[str, StageDemand]] = []
    given = [{"place": str(tmp_path), "n": n} for n in range(3)]
    with Session(meeting, on=backend) as session:
        look = backend.pools.sizes.look
        backend.pools.sizes.look = lambda now_s, demand: (seen.append(demand), look(now_s, demand))
        assert len(backend.pids) == 1
        assert session.run(meeting, given).values() == [3, 3, 3]
        asked = [demand["meeting/meet"] for demand in seen]
        assert max(stage.waiting for stage in asked) == 2  # of three, for the only worker
        asyncio.run(until(lambda: len(backend.pids) == 1))
        assert seen[-1]["meeting/meet"].arrived == 3
        assert seen[-1]["meeting/meet"].service_s > 0.0
        assert session.run(meeting, given[:1]).values() == [3]


@pytest.mark.parametrize(("text", "found"), [("0", (0, 0)), ("3", (3, 3)), ("1..4", (1, 4))])
def test_workers_as_users_write_them(text: str, found: tuple[int, int]) -> None:
    assert worker_counts(text) == found
    pool = [StageNode("local", slots=found[1], slots_min=found[0])]
    assert pool_of(text) == ({"nodes": pool} if found[1] else {})


@pytest.mark.parametrize("text", ["-1", "4..1", "0..4", "1..", "many"])
def test_other_texts_are_no_number_of_workers(text: str) -> None:
    with pytest.raises(ValueError, match=r"a number, or LEAST\.\.MOST such as 1\.\.4"):
        worker_counts(text)


def test_a_node_cannot_keep_more_workers_than_it_has_slots() -> None:
    with pytest.raises(UsageError, match="slots_min"):
        StageNode("one", slots=2, slots_min=3)
