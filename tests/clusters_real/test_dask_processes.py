"""Dask with worker processes: what is killed, restarted, and left running; and the guide's example."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from distributed import Client, LocalCluster

from support.dask_cluster import most_at_once, sleeping
from support.train_runs import job, last_state, train
from support.waiting import wait_until
from trimtab.clusters.dask import Placement

pytestmark = pytest.mark.clusters
GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "dask.md"
CHAIN = """
import time

from trimtab.chains import chain, stage


@stage
def slow(n: int) -> int:
    time.sleep(600)
    return n


@chain
def waits(n: int) -> int:
    return slow(n)
"""


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(
        n_workers=2, threads_per_worker=2, processes=True, dashboard_address=None, silence_logs=40
    ) as cluster:
        yield cluster


def test_a_worker_that_is_killed_loses_nothing(cluster: LocalCluster, tmp_path: Path) -> None:
    def noted(n: int) -> int:
        with open(tmp_path / str(n), "a") as file:
            file.write(f"{os.getpid()} ")
        time.sleep(0.1)
        return os.getpid()

    with Client(cluster) as client:
        client.register_plugin(Placement("least-connections"))
        futures = client.map(noted, range(40), pure=False)
        wait_until(lambda: sum(future.done() for future in futures) > 8)
        victim = next(iter(client.run(os.getpid).values()))
        os.kill(victim, signal.SIGKILL)
        ran = client.gather(futures)
    for n in range(40):
        pids = [int(pid) for pid in (tmp_path / str(n)).read_text().split()]
        assert [pid for pid in pids if pid != victim] == [ran[n]], "what the victim had runs again, once"
        assert pids.count(victim) <= 1


def test_after_a_restart_it_places_again(cluster: LocalCluster) -> None:
    with Client(cluster) as client:
        client.register_plugin(Placement("least-connections"))
        before = client.map(sleeping, range(30), wait_s=0.2, pure=False)
        wait_until(lambda: any(future.done() for future in before))
        client.restart(timeout=60)
        ran = client.gather(client.map(sleeping, range(30), pure=False))
        assert max(most_at_once((at, 1.0) for at in ran).values()) <= 2
        assert {at.worker for at in ran} == {0, 1}


def test_a_training_job_runs_on_its_workers(cluster: LocalCluster, tmp_path: Path) -> None:
    address = cluster.scheduler_address.replace("tcp", "dask")
    run = train(tmp_path, "fifo", job("fit", 640), nodes={"0": 1}, on=address)
    assert run.state == "done"
    assert last_state(tmp_path, run.run_id, "fit")["counts"] == [10.0] * 64


def test_a_killed_driver_leaves_nothing_running(cluster: LocalCluster, tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text(CHAIN)
    (tmp_path / "in.jsonl").write_text('{"n": 1}\n{"n": 2}\n')
    address = cluster.scheduler_address.replace("tcp", "dask")
    command = [sys.executable, "-m", "trimtab", "chain", "run", "waits.py:waits", "--input", "in.jsonl"]
    driver = subprocess.Popen([*command, "--on", address, "--journal", "runs"], cwd=tmp_path)

    def programs() -> list[str]:
        lines = (each.info["cmdline"] or [] for each in psutil.process_iter(["cmdline"]))
        return [" ".join(line) for line in lines if "trimtab.live.dial" in line]

    wait_until(lambda: len(programs()) >= 2, timeout_s=120.0)
    with Client(cluster) as client:
        assert len(client.processing()) == 2
        driver.kill()
        driver.wait()
        wait_until(lambda: not programs(), timeout_s=60.0)
        wait_until(lambda: not any(client.processing().values()), timeout_s=60.0)
        assert client.submit(pow, 2, 3).result(timeout=60) == 8


def test_the_example_of_the_guide(tmp_path: Path) -> None:
    (tmp_path / "example.py").write_text(re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.S)[0])
    done = subprocess.run(
        [sys.executable, "example.py"], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=240
    )
    assert done.stdout.splitlines()[:2] == [str(sum(n**2 for n in range(100))), "()"], done.stderr
    shown: Any = subprocess.run(
        [sys.executable, "-m", "trimtab", "replay", "trace"], cwd=tmp_path, capture_output=True, text=True
    )
    assert "replay: least-expected-completion+sjf" in shown.stdout, shown.stderr
