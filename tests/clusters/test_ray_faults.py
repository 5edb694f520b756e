"""Machines of a Ray cluster that die, freeze and come back: two Ray nodes on this machine stand for two."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.ray_machines import FAR, POOLS, TwoMachines, two_machines
from support.stage_backends import Bench, codes, on
from trimtab.chains import Session, chain, stage
from trimtab.clusters import backends
from trimtab.live.stage_backend import Argument, Cause, Outcome

pytestmark = [pytest.mark.faults, pytest.mark.xdist_group("ray")]


@pytest.fixture
def machines() -> Iterator[TwoMachines]:
    with two_machines() as made:
        yield made


async def sleeping(bench: Bench, seconds: float, node: int = FAR) -> asyncio.Future[Outcome]:
    inputs = [Argument("seconds", (await bench.value(seconds),))]
    started = asyncio.ensure_future(bench.backend.start(node, bench.attempt("sleep"), inputs))
    await asyncio.sleep(0.3)
    return started


def places(bench: Bench) -> int:
    """That the far machine has more, or less, than at the start."""
    return sum(change.places for change in bench.changes if change.node == FAR)


def on_ray() -> AbstractAsyncContextManager[Bench]:
    return on(lambda nodes: backends.backend("ray", nodes=nodes), *POOLS)


async def test_a_killed_machine_loses_its_attempts_and_its_values_are_made_again(
    machines: TwoMachines,
) -> None:
    async with on_ray() as bench:
        made = await bench.start("blob", FAR, size=300_000)
        started = await sleeping(bench, 30.0)
        await asyncio.to_thread(machines.kill_far)
        outcome = await started
        assert outcome.error is not None
        assert outcome.error.cause is Cause.WORKER_LOST
        read = [Argument("data", (made.outputs[0],))]
        while (outcome := await bench.backend.start(0, bench.attempt("length"), read)).error is not None:
            assert outcome.error.cause is Cause.WORKER_LOST  # it waited for the value when that was lost
            await asyncio.sleep(0.1)
        assert await bench.output(outcome) == 300_000
        assert places(bench) == -1
        machines.add_far()
        while places(bench) < 0:
            await asyncio.sleep(0.1)
        assert (await bench.start("add", FAR, a=3)).error is None
        assert [change for change in bench.changes if change.node == FAR][-1].is_up


async def test_a_machine_out_of_reach_for_some_seconds_loses_its_attempts_and_comes_back(
    machines: TwoMachines,
) -> None:
    async with on_ray() as bench:
        made = await bench.start("blob", FAR, size=300_000)
        started = await sleeping(bench, 30.0)
        thaw = machines.freeze_far()
        try:
            outcome = await started
            assert outcome.error is not None
            assert "far cannot be reached" in outcome.error.message
            assert [(change.node, change.is_up) for change in bench.changes] == [(FAR, False)]
            assert len(await bench.output(made)) == 300_000  # made again on the other one
        finally:
            thaw()
        while not bench.changes[-1].is_up:
            await asyncio.sleep(0.1)
        assert (await bench.start("add", FAR, a=3)).error is None


@stage
def items(n: int) -> list[bytes]:
    return [bytes([k]) * 100_000 for k in range(n)]


@stage
def measured(item: bytes) -> int:
    time.sleep(0.2)
    return len(item) + item[0]


@stage
def total(found: list[int]) -> int:
    return sum(found)


@chain
def summed(n: int) -> Any:
    return total(measured.map(items(n)))


def test_every_output_of_a_chain_comes_once_while_a_machine_dies(machines: TwoMachines) -> None:
    numbers = [4] * 12
    with Session(summed, on=backends.backend("ray", nodes=POOLS)) as session:
        handle = session.run(summed, numbers)
        killer = threading.Timer(3.0, machines.kill_far)
        killer.start()
        told = sorted((result.index, result.value) for result in handle)
        killer.join()
    assert told == [(n, 400_006) for n in range(len(numbers))]
    assert handle.counts["measured"].done == 4 * len(numbers)


COUNTED = """
import os, time
from pathlib import Path
from trimtab.chains import chain, stage

