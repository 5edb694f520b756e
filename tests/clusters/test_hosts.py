"""A third host, found by its entry point: chains and training jobs on it, and nodes that come and go."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import pytest

from support.far_host import FarHost, far_entry_points
from support.train_runs import BY_PROGRESS, job, last_state, train
from trimtab.chains import Session, chain, stage
from trimtab.clusters import backends
from trimtab.clusters.processes import Processes
from trimtab.errors import UsageError
from trimtab.live.dialled import DialIn
from trimtab.live.program_host import HostNode, Program
from trimtab.live.stage_backend import StageNode


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> FarHost:
    host = FarHost()
    monkeypatch.setattr(backends, "entry_points", far_entry_points(host))
    return host


@stage
def where(n: int, wait_s: float) -> tuple[int, str]:
    time.sleep(wait_s)
    return n, os.environ["TRIMTAB_NODE"]


@stage
def blob(seen: tuple[int, str]) -> bytes:
    return bytes([seen[0]]) * 100_000


@stage
def length(data: bytes) -> tuple[int, int]:
    return data[0], len(data)


@chain
def places(n: int, wait_s: float) -> Any:
    return where(n, wait_s)


@chain
def large(n: int, wait_s: float) -> Any:
    return length(blob(where(n, wait_s)))


def test_a_chain_runs_on_it_and_large_values_travel(far: FarHost) -> None:
    with Session(large, on="far") as session:
        inputs = [{"n": n, "wait_s": 0.0} for n in range(5)]
        assert session.run(large, inputs).values() == [(n, 100_000) for n in range(5)]
        assert session._host.loop.node_names[0] == "far-1"
    assert not far.processes


def test_a_node_that_comes_gets_work_and_one_that_goes_loses_it(far: FarHost) -> None:
    with Session(places, on=Processes(host=far, spare_nodes=1)) as session:
        first = session.run(places, [{"n": 0, "wait_s": 0.0}]).values()
        assert first == [(0, "far-1")]
        far.add(HostNode("far-2"))
        far.add(HostNode("far-3"))  # more than there are places for: it gets nothing
        running = session.run(places, [{"n": n, "wait_s": 0.2} for n in range(8)])
        found = dict(running.values())
        assert set(found.values()) == {"far-1", "far-2"}
        assert session._host.loop.node_names == ["far-1", "far-2"]
        long = session.run(places, [{"n": n, "wait_s": 0.5} for n in range(4)])
        time.sleep(0.3)
        far.remove("far-1")
        assert [n for n, _ in long.values()] == [0, 1, 2, 3]
        far.add(HostNode("far-4"))  # in the place of the one that went
        last = dict(session.run(places, [{"n": n, "wait_s": 0.2} for n in range(8)]).values())
        assert set(last.values()) == {"far-2", "far-4"}


def test_a_training_job_runs_on_it(far: FarHost, tmp_path: Path) -> None:
    run = train(
        tmp_path,
        f"{BY_PROGRESS}(script=0:1/0.3:2/0.6:1)",
        job("fit", 1024, "--gates", "40:2/80:1", gpus=1, gpus_max=2),
        nodes={"one": 1, "two": 1},
        on="far",
    )
    assert run.state == "done"
    assert run.recording.jobs[0].restarts == 2
    assert last_state(tmp_path, run.run_id, "fit")["counts"] == [16.0] * 64


def test_nodes_come_and_go_while_jobs_train(far: FarHost, tmp_path: Path) -> None:
    """Its second GPU comes with a node; that goes again, and the job ends on the first."""
    said: list[str] = []
    done: list[str] = []

    def change(rows: Any, now_s: float) -> None:
        if rows[0].samples > 50 and not done:
            done.append("came")
            far.add(HostNode("far-2"))
        elif rows[0].gpus == 2 and rows[0].samples > 300 and done == ["came"]:
            done.append("went")
            far.remove("far-2")

    run = train(
        tmp_path,
        f"{BY_PROGRESS}(script=0:2)",
        job("fit", 1280, "--step-s", 0.05, gpus=1, gpus_max=2, samples_per_s={1: 100, 2: 200}),
        nodes={},
        on="far",
        say=said.append,
        show=change,
        checkpoint_period_s=0.05,
    )
    assert run.state == "done", said
    assert done == ["came", "went"], said
    assert "node far-2 has come" in said
    assert any("node far-2 is gone" in text for text in said), said
    assert last_state(tmp_path, run.run_id, "fit")["counts"] == [20.0] * 64


def test_pools_on_machines_that_are_not_there_are_named(far: FarHost) -> None:
    backend = Processes([StageNode("pool", machine="elsewhere")], host=far)
    with pytest.raises(UsageError, match=r"nodes\.pool\.machine: no such machine .* one of far-1"):
        _ = backend.nodes


class Heard:
    def __init__(self) -> None:
        self.data, self.how = b"", ""

    def received(self, data: bytes) -> None:
        self.data += data

    def ended(self, how: str) -> None:
        self.how += how


ECHO = (
    "import os, socket, signal, sys\n"
    "signal.signal(signal.SIGUSR1, lambda *_: talk.sendall(b'signal'))\n"
    "talk = socket.socket(fileno=os.dup(0))\n"
    "talk.sendall(os.environ['WHO'].encode())\n"
    "while data := talk.recv(100): talk.sendall(data)\n"
    "sys.exit(3)\n"
)


async def until(holds: Any) -> None:
    async with asyncio.timeout(30.0):
        while not holds():
            await asyncio.sleep(0.02)


async def test_a_program_talks_gets_signals_and_tells_how_it_ended(far: FarHost) -> None:
    heard = Heard()
    program = Program(["python", "-c", ECHO], {"WHO": "far"}, grace_s=5.0)
    link = await far.start(far.nodes()[0], program, heard)
    await until(lambda: heard.data == b"far")
    link.write(b" echo ")
    await until(lambda: heard.data == b"far echo ")
    link.signal(10)
    await until(lambda: heard.data == b"far echo signal")
    await link.stop(5.0)
    assert heard.how == "with code 3"
    await far.close()


async def test_a_program_that_is_killed_or_does_not_start_is_told(far: FarHost) -> None:
    killed, missing = Heard(), Heard()
    link = await far.start(far.nodes()[0], Program(["python", "-c", ECHO], {"WHO": ""}), killed)
    link.signal(9)
    await until(lambda: killed.how)
    assert killed.how == "by SIGKILL"
    await far.start(far.nodes()[0], Program(["/no/such"]), missing)
    await until(lambda: missing.how)
    assert missing.how.startswith("as it could not start: ")
    await far.close()


async def test_who_does_not_know_the_word_is_not_let_in() -> None:
    dial_in, heard = DialIn("127.0.0.1"), Heard()
    link = dial_in.expect("one", heard)
    for told in (b"0123 data\n", b"x" * 200):
        reader, writer = await asyncio.open_connection("127.0.0.1", dial_in.port)
        writer.write(told)
        assert await reader.read() == b""
        writer.close()
    assert not link.connected.done()
    await link.stop()
    await dial_in.close()
