"""Pods that `trimtab kube scheduler` binds run on a real node: kubelet, containerd, runc."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.kubernetes.control_plane import ControlPlane, make_pods, pod, pods_of, reason_of
from support.kubernetes.real_node import IMAGE, NAME, CannotRun, RealNode, lacking
from support.kubernetes.trimtab_process import Trimtab, events
from support.waiting import wait_until

pytestmark = pytest.mark.clusters
RUNS_WITHIN_S = 120.0


@pytest.fixture
def node(plane: ControlPlane, tmp_path: Path) -> Iterator[RealNode]:
    if why := lacking(plane.programs):
        pytest.skip(why)
    with contextlib.ExitStack() as stack:
        try:
            running = stack.enter_context(RealNode(plane, tmp_path))
        except CannotRun as error:
            pytest.skip(str(error))
        yield running
        for name in found(plane):
            plane.call("DELETE", f"/api/v1/namespaces/default/pods/{name}", {"gracePeriodSeconds": 1})
        wait_until(lambda: not found(plane) and running.ended(), timeout_s=RUNS_WITHIN_S)


def found(plane: ControlPlane) -> dict[str, dict[str, Any]]:
    return {each["metadata"]["name"]: each for each in pods_of(plane)}


def shell(name: str, script: str, gpus: int = 1) -> dict[str, Any]:
    made = pod(name, gpus=gpus, restartPolicy="Never")
    (container,) = made["spec"]["containers"]
    asked = container["resources"]["requests"] | {"cpu": "10m", "memory": "16Mi"}
    container |= {"image": IMAGE, "command": ["/bin/sh", "-c", script], "imagePullPolicy": "Never"}
    container["resources"] = {"requests": asked, "limits": asked}
    return made


def test_pods_run_to_their_end_and_what_fits_nowhere_waits_with_its_reason(
    plane: ControlPlane, trimtab: Trimtab, node: RealNode
) -> None:
    checked = trimtab.run("check")
    assert (checked.returncode, "problem" in checked.stdout) == (0, False), checked.stdout
    trimtab.scheduler()
    make_pods(plane, [shell("works", "echo hello from $HOSTNAME"), shell("fails", "exit 3")])
    make_pods(plane, [shell("large", "true", gpus=3)])

    def phases() -> dict[str, str]:
        return {name: each["status"]["phase"] for name, each in found(plane).items()}

    expected = {"works": "Succeeded", "fails": "Failed", "large": "Pending"}
    wait_until(phases, lambda told: told == expected, timeout_s=RUNS_WITHIN_S)
    pods = found(plane)
    assert {pods[name]["spec"]["nodeName"] for name in ("works", "fails")} == {NAME}
    (ended,) = pods["fails"]["status"]["containerStatuses"]
    assert ended["state"]["terminated"]["exitCode"] == 3
    assert plane.call("GET", "/api/v1/namespaces/default/pods/works/log") == "hello from works\n"
    why = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    wait_until(lambda: reason_of(found(plane)["large"]), why.__eq__)
    wait_until(lambda: ("large", why) in events(plane, "FailedScheduling"))
    make_pods(plane, [shell("next", "true", gpus=2)])  # what has ended holds nothing
    wait_until(lambda: phases()["next"], "Succeeded".__eq__, timeout_s=RUNS_WITHIN_S)
