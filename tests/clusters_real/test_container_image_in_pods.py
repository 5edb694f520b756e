"""The image as pods run it: commands of deploy/kube/, files of a service account, and no kubeconfig."""

from __future__ import annotations

import shutil
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

from support.backends import Options, launched
from support.container_image import ROOT, running
from support.kubernetes.control_plane import (
    ControlPlane,
    hollow_node,
    inference_pools,
    make_inference_pool,
    make_nodes,
    make_pods,
    make_serving_pod,
    nodes_by_pod,
    pod,
)
from support.ports import reserved_port
from support.served import ADMIN_KEY, KEY, config_of
from support.waiting import wait_until

pytestmark = [pytest.mark.clusters, pytest.mark.timeout(2400)]  # the first builds the image
STARTS_WITHIN_S = 120.0
FILES = "/var/run/secrets/kubernetes.io/serviceaccount"
AsPod = Callable[[str], tuple[str, ...]]


@pytest.fixture
def as_pod(plane: ControlPlane, tmp_path: Path) -> AsPod:
    """Options of a container that is a pod of a user."""

    def options(user: str) -> tuple[str, ...]:
        (tmp_path / "token").write_text(f"{user}-token")
        shutil.copy(plane.folder / "certs" / "apiserver.crt", tmp_path / "ca.crt")
        tmp_path.chmod(0o755)
        where = ("KUBERNETES_SERVICE_HOST=127.0.0.1", f"KUBERNETES_SERVICE_PORT={plane.port}")
        files = ("--read-only", "--tmpfs=/tmp", f"--volume={tmp_path}:{FILES}:ro")
        return "--network=host", *files, *(f"--env={each}" for each in where)

    return options


def only(manifest: str, kind: str) -> dict[str, Any]:
    """The object of a kind in a file of deploy/kube/."""
    made = yaml.safe_load_all((ROOT / "deploy" / "kube" / manifest).read_text())
    (one,) = (one for one in made if one["kind"] == kind)
    return dict(one)


def command_of(manifest: str) -> list[str]:
    """What a Deployment of deploy/kube/ starts."""
    (container,) = only(manifest, "Deployment")["spec"]["template"]["spec"]["containers"]
    return [*container["command"], *container["args"]]


def test_it_schedules(plane: ControlPlane, image: str, as_pod: AsPod) -> None:
    make_nodes(plane, [hollow_node("n1")])
    options = ("--entrypoint=", *as_pod("trimtab"))
    with running(
        "trimtab-test-scheduler", image, *command_of("scheduler.yaml"), options=options
    ) as container:
        wait_until(container.said, lambda said: "scheduling pods" in said, timeout_s=STARTS_WITHIN_S)
        make_pods(plane, [pod("p1")])
        wait_until(lambda: nodes_by_pod(plane)["p1"] == "n1")
        assert "compil" not in container.said()
        assert "ok       rights: all" in container.exec("trimtab", "kube", "check", "--mode=extender")


def test_it_extends_kube_scheduler(plane: ControlPlane, image: str, as_pod: AsPod) -> None:
    make_nodes(plane, [hollow_node(f"n{i}", gpus=gpus) for i, gpus in enumerate((8, 2))])
    with reserved_port() as port:
        command = (*command_of("extender.yaml"), f"--listen=127.0.0.1:{port}")  # of two addresses the last
        options = ("--entrypoint=", *as_pod("trimtab"))
        with running("trimtab-test-extender", image, *command, options=options) as container:
            wait_until(container.said, lambda said: "listening on" in said, timeout_s=STARTS_WITHIN_S)
            plane.start_scheduler("extended", extender=f"http://127.0.0.1:{port}")
            make_pods(plane, [pod("p1", gpus=2, scheduler="extended")])
            wait_until(lambda: nodes_by_pod(plane)["p1"] == "n1")


def test_a_gateway_finds_its_backends(plane: ControlPlane, image: str, as_pod: AsPod, tmp_path: Path) -> None:
    with launched(Options(name="one")) as (backend,), reserved_port() as port:
        found = {"name": "chat", "selector": "app=chat", "port": int(backend.url.rpartition(":")[2])}
        config = config_of(listen=f"127.0.0.1:{port}", discovery={"kubernetes": [found]})
        (tmp_path / "gateway.yaml").write_text(yaml.safe_dump(config))
        mounted = f"--volume={tmp_path / 'gateway.yaml'}:/etc/trimtab/gateway.yaml:ro"

        def is_ready() -> bool:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=5.0):
                    return True
            except OSError:
                return False

        with running("trimtab-test-finder", image, options=(mounted, *as_pod("gateway"))) as container:
            wait_until(container.said, lambda said: "trimtab serves" in said, timeout_s=STARTS_WITHIN_S)
            assert not is_ready()
            make_serving_pod(plane, "a", "127.0.0.1")
            wait_until(is_ready)


def test_it_picks_endpoints_of_a_pool(plane: ControlPlane, image: str, as_pod: AsPod, tmp_path: Path) -> None:
    (tmp_path / "gateway.yaml").write_text(only("epp.yaml", "ConfigMap")["data"]["gateway.yaml"])
    mounted = f"--volume={tmp_path / 'gateway.yaml'}:/etc/trimtab/gateway.yaml:ro"
    keys = ("--env=TRIMTAB_KEY=" + KEY, "--env=TRIMTAB_ADMIN_KEY=" + ADMIN_KEY)
    make_serving_pod(plane, "a", "127.0.0.1")
    with launched(Options(name="one")) as (backend,), inference_pools(plane), reserved_port() as port:
        make_inference_pool(plane, int(backend.url.rpartition(":")[2]))
        command = (*command_of("epp.yaml"), f"--listen=127.0.0.1:{port}", "--admin-listen=127.0.0.1:0")
        options = ("--entrypoint=", mounted, *keys, *as_pod("gateway"))

        def is_serving() -> bool:
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                check = channel.unary_unary("/grpc.health.v1.Health/Check")
                try:
                    return bool(check(b"\x0a\x09readiness", timeout=5.0) == b"\x08\x01")
                except grpc.RpcError:
                    return False

        with running("trimtab-test-picker", image, *command, options=options):
            wait_until(is_serving, timeout_s=STARTS_WITHIN_S)