def told(name):
    with Path(os.environ["CALLS"]).open("a") as file:
        file.write(name + "\\n")
    time.sleep(float(os.environ["PACE_S"]))

@stage
def first(n: int) -> int:
    told(f"first {n}")
    return n + 1

@stage
def second(n: int) -> int:
    told(f"second {n}")
    return n * 10

@chain
def line(n: int):
    return second(first(n))
"""


@pytest.mark.parametrize(("gone", "pace_s"), [("neither its head nor any machine", 0.3), ("its head", 3.0)])
def test_a_run_whose_cluster_is_gone_says_so_and_goes_on_with_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: str, pace_s: float
) -> None:
    """The machine of the head, or the head alone: then work goes on until Ray is about to end it."""
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    from ray.cluster_utils import Cluster

    calls, inputs = tmp_path / "calls", 24
    (tmp_path / "counted.py").write_text(COUNTED)
    (tmp_path / "inputs.jsonl").write_text("".join(f"{n}\n" for n in range(inputs)))
    monkeypatch.setenv("CALLS", str(calls))
    monkeypatch.setenv("PACE_S", str(pace_s))

    def chain_run(cluster: Any, *options: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "trimtab", "chain", "run", "counted.py:line", "--on", "ray://auto"]
        return subprocess.Popen(
            [*command, "--workers", "2", "--journal", "journal", *options], cwd=tmp_path, text=True,
            env={**os.environ, "RAY_ADDRESS": cluster.address},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    alone = {"num_cpus": 2, "include_dashboard": False}
    first = Cluster(initialize_head=True, head_node_args=alone)
    begun = chain_run(first, "--input", "inputs.jsonl")
    while begun.poll() is None and (not calls.exists() or calls.read_text().count("second") < 6):
        time.sleep(0.05)
    if gone == "its head":
        first.head_node.kill_gcs_server()
    else:
        first.remove_node(first.head_node, allow_graceful=False)
    out, err = begun.communicate(timeout=100)
    first.shutdown()
    assert begun.returncode == 1
    assert f"error: the Ray cluster is gone: {gone}" in err
    assert "Traceback" not in err
    run_id = re.search(r"--resume (run_[0-9a-f]{16})", err)
    assert run_id is not None

    monkeypatch.setenv("PACE_S", "0.1")
    second = Cluster(initialize_head=True, head_node_args=alone)
    again = chain_run(second, "--resume", run_id[1])
    resumed, err = again.communicate(timeout=100)
    second.shutdown()
    assert again.returncode == 0, err
    assert sorted(resumed.splitlines()) == sorted(
        f'{{"input": {n}, "output": {10 * (n + 1)}}}' for n in range(inputs)
    )
    assert set(out.splitlines()) <= set(resumed.splitlines())
    made = calls.read_text().splitlines()
    assert set(made) == {
        f"{name} {n + k}" for k, name in enumerate(("first", "second")) for n in range(inputs)
    }
    assert len(made) <= 2 * inputs + 2  # only the attempts that both workers had ran twice


@pytest.mark.parametrize(("copies", "runs"), [(1, 2), (2, 1)])
async def test_an_output_that_is_kept_twice_is_not_made_again(
    machines: TwoMachines, tmp_path: Path, copies: int, runs: int
) -> None:
    made_by = [replace(code, copies=copies) for code in codes()]
    backend: Any = backends.backend("ray", nodes=POOLS)
    bench = Bench(backend)
    await backend.open(made_by, bench.changes.append)
    try:
        made = await bench.start("counted_blob", FAR, size=300_000, file=str(tmp_path / "runs"))
        while copies > 1 and backend._values.bundle(0).copy is None:
            await asyncio.sleep(0.05)
        await asyncio.to_thread(machines.kill_far)
        while not any(not change.is_up or change.places < 0 for change in bench.changes):
            await asyncio.sleep(0.05)
        assert len(await bench.output(made)) == 300_000
        read = [Argument("data", (made.outputs[0],))]
        assert await bench.output(await backend.start(0, bench.attempt("length"), read)) == 300_000
        assert len((tmp_path / "runs").read_text()) == runs
        backend.release(made.outputs)
        assert len(backend._values) == 0
    finally:
        await backend.close()
