"""For all tests here one control plane of Kubernetes, with rights as in deploy/, one image, one Slurm."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from support.container_image import build, missing
from support.kubernetes.control_plane import ControlPlane, programs
from support.kubernetes.trimtab_process import Trimtab
from support.slurm import cluster as slurm_cluster
from support.slurm.cluster import SlurmCluster

RIGHTS = Path(__file__).parents[2] / "deploy" / "kube" / "rbac.yaml"
WORKING = (("driver", "trimtab-workers"), ("driver", "trimtab-training"), ("gateway", "trimtab-discovery"))
USERS = ("trimtab", "reader", "driver", "gateway", "nobody")
ROLES = {
    "trimtab": ("trimtab-reader", "trimtab-scheduler", "trimtab-preempt"),
    "reader": ("trimtab-reader",),
    "driver": ("trimtab-reader",),
}


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    found = programs()
    if isinstance(found, str):
        pytest.skip(found)
    users = dict.fromkeys(USERS, "users")
    with ControlPlane(tmp_path_factory.mktemp("kubernetes"), found, users, "RBAC") as plane:
        grant(plane)
        yield plane


@pytest.fixture(scope="session")
def image() -> str:
    """The image of deploy/Containerfile."""
    if reason := missing():
        pytest.skip(reason)
    return build()


def grant(plane: ControlPlane) -> None:
    """Give the users of the tests the roles in deploy/."""
    api = "/apis/rbac.authorization.k8s.io/v1"
    for made in yaml.safe_load_all(RIGHTS.read_text()):
        namespace = made["metadata"].get("namespace")
        folder = f"{api}/namespaces/{namespace}" if namespace else api
        if made["kind"] in ("ClusterRole", "Role"):
            plane.call("POST", f"{folder}/{made['kind'].lower()}s", made)
    for user, roles in ROLES.items():
        for role in roles:
            plane.call("POST", f"{api}/clusterrolebindings", binding(user, "ClusterRole", role))
    for user, role in WORKING:
        plane.call("POST", f"{api}/namespaces/default/rolebindings", binding(user, "ClusterRole", role))
    plane.call(
        "POST", f"{api}/namespaces/kube-system/rolebindings", binding("trimtab", "Role", "trimtab-lease")
    )


def binding(user: str, kind: str, role: str) -> dict[str, object]:
    return {
        "metadata": {"name": f"{user}-{role}"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
        "subjects": [{"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}],
    }


@pytest.fixture
def plane(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """The control plane, empty again afterwards."""
    yield control_plane
    for name in [name for name in control_plane.processes if name not in ("etcd", "kube-apiserver")]:
        control_plane.stop(name)
    control_plane.empty()


@pytest.fixture
def trimtab(plane: ControlPlane) -> Trimtab:
    """Starts commands of trimtab against it."""
    return Trimtab(plane)


@pytest.fixture(scope="session")
def slurm_daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    if reason := slurm_cluster.missing():
        pytest.skip(reason)
    with SlurmCluster(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@pytest.fixture
def slurm(slurm_daemons: SlurmCluster) -> Iterator[SlurmCluster]:
    """The cluster, empty again afterwards."""
    daemons = set(slurm_daemons.processes)
    yield slurm_daemons
    for name in slurm_daemons.processes.keys() - daemons:
        slurm_daemons.stop(name)
    slurm_daemons.empty()
