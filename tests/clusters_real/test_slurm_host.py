"""Chains and training jobs as jobs of a real Slurm."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.slurm.cluster import COMMAND, SlurmCluster
from support.train_runs import BY_PROGRESS, job, last_state, train
from support.waiting import wait_until
from trimtab.chains import Session, chain, stage
from trimtab.clusters import backends
from trimtab.errors import UsageError

pytestmark = pytest.mark.clusters
TESTS = Path(__file__).parents[1]
CHAIN = """
import os, time
from trimtab.chains import chain, stage

@stage
def where(n: int, wait_s: float) -> tuple[int, str, str]:
    time.sleep(wait_s)
    return n, os.environ["SLURMD_NODENAME"], os.environ["CUDA_VISIBLE_DEVICES"]

@chain
def places(n: int, wait_s: float):
    return where(n, wait_s)
"""


@stage
def where(n: int, wait_s: float) -> tuple[int, str, str]:
    time.sleep(wait_s)
    return n, os.environ["SLURMD_NODENAME"], os.environ["CUDA_VISIBLE_DEVICES"]


@chain
def places(n: int, wait_s: float) -> Any:
    return where(n, wait_s)


@pytest.fixture
def here(slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SlurmCluster:
    """The cluster, as this process finds it; jobs import what tests do."""
    for name in ("SLURM_CONF", "PATH"):
        monkeypatch.setenv(name, slurm.env[name])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.chdir(tmp_path)
    return slurm


def settings(folder: Path, **more: Any) -> str:
    """`--on` of a file with these settings."""
    path = folder / "slurm.yaml"
    path.write_text(yaml.safe_dump({"partition": "gpu", "output": "/dev/null", **more}))
    return f"slurm://{path}"


def running(slurm: SlurmCluster) -> list[str]:
    return slurm.call("squeue", "--noheader", "--format", "%i").split()


def test_a_chain_runs_in_jobs_and_a_node_goes_down_and_comes_back(here: SlurmCluster, tmp_path: Path) -> None:
    on = settings(tmp_path, nodes=["gpu1", "gpu3"], gpus=2)
    with Session(places, on=backends.backend(on)) as session:
        found = session.run(places, [{"n": n, "wait_s": 0.5} for n in range(8)]).values()
        assert sorted(n for n, _, _ in found) == list(range(8))
        assert {node for _, node, _ in found} == {"gpu1", "gpu3"}
        assert {gpus for _, _, gpus in found} == {"0,1", "2,3"}
        here.call("scontrol", "update", "NodeName=gpu3", "State=DRAIN", "Reason=test")
        begun = session.run(places, [{"n": n, "wait_s": 1.0} for n in range(6)])
        time.sleep(0.5)
        here.stop("gpu1")  # and so do its jobs
        here.call("scontrol", "update", "NodeName=gpu1", "State=DOWN", "Reason=test")
        here.call("scontrol", "update", "NodeName=gpu3", "State=RESUME")
        last = {n: node for n, node, _ in begun.values()}
        assert sorted(last) == list(range(6))
        assert set(last.values()) <= {"gpu1", "gpu3"}
    wait_until(lambda: not running(here))


def test_training_jobs_run_in_jobs_and_go_on_elsewhere_when_a_node_goes_down(
    here: SlurmCluster, tmp_path: Path
) -> None:
    said: list[str] = []
    gone: list[str] = []

    def change(rows: Any, now_s: float) -> None:
        if rows[0].gpus == 2 and rows[0].samples > 300 and not gone:
            gone.append("gpu2")
            here.stop("gpu2")
            here.call("scontrol", "update", "NodeName=gpu2", "State=DOWN", "Reason=test")

    run = train(
        tmp_path,
        f"{BY_PROGRESS}(script=0:2)",
        job("fit", 1280, "--step-s", 0.05, gpus=1, gpus_max=2, samples_per_s={1: 100, 2: 200}),
        nodes={},
        on=settings(tmp_path, nodes=["gpu1", "gpu2"], gpus=4),
        say=said.append,
        show=change,
        checkpoint_period_s=0.05,
    )
    assert run.state == "done", said
    assert gone
    assert last_state(tmp_path, run.run_id, "fit")["counts"] == [20.0] * 64
    wait_until(lambda: not running(here))


def test_jobs_of_a_killed_driver_end(here: SlurmCluster, tmp_path: Path) -> None:
    on = settings(tmp_path, nodes=["gpu1"])
    (tmp_path / "places.py").write_text(CHAIN)
    (tmp_path / "inputs.jsonl").write_text('{"n": 1, "wait_s": 600}\n')
    arguments = [
        "chain",
        "run",
        "places.py:places",
        "--input",
        "inputs.jsonl",
        "--on",
        on,
        "--journal",
        "journal",
    ]
    driver = subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.DEVNULL)
    wait_until(lambda: len(running(here)) == 4, timeout_s=180)
    time.sleep(2.0)  # one has its attempt
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    wait_until(lambda: not running(here))


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"partition": "nope"}, "expected one of cpu, gpu"),
        ({"nodes": ["gpu9"]}, "nodes: no such node (got 'gpu9')"),
        ({"options": ["--account=none", "--no-such-option"]}, "no job starts on gpu"),
        ({"python": "/none/python", "start_s": 20, "nodes": ["gpu1"]}, "ended as its job ended: FAILED"),
    ],
)
def test_what_keeps_jobs_from_starting_is_told(
    here: SlurmCluster, tmp_path: Path, told: dict[str, Any], expected: str
) -> None:
    with (
        pytest.raises(UsageError) as error,
        Session(places, on=backends.backend(settings(tmp_path, **told))),
    ):
        pass
    assert expected in str(error.value)
    wait_until(lambda: not running(here))


@pytest.mark.parametrize(
    ("text", "expected"),
    [("port: 70000\n", "port: "), ("gpu: 1\n", "gpu: unknown key"), ("- a\n", "no settings of jobs")],
)
def test_bad_settings_are_named(tmp_path: Path, text: str, expected: str) -> None:
    (path := tmp_path / "slurm.yaml").write_text(text)
    with pytest.raises(UsageError) as error:
        backends.host(f"slurm://{path}")
    assert f"{path}: {expected}" in str(error.value)
