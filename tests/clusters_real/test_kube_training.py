"""`trimtab kube train` against a real API server: jobs that are objects, a controller that is killed."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.kubernetes.control_plane import ControlPlane, define, hollow_node, make_nodes, pods_of
from support.kubernetes.hollow_kubelet import HollowKubelets
from support.train_runs import RULES, WORKER, last_state
from support.waiting import wait_until

pytestmark = pytest.mark.clusters
TESTS = Path(__file__).parents[1]
CRD = Path(__file__).parents[2] / "deploy" / "kube" / "trainingjobs.yaml"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
JOBS = "/apis/trimtab.io/v1alpha1/namespaces/default/trainingjobs"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"


@pytest.fixture
def kubelets(plane: ControlPlane) -> Iterator[HollowKubelets]:
    define(plane, yaml.safe_load(CRD.read_text()), JOBS)
    paths = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    with HollowKubelets(plane, {"PYTHONPATH": paths}) as running:
        yield running
        plane.stop("kube-train", signal.SIGTERM)
    plane.call("DELETE", f"{CRDS}/trainingjobs.trimtab.io")
    for lease in plane.call("GET", LEASES)["items"]:
        plane.call("DELETE", f"{LEASES}/{lease['metadata']['name']}")


def start(plane: ControlPlane, runs: Path) -> None:
    """The controller, with two nodes of a GPU each."""
    told = {"image": "trimtab:test", "kubeconfig": str(plane.kubeconfig("driver")), "bind": "trimtab"}
    (runs / "kube.yaml").write_text(yaml.safe_dump(told))
    (runs / "rules.yaml").write_text(yaml.safe_dump({**RULES, "checkpoint_period_s": 0.05}))
    command = [sys.executable, "-c", "from trimtab.cli import main; main()", "kube", "train"]
    options = ["--pods", "kube.yaml", "--rules", "rules.yaml"]
    absolute = [str(runs / word) if word.endswith(".yaml") else word for word in options]
    plane.run("kube-train", [*command, "--journal", str(runs), "--policy", "srtf", *absolute])


def submit(plane: ControlPlane, name: str, samples: int, *words: Any, **more: Any) -> None:
    spec = {"command": [*WORKER, *map(str, words)], "samples": samples, "batch": 8, **more}
    body = {"apiVersion": "trimtab.io/v1alpha1", "kind": "TrainingJob", "metadata": {"name": name}}
    plane.call("POST", JOBS, body | {"spec": spec})


def status(plane: ControlPlane, name: str) -> dict[str, Any]:
    found: dict[str, Any] = plane.call("GET", f"{JOBS}/{name}").get("status", {})
    return found


def phase(plane: ControlPlane, name: str) -> str:
    return str(status(plane, name).get("phase", ""))


def test_jobs_run_survive_the_controller_and_say_how_they_are(
    plane: ControlPlane, kubelets: HollowKubelets, tmp_path: Path
) -> None:
    make_nodes(plane, [hollow_node(name, gpus=1, cores=4, memory_gib=8) for name in ("n1", "n2")])
    submit(plane, "huge", 64, gpus=3)  # on a cluster with two
    submit(plane, "odd", 64, gpus=2, gpus_min=3)
    submit(plane, "pair", 1280, "--step-s", 0.05, gpus=2)
    start(plane, tmp_path)
    wait_until(lambda: phase(plane, "huge") == phase(plane, "odd") == "rejected")
    assert "wants 3 slots; the run has 2" in status(plane, "huge")["message"] or (
        "would wait for ever" in status(plane, "huge")["message"]
    )
    assert "gpus_min: cannot be used (got 3); expected at most gpus, 2" in status(plane, "odd")["message"]
    wait_until(lambda: phase(plane, "pair") == "running")
    assert status(plane, "pair")["gpus"] == 2  # all of it, on both nodes
    assert len({pod["spec"]["nodeName"] for pod in pods_of(plane)}) == 2
    submit(plane, "later", 100_000, "--step-s", 0.05)
    wait_until(lambda: phase(plane, "later") == "waiting")
    plane.stop("kube-train", signal.SIGKILL)
    wait_until(lambda: not kubelets.running)
    start(plane, tmp_path)
    wait_until(lambda: phase(plane, "pair") == "done", timeout_s=120)
    found = status(plane, "pair")
    assert (found["samples"], found["samplesTotal"]) == (1280, 1280)
    (folder,) = (tmp_path / found["run"] / "jobs").glob("pair.*")
    assert last_state(tmp_path, found["run"], folder.name)["counts"] == [20.0] * 64
    wait_until(lambda: phase(plane, "later") == "running")
    plane.call("DELETE", f"{JOBS}/later")
    submit(plane, "last", 64)
    wait_until(lambda: phase(plane, "last") == "done")
