"""deploy/: helm lints and renders the chart; an API server takes it, or it fits the published schemas."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.kubernetes.control_plane import ControlPlane
from trimtab.gateway.config import load_config

pytestmark = pytest.mark.clusters
DEPLOY = Path(__file__).parents[2] / "deploy"
CHART = DEPLOY / "helm" / "trimtab"
FILLED = ("--set", "secret.key=a,secret.adminKey=b,autoscaling.enabled=true")
FINDS = (
    "--set-json",
    'config.discovery={"kubernetes":[{"name":"chat","service":"vllm"},{"name":"pool","pool":"qwen"}]}',
)
FOLDERS = {  # of the kinds that the API server 1.20 serves in these versions
    "ServiceAccount": "/api/v1/namespaces/default/serviceaccounts",
    "ConfigMap": "/api/v1/namespaces/default/configmaps",
    "Secret": "/api/v1/namespaces/default/secrets",
    "Service": "/api/v1/namespaces/default/services",
    "Deployment": "/apis/apps/v1/namespaces/default/deployments",
    "NetworkPolicy": "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings",
}
NEWER = {"PodDisruptionBudget", "HorizontalPodAutoscaler"}  # policy/v1 and autoscaling/v2 came after 1.20


def program(name: str) -> str:
    """A program of the extra `test-clusters`."""
    path = shutil.which(name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if path is None:
        pytest.skip(f"{name} is not installed: make test-clusters installs it")
    return path


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program("helm"), *arguments], capture_output=True, text=True, check=False)


def rendered(*options: str) -> list[dict[str, Any]]:
    done = helm("template", "test", str(CHART), *options)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def test_helm_finds_no_fault() -> None:
    done = helm("lint", "--strict", str(CHART), *FILLED)
    assert done.returncode == 0, done.stdout


def test_what_is_rendered_fits_the_published_schemas(tmp_path: Path) -> None:
    done = helm("template", "test", str(CHART), *FILLED)
    (path := tmp_path / "rendered.yaml").write_text(done.stdout)
    fits_the_schemas(path)


@pytest.mark.parametrize("path", sorted((DEPLOY / "kube").glob("*.yaml")), ids=lambda path: path.stem)
def test_what_is_applied_fits_the_published_schemas(path: Path) -> None:
    fits_the_schemas(path)


def fits_the_schemas(path: Path) -> None:
    check = subprocess.run(
        [program("kubernetes-validate"), "--strict", str(path)], capture_output=True, text=True, check=False
    )
    assert check.returncode == 0, check.stdout + check.stderr


def test_the_rendered_configuration_is_one_that_the_gateway_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIMTAB_KEY", "x")
    monkeypatch.setenv("TRIMTAB_ADMIN_KEY", "y")
    made = rendered(*FILLED, "--set-json", 'config.discovery={"dns":[{"name":"vllm.models","port":8000}]}')
    (config,) = (one["data"]["gateway.yaml"] for one in made if one["kind"] == "ConfigMap")
    (path := tmp_path / "gateway.yaml").write_text(config)
    loaded = load_config(path)
    (deployment,) = (one for one in made if one["kind"] == "Deployment")
    grace_s = deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert loaded.shutdown_delay_s < loaded.drain_s < grace_s - 10


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ((), "secret.existing or secret.key"),
        ((*FILLED, "--set", "replicas=0"), "replicas"),
        ((*FILLED, "--set", "config.listen=127.0.0.1:1"), "config"),
        ((*FILLED, "--set", "autoscaling.most=3"), "most"),
    ],
)
def test_bad_values_are_named(options: tuple[str, ...], told: str) -> None:
    done = helm("template", "test", str(CHART), *options)
    assert done.returncode != 0
    assert told in done.stderr


def test_rights_are_those_that_finding_backends_needs() -> None:
    assert not [one for one in rendered(*FILLED) if one["kind"] == "Role"]
    roles = {
        one["metadata"]["name"]: one["rules"] for one in rendered(*FILLED, *FINDS) if one["kind"] == "Role"
    }
    read = {name: [r for rule in rules for r in rule["resources"]] for name, rules in roles.items()}
    assert read == {"test-trimtab-chat": ["endpointslices"], "test-trimtab-pool": ["pods", "inferencepools"]}
    assert all(rule["verbs"] == ["list", "watch"] for rules in roles.values() for rule in rules)


def test_an_api_server_takes_it(plane: ControlPlane) -> None:
    made = [one for one in rendered(*FILLED, *FINDS) if one["kind"] not in NEWER]
    assert {one["kind"] for one in made} == set(FOLDERS)
    for one in made:
        plane.call("POST", FOLDERS[one["kind"]], one)
    try:
        (deployment,) = plane.call("GET", FOLDERS["Deployment"])["items"]
        assert deployment["spec"]["template"]["spec"]["containers"][0]["securityContext"][
            "readOnlyRootFilesystem"
        ]
    finally:
        for one in made:
            plane.call("DELETE", f"{FOLDERS[one['kind']]}/{one['metadata']['name']}")


def test_compose_reads_the_file() -> None:
    compose = [program("podman-compose"), "-f", str(DEPLOY / "compose.yaml"), "config"]
    program("podman")
    keys = {"TRIMTAB_KEY": "a", "TRIMTAB_ADMIN_KEY": "b"}
    done = subprocess.run(compose, capture_output=True, text=True, check=False, env={**os.environ, **keys})
    gateway = yaml.safe_load(done.stdout)["services"]["gateway"]
    assert gateway["read_only"] is True
    assert gateway["environment"] == keys
