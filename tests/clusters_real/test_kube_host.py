"""Chains and training jobs as pods of a real API server and kube-scheduler; hollow kubelets run them here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.kubernetes.control_plane import ControlPlane, hollow_node, make_nodes, pods_of
from support.kubernetes.hollow_kubelet import MISSING, HollowKubelets
from support.train_runs import BY_PROGRESS, job, last_state, train
from support.waiting import wait_until
from trimtab.chains import Session, chain, stage
from trimtab.clusters import backends
from trimtab.errors import UsageError

pytestmark = pytest.mark.clusters
TESTS = Path(__file__).parents[1]
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
CHAIN = """
import os, time
from trimtab.chains import chain, stage

@stage
def where(n: int, wait_s: float) -> tuple[int, str]:
    time.sleep(wait_s)
    return n, os.environ["TRIMTAB_NODE"]

@chain
def places(n: int, wait_s: float):
    return where(n, wait_s)
"""


@stage
def where(n: int, wait_s: float) -> tuple[int, str]:
    time.sleep(wait_s)
    return n, os.environ["TRIMTAB_NODE"]


@chain
def places(n: int, wait_s: float) -> Any:
    return where(n, wait_s)


@pytest.fixture
def kubelets(plane: ControlPlane) -> Iterator[HollowKubelets]:
    plane.start_scheduler(qps=200.0)
    paths = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    with HollowKubelets(plane, {"PYTHONPATH": paths}) as running:
        yield running
    for lease in plane.call("GET", LEASES)["items"]:
        plane.call("DELETE", f"{LEASES}/{lease['metadata']['name']}")


def nodes(plane: ControlPlane, *names: str, gpus: int = 1) -> None:
    make_nodes(plane, [hollow_node(name, gpus=gpus, cores=4, memory_gib=8) for name in names])


def settings(plane: ControlPlane, user: str = "driver", **more: Any) -> str:
    """`--on` of a file with these settings."""
    told = {"image": "trimtab:test", "kubeconfig": str(plane.kubeconfig(user)), **more}
    path = plane.folder / "kube.yaml"
    path.write_text(yaml.safe_dump(told))
    return f"kube://{path}"


def names(plane: ControlPlane) -> list[str]:
    return [pod["metadata"]["name"] for pod in pods_of(plane)]


def leases(plane: ControlPlane) -> list[str]:
    return [lease["metadata"]["name"] for lease in plane.call("GET", LEASES)["items"]]


def test_a_chain_runs_in_pods_and_a_node_goes_and_another_comes(
    plane: ControlPlane, kubelets: HollowKubelets
) -> None:
    nodes(plane, "n1", "n2")
    with Session(places, on=backends.backend(settings(plane))) as session:
        found = session.run(places, [{"n": n, "wait_s": 0.3} for n in range(6)]).values()
        assert sorted(found) == [(n, where) for n, (_, where) in enumerate(sorted(found))]
        assert {node for _, node in found} == {"n1", "n2"}
        (pod, _) = sorted(pods_of(plane), key=lambda p: p["spec"]["nodeName"])
        assert pod["metadata"]["ownerReferences"][0]["name"] == leases(plane)[0]
        assert pod["spec"]["containers"][0]["resources"]["requests"] == {
            "cpu": "4", "memory": str(8 << 30), "nvidia.com/gpu": "1"
        }  # fmt: skip
        running = session.run(places, [{"n": n, "wait_s": 1.0} for n in range(6)])
        time.sleep(0.5)
        plane.call("DELETE", "/api/v1/nodes/n1")
        nodes(plane, "n3")
        last = dict(running.values())
        assert sorted(last) == list(range(6))
        assert set(last.values()) <= {"n1", "n2", "n3"}
        assert "n3" in last.values()
    wait_until(lambda: not [p for p in pods_of(plane) if p["spec"].get("nodeName") != "n1"])
    assert not leases(plane)


def test_training_jobs_run_in_pods_and_go_on_elsewhere_when_a_node_is_deleted(
    plane: ControlPlane, kubelets: HollowKubelets, tmp_path: Path
) -> None:
    nodes(plane, "n1", "n2")
    said: list[str] = []
    gone: list[str] = []

    def change(rows: Any, now_s: float) -> None:
        if rows[0].gpus == 2 and rows[0].samples > 300 and not gone:
            gone.append("n2")
            plane.call("DELETE", "/api/v1/nodes/n2")

    run = train(
        tmp_path,
        f"{BY_PROGRESS}(script=0:2)",
        job("fit", 1280, "--step-s", 0.05, gpus=1, gpus_max=2, samples_per_s={1: 100, 2: 200}),
        nodes={},
        on=settings(plane, bind="trimtab"),
        say=said.append,
        show=change,
        checkpoint_period_s=0.05,
    )
    assert run.state == "done", said
    assert gone
    assert any("node n2 is gone" in text for text in said), said
    assert last_state(tmp_path, run.run_id, "fit")["counts"] == [20.0] * 64


def test_pods_of_a_killed_process_end_and_go_with_its_lease(
    plane: ControlPlane, kubelets: HollowKubelets, tmp_path: Path
) -> None:
    nodes(plane, "n1")
    controllers = ["--controllers", "garbagecollector", "--leader-elect=false", "--port", "0"]
    plane.run(
        "kube-controller-manager",
        [
            str(plane.programs / "kube-controller-manager"),
            *("--kubeconfig", str(plane.kubeconfig())),
            *controllers,
            *("--secure-port", str(plane.free_port()), "--cert-dir", str(plane.folder / "manager")),
        ],
    )
    on = settings(plane)
    (tmp_path / "places.py").write_text(CHAIN)
    (tmp_path / "inputs.jsonl").write_text('{"n": 1, "wait_s": 600}\n')
    command = [sys.executable, "-c", "from trimtab.cli import main; main()", "chain", "run"]
    driver = subprocess.Popen(
        [*command, "places.py:places", "--input", "inputs.jsonl", "--on", on, "--journal", "journal"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
    )
    wait_until(lambda: names(plane) and kubelets.running)
    (pod,), (lease,) = names(plane), leases(plane)
    time.sleep(1.0)  # it has its attempt
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    wait_until(lambda: not kubelets.running)  # the link is gone
    assert names(plane) == [pod]  # over, and holds nothing
    old = {"spec": {"renewTime": "2026-01-01T00:00:00.000000Z"}}
    plane.call("PATCH", f"{LEASES}/{lease}", old, kind="application/merge-patch+json")
    with Session(places, on=backends.backend(on)) as session:
        assert session.run(places, [{"n": 1, "wait_s": 0.0}]).values() == [(1, "n1")]
        assert lease not in leases(plane)
        wait_until(lambda: pod not in names(plane))


@pytest.mark.parametrize(
    ("user", "told", "expected"),
    [
        ("nobody", {}, 'cannot list resource "nodes"'),
        ("reader", {}, 'cannot list resource "leases"'),
        ("driver", {"image": MISSING}, "ended as its pod cannot begin: ImagePullBackOff: Back-off"),
        ("driver", {"nodes": {"pool": "none"}}, "has no nodes"),
        ("driver", {"start_s": 3, "scheduler": "nobody"}, "has not begun in 3 s"),
    ],
)  # fmt: skip
def test_what_keeps_pods_from_starting_is_told(
    plane: ControlPlane, kubelets: HollowKubelets, user: str, told: dict[str, Any], expected: str
) -> None:
    nodes(plane, "n1")
    with (
        pytest.raises(UsageError) as error,
        Session(places, on=backends.backend(settings(plane, user, **told))),
    ):
        pass
    assert expected in str(error.value)
    wait_until(lambda: not names(plane))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("namespace: a\n", "image: missing"),
        ("image: a\nrequests: {cpu: much}\n", "requests[cpu]: is no quantity (got 'much')"),
        ("image: a\ntemplate: {spec: {containers: []}}\n", "template.spec.containers: is no list"),
        ("image: a\nimages: b\n", "images: unknown key"),
    ],
)  # fmt: skip
def test_bad_settings_are_named(tmp_path: Path, text: str, expected: str) -> None:
    (path := tmp_path / "kube.yaml").write_text(text)
    with pytest.raises(UsageError) as error:
        backends.host(f"kube://{path}")
    assert f"{path}: {expected}" in str(error.value)
