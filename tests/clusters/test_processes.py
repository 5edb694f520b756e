"""Worker processes that die, and what is left of them."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from pathlib import Path
from typing import Any

from support.stage_backends import on
from trimtab.clusters.processes import Processes
from trimtab.clusters.processes.large_values import Spool, make_spool
from trimtab.clusters.processes.wire import Frames, Setup, framed
from trimtab.clusters.processes.worker_process import WorkerProcess, worker_program
from trimtab.live.stage_backend import StageNode
from trimtab.live.this_machine import ThisMachine


def test_a_worker_that_is_stopped_as_it_starts_leaves_no_error_behind() -> None:
    """asyncio would print the exception of a future that nobody awaits."""

    async def work() -> list[dict[str, Any]]:
        told: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        worker = WorkerProcess({}, lambda _: None, lambda _: None, lambda _: None)
        host, program = ThisMachine(), worker_program(StageNode("one"), is_here=True)
        await worker.start(host, host.nodes()[0], program, Setup((), "", 0, "."))
        await worker.stop()
        await asyncio.sleep(0)
        del worker
        gc.collect()
        await asyncio.sleep(0)
        return told

    assert asyncio.run(work()) == []


async def test_values_outlive_the_worker_that_made_them() -> None:
    async with on(Processes) as bench:
        assert isinstance(bench.backend, Processes)
        made = await bench.start("blob", size=200_000)
        os.kill(bench.backend.pids[0], signal.SIGKILL)
        assert len(await bench.output(made)) == 200_000


async def test_all_processes_and_values_go_when_the_backend_is_closed() -> None:
    pids: list[int] = []
    places: list[str] = []
    async with on(Processes, StageNode("one", slots=2)) as bench:
        assert isinstance(bench.backend, Processes)
        pids.extend(bench.backend.pids)
        places.append((await bench.start("blob", size=200_000)).outputs[0].place)
    assert len(pids) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert not Path(places[0]).parent.exists()


def test_large_values_are_files_of_their_own_and_small_ones_none(tmp_path: Path) -> None:
    spool = Spool(tmp_path, inline_bytes=10)
    assert spool.write(b"1234567890").place == ""
    large = spool.write(b"12345678901")
    again = spool.write(b"12345678901")
    assert again.digest == large.digest
    spool.drop(large)
    assert bytes(spool.read(again)) == b"12345678901"
    assert [str(path) for path in tmp_path.iterdir()] == [again.place]


def test_values_that_a_killed_host_left_behind_are_removed() -> None:
    left = make_spool()
    orphan = left.with_name("trimtab-values-999999999-dead")  # no process has this id
    orphan.mkdir()
    mine = make_spool()
    assert not orphan.exists()
    assert left.exists()  # its process, this one, lives
    for folder in (left, mine):
        folder.rmdir()


def test_messages_are_found_however_the_bytes_arrive() -> None:
    data = framed((1, "a")) + framed((2, b"\x00" * 100)) + framed(3)
    for size in (1, 3, 50, len(data)):
        frames, found = Frames(), []
        for k in range(0, len(data), size):
            found += list(frames.feed(data[k : k + size]))
        assert found == [(1, "a"), (2, b"\x00" * 100), 3]
