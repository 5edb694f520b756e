"""Training jobs whose slots are those of a Ray cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.train_runs import BY_PROGRESS, job, last_state, train
from trimtab.errors import UsageError
from trimtab.live.program_host import HostNode
from trimtab.training.runner.node_program import slots_of

needs_ray = pytest.mark.usefixtures("shared_ray")
pytestmark = pytest.mark.xdist_group("ray")


@needs_ray
def test_a_job_on_ray_changes_its_ranks_as_on_this_machine(tmp_path: Path) -> None:
    run = train(
        tmp_path,
        f"{BY_PROGRESS}(script=0:1/0.3:2/0.6:1)",
        job("fit", 1024, "--gates", "40:2/80:1", gpus=1, gpus_max=2),
        nodes={"local": 2},
        on="ray",
    )
    assert run.state == "done"
    assert run.recording.jobs[0].restarts == 2
    assert last_state(tmp_path, run.run_id, "fit")["counts"] == [16.0] * 64


@needs_ray
@pytest.mark.parametrize(
    ("nodes", "on", "told"),
    [
        ({"nowhere": 1}, "ray", "nodes: no such node (got 'nowhere')"),
        ({"local": 99}, "ray", "nodes.local: is too many slots (got 99); expected at most 4, the CPUs"),
        (
            {"local": 1},
            "mesos",
            "--on: no such place (got 'mesos'); expected one of dask, kube, processes, ray",
        ),
    ],
)
def test_nodes_that_are_not_there_are_named(
    tmp_path: Path, nodes: dict[str, int], on: str, told: str
) -> None:
    with pytest.raises(UsageError) as refused:
        train(tmp_path, "fifo", job("fit", 8), nodes=nodes, on=on)
    assert told in str(refused.value)
    assert not list(tmp_path.glob("train_*"))


def test_slots_are_gpus_where_there_are_any() -> None:
    known = [HostNode("plain", 8, {"cpu": 8.0}), HostNode("fast", 16, {"cpu": 16.0, "gpu": 4.0})]
    assert slots_of(known, {}, cuda=False) == ({"fast": 4}, True)
    assert slots_of(known[:1], {}, cuda=False) == ({"plain": 8}, False)
    assert slots_of(known, {"plain": 3}, cuda=False) == ({"plain": 3}, False)
    assert slots_of(known, {"fast": 2}, cuda=True) == ({"fast": 2}, True)
    assert slots_of([HostNode("here", 2)], {"here": 2}, cuda=True) == ({"here": 2}, True)  # it counts nothing
    with pytest.raises(UsageError, match=r"cuda: no node has any \(got True\)"):
        slots_of(known[:1], {}, cuda=True)


@pytest.mark.faults
def test_a_machine_that_dies_takes_its_slots_and_its_job_goes_on_elsewhere(tmp_path: Path) -> None:
    """Two machines of two GPUs; the job has all four, its last steps wait for the two that are left."""
    ray: Any = pytest.importorskip("ray", reason="the extra `ray` is not installed")
    from ray.cluster_utils import Cluster

    if ray.is_initialized():
        pytest.skip("this process uses another Ray: run these tests with -m faults")
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 2, "num_gpus": 2, "node_name": "near"}
    )
    far = cluster.add_node(num_cpus=2, num_gpus=2, node_name="far")
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    said: list[str] = []
    killed: list[int] = []

    def kill_when_it_trains(rows: Any, now_s: float) -> None:
        if rows[0].samples > 200 and not killed:
            killed.append(rows[0].samples)
            cluster.remove_node(far, allow_graceful=False)

    try:
        run = train(
            tmp_path,
            f"{BY_PROGRESS}(script=0:4)",
            job("fit", 6400, "--step-s", 0.01, gpus=2, gpus_max=4, samples_per_s={1: 100, 2: 200, 4: 400}),
            nodes={"near": 2, "far": 2},
            on="ray",
            say=said.append,
            show=kill_when_it_trains,
            checkpoint_period_s=0.05,
        )
    finally:
        ray.shutdown()
        cluster.shutdown()
    assert run.state == "done", said
    assert any("node far is gone; its last good checkpoint: step" in text for text in said), said
    counts = np.array(last_state(tmp_path, run.run_id, "fit")["counts"])
    assert counts.tolist() == [100.0] * 64
    logs = sorted((tmp_path / run.run_id / "jobs" / "fit" / "logs").glob("g000002-*"))
    assert len(logs) == 2  # of the ranks on the machine that is left
    plan = json.loads((tmp_path / run.run_id / "recording" / "summary.json").read_text())
    assert plan["jobs"][0]["restarts"] == 1
