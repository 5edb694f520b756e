"""`trimtab kube extender` under the real kube-scheduler, and the commands that only look."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from support.kubernetes.control_plane import (
    ControlPlane,
    hollow_node,
    make_nodes,
    make_pods,
    nodes_by_pod,
    pod,
    pods_of,
    ready,
)
from support.kubernetes.trimtab_process import COMMAND, Trimtab, events
from support.ports import reserved_port
from support.waiting import wait_until
from trimtab.experiments.scenario.from_recording import scenario_of
from trimtab.traces.gateway_recording import open_recording, read_requests

pytestmark = pytest.mark.clusters
SHARE = "trimtab.io/gpu-milli"


def explained(url: str, name: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}/explain/default/{name}") as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def start(trimtab: Trimtab, port: int, *arguments: str) -> None:
    listen = f"127.0.0.1:{port}"
    trimtab.start("extender", "extender", "--listen", listen, *arguments, until="listening on")


def test_pods_go_where_the_policy_ranks_first_and_wait_with_a_reason_while_it_is_down(
    plane: ControlPlane, trimtab: Trimtab
) -> None:
    make_nodes(plane, [hollow_node(f"n{i}", gpus=gpus) for i, gpus in enumerate((8, 4, 2))])
    with reserved_port() as port:
        url = f"http://127.0.0.1:{port}"
        start(trimtab, port, "--policy", "best-fit")
        plane.start_scheduler("extended", extender=url, managed=["nvidia.com/gpu"])
        for i, expected in enumerate(("n2", "n2", "n1")):  # the fullest node that still has room
            make_pods(plane, [pod(f"p{i}", scheduler="extended")])
            wait_until(lambda: nodes_by_pod(plane)[f"p{i}"])  # noqa: B023 - called at once
            assert nodes_by_pod(plane)[f"p{i}"] == expected
            told = explained(url, f"p{i}")
            assert (told["policy"], told["ranked"][0]) == ("best-fit", expected)
        plane.stop("extender", signal.SIGTERM)
        make_pods(plane, [pod("later", scheduler="extended")])
        wait_until(
            lambda: [m for n, m in events(plane, "FailedScheduling") if n == "later" and "refused" in m]
        )
        start(trimtab, port, "--policy", "best-fit")
        cordon = {"spec": {"unschedulable": True}}  # else kube-scheduler tries again after a minute
        plane.call("PATCH", "/api/v1/nodes/n2", cordon, kind="application/strategic-merge-patch+json")
        plane.call("PATCH", "/api/v1/nodes/n2", {"spec": None}, kind="application/strategic-merge-patch+json")
        wait_until(lambda: nodes_by_pod(plane)["later"])


def test_a_share_that_fits_no_single_gpu_is_filtered_and_the_device_is_written(
    plane: ControlPlane, trimtab: Trimtab
) -> None:
    make_nodes(plane, [hollow_node("n0", gpus=0, more={SHARE: "2000"})])
    with reserved_port() as port:
        start(trimtab, port, "--policy", "best-fit")
        plane.start_scheduler("extended", extender=f"http://127.0.0.1:{port}", managed=[SHARE], binds=True)
        sizes = {"a": 600, "b": 700}
        make_pods(
            plane, [pod(n, gpus=0, scheduler="extended", more={SHARE: str(m)}) for n, m in sizes.items()]
        )
        wait_until(lambda: all(nodes_by_pod(plane).values()))
        make_pods(plane, [pod("large", gpus=0, scheduler="extended", more={SHARE: "500"})])
        wait_until(lambda: [m for n, m in events(plane, "FailedScheduling") if n == "large"])
        told = next(m for n, m in events(plane, "FailedScheduling") if n == "large")
        assert f"no single GPU has 500 of {SHARE} left; the emptiest has 400" in told
        devices = {p["metadata"]["name"]: p["metadata"].get("annotations", {}) for p in pods_of(plane)}
        assert {devices[name]["trimtab.io/devices"] for name in sizes} == {"0", "1"}


def test_check_says_what_is_missing_before_anything_starts(plane: ControlPlane, trimtab: Trimtab) -> None:
    done = trimtab.run("check", user="nobody")
    assert done.returncode == 2
    assert "problem  no right to create pods/binding: binds pods" in done.stdout
    assert "problem  no right to list nodes: what they offer" in done.stdout
    done = trimtab.run("check")
    assert done.returncode == 2  # no node
    assert "problem  0 nodes, 0 ready: 0 GPUs, 0 given in shares; expected nodes that offer" in done.stdout
    make_nodes(plane, [hollow_node("n0")])
    done = trimtab.run("check")
    assert (done.returncode, "problem" in done.stdout) == (0, False), done.stdout
    assert "ok       rights: all 11 that are needed" in done.stdout
    assert "ok       Lease trimtab-scheduler: free" in done.stdout
    trimtab.scheduler()
    done = trimtab.run("check", "--json")
    assert done.returncode == 2
    (problem,) = [found["text"] for found in json.loads(done.stdout)["found"] if found["problem"]]
    assert problem.startswith("Lease trimtab-scheduler: held by ")
    assert trimtab.run("scheduler", user="reader").returncode == 2
    assert trimtab.run("check", "--mode", "record", user="reader").returncode == 0
    assert trimtab.run("check", "--mode", "other").returncode == 2


def test_a_server_that_is_not_there_is_said(tmp_path: Path, trimtab: Trimtab, plane: ControlPlane) -> None:
    text = plane.kubeconfig("trimtab").read_text().replace(str(plane.port), "1")
    (tmp_path / "wrong.yaml").write_text(text)
    command = [*COMMAND, "check", "--kubeconfig", str(tmp_path / "wrong.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "is gone: Cannot connect to host 127.0.0.1:1" in done.stdout


def test_a_recording_of_a_cluster_is_compared_and_a_dry_run_has_regrets(
    plane: ControlPlane, trimtab: Trimtab, tmp_path: Path
) -> None:
    make_nodes(plane, [hollow_node(f"n{i}", gpus=0, more={SHARE: "2000"}) for i in range(4)])
    folder = tmp_path / "trace"
    trimtab.start(
        "record",
        "record",
        str(folder),
        "--dry-run",
        "--policy",
        "best-fit",
        user="reader",
        until="recording into",
    )
    plane.start_scheduler()
    names = [f"p{i}" for i in range(8)]
    pods = [pod(n, gpus=0, scheduler="default-scheduler", more={SHARE: "500"}) for n in names]
    make_pods(plane, pods)
    wait_until(lambda: nodes_by_pod(plane), lambda where: len(where) == len(names) and all(where.values()))
    for name in names[:6]:
        status = {"status": {"phase": "Succeeded"}}
        path = f"/api/v1/namespaces/default/pods/{name}/status"
        plane.call("PATCH", path, status, kind="application/strategic-merge-patch+json")
    wait_until(lambda: (folder / "choices.jsonl").read_text(), lambda text: text.count("\n") == len(names))
    (file,) = folder.glob("trimtab-*.jsonl")
    wait_until(file.read_text, lambda text: text.count('"outcome":"done"') == 6)
    plane.stop("record", signal.SIGTERM)
    rows = [json.loads(line) for line in (folder / "choices.jsonl").read_text().splitlines()]
    assert all(row["would"] and row["able"] for row in rows)
    assert sum(row["same"] for row in rows) < len(rows)  # kube-scheduler spreads, best fit packs
    assert sum(row["regret_stranded_milli"] for row in rows) >= 0.0
    assert trimtab.log("record").splitlines()[-2].startswith("8 pods bound; ")
    table, _ = read_requests(open_recording(folder))
    assert scenario_of(folder).serving.resources == "bound"
    assert sorted(table["outcome"]) == ["done"] * 6 + ["unknown"] * 2
    command = [sys.executable, "-c", "from trimtab.cli import main; main()"]
    compare = ["compare", "--trace", str(folder), "--policy", "best-fit", "--policy", "round-robin"]
    done = subprocess.run([*command, *compare, "--seeds", "1"], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "best-fit" in done.stdout


def test_a_node_that_is_not_ready_is_none_for_a_recording(
    plane: ControlPlane, trimtab: Trimtab, tmp_path: Path
) -> None:
    node, status = hollow_node("n0")
    make_nodes(
        plane,
        [hollow_node("n1"), (node, status | {"status": status["status"] | {"conditions": [ready(False)]}})],
    )
    done = trimtab.run("record", str(tmp_path / "trace"), "--duration", "2", user="reader")
    assert done.returncode == 0, done.stderr
    recording = open_recording(tmp_path / "trace")
    assert {n["name"]: n["health"] for n in recording.nodes} == {"n0": "draining", "n1": "up"}
