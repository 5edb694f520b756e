"""etcd, kube-apiserver and kube-scheduler, from the programs that `build_kubernetes.sh` leaves."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import yaml

from support.ports import reserved_port
from support.waiting import wait_until

BUILD = Path(__file__).parents[2] / "clusters_real" / "build_kubernetes.sh"
CANNOT_BUILD = 3  # exit status of that script
READY_WITHIN_S = 60.0
SETTLES_S = 3.0
ADMIN = "admin"
STRATEGIC = "application/strategic-merge-patch+json"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
INFERENCE = "inference.networking.k8s.io"
POOLS = f"/apis/{INFERENCE}/v1/namespaces/default/inferencepools"
PROFILE = "kubescheduler.config.k8s.io/v1beta1"


def programs() -> Path | str:
    """The folder of Kubernetes' programs, built if need be; or why there is none."""
    done = subprocess.run([BUILD], capture_output=True, text=True)
    if done.returncode == 0:
        return Path(done.stdout.split()[-1])
    if done.returncode == CANNOT_BUILD:
        return done.stderr.strip().splitlines()[-1]
    raise RuntimeError(f"{BUILD} failed: {done.stderr[-2000:]}")


@dataclass
class ControlPlane:
    """A running control plane in a folder of its own. Close it."""

    folder: Path
    programs: Path
    users: Mapping[str, str] = field(default_factory=dict)  # name → its group, besides the administrator
    authorization: str = "AlwaysAllow"
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    port: int = 0
    etcd_port: int = 0
    held: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)  # its ports

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port, self.etcd_port = self.free_port(), self.free_port()
        key = str(self.folder / "sa.key")
        for made in (
            ["openssl", "genrsa", "-out", key, "2048"],
            ["openssl", "rsa", "-in", key, "-pubout", "-out", str(self.folder / "sa.pub")],
        ):
            subprocess.run(made, check=True, capture_output=True)
        rows = [f"{ADMIN}-token,{ADMIN},1,system:masters"]
        rows += [
            f"{name}-token,{name},{10 + i},{group}" for i, (name, group) in enumerate(self.users.items())
        ]
        (self.folder / "tokens.csv").write_text("\n".join(rows) + "\n")
        self.start_etcd()
        self.start_api_server()

    def start_etcd(self) -> None:
        of_clients, of_peers = f"http://127.0.0.1:{self.etcd_port}", f"http://127.0.0.1:{self.free_port()}"
        self.run(
            "etcd",
            [
                *("etcd", "--unsafe-no-fsync", "--name", "one", "--data-dir", str(self.folder / "etcd")),
                *("--listen-client-urls", of_clients, "--advertise-client-urls", of_clients),
                *("--listen-peer-urls", of_peers, "--initial-advertise-peer-urls", of_peers),
                *("--initial-cluster", f"one={of_peers}"),
            ],
        )

    def start_api_server(self) -> None:
        self.run(
            "kube-apiserver",
            [
                *(
                    str(self.programs / "kube-apiserver"),
                    "--etcd-servers",
                    f"http://127.0.0.1:{self.etcd_port}",
                ),
                *("--secure-port", str(self.port), "--bind-address", "127.0.0.1"),
                *("--advertise-address", "127.0.0.1", "--cert-dir", str(self.folder / "certs")),
                *("--token-auth-file", str(self.folder / "tokens.csv")),
                *("--authorization-mode", self.authorization),
                *("--service-account-issuer", "https://kubernetes.default.svc"),
                *("--service-account-signing-key-file", str(self.folder / "sa.key")),
                *("--service-account-key-file", str(self.folder / "sa.pub")),
                *("--service-cluster-ip-range", "10.96.0.0/16"),
                *("--disable-admission-plugins", "ServiceAccount,TaintNodesByCondition"),
                *("--kubelet-preferred-address-types", "InternalIP"),
            ],
        )
        self.await_ready()

    def free_port(self) -> int:
        return self.held.enter_context(reserved_port())

    def run(self, name: str, command: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        """Start a program; it begins a log of its name."""
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                command, stdout=log, stderr=log, start_new_session=True, env={**os.environ, **(env or {})}
            )

    def await_ready(self) -> None:
        end = time.monotonic() + READY_WITHIN_S
        while True:
            ended = [name for name, process in self.processes.items() if process.poll() is not None]
            if ended or time.monotonic() > end:
                log = (self.folder / f"{(ended or ['kube-apiserver'])[0]}.log").read_text()[-2000:]
                raise RuntimeError(f"ended: {ended}; not ready: {log}")
            try:
                if self.call("GET", "/readyz") == "ok":
                    return
            except OSError:
                pass
            time.sleep(0.1)

    def call(self, method: str, path: str, body: Any = None, *, kind: str = "application/json") -> Any:
        """One call as the administrator; JSON in, JSON or text out. Raises `urllib.error.HTTPError`."""
        request = urllib.request.Request(
            f"https://127.0.0.1:{self.port}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {ADMIN}-token", "Content-Type": kind},
        )
        context = ssl._create_unverified_context()
        with urllib.request.urlopen(request, context=context, timeout=30) as answer:
            text = answer.read().decode()
        return json.loads(text) if text.startswith("{") else text

    def kubeconfig(self, user: str = ADMIN) -> Path:
        """A kubeconfig of a user, written anew."""
        path = self.folder / f"{user}.kubeconfig"
        name = {"name": "test"}
        path.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "test",
                    "clusters": [
                        name
                        | {
                            "cluster": {
                                "server": f"https://127.0.0.1:{self.port}",
                                "certificate-authority": str(self.folder / "certs" / "apiserver.crt"),
                            }
                        }
                    ],
                    "users": [name | {"user": {"token": f"{user}-token"}}],
                    "contexts": [name | {"context": {"cluster": "test", "user": "test"}}],
                }
            )
        )
        return path

    def start_scheduler(
        self,
        profile: str = "default-scheduler",
        *,
        qps: float = 50.0,
        extender: str = "",
        plugins: Mapping[str, Any] | None = None,
        plugin_config: Sequence[Mapping[str, Any]] = (),
        managed: Sequence[str] = (),
        binds: bool = False,
    ) -> None:
        """Start kube-scheduler under a name of a profile, with an extender at this URL where one is given."""
        health = f"127.0.0.1:{self.free_port()}"
        config: dict[str, Any] = {
            "apiVersion": PROFILE,
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False},
            "clientConnection": {"kubeconfig": str(self.kubeconfig()), "qps": qps, "burst": int(2 * qps)},
            "healthzBindAddress": health,
            "metricsBindAddress": health,
            "podInitialBackoffSeconds": 1,
            "podMaxBackoffSeconds": 2,
            "profiles": [
                {"schedulerName": profile}
                | ({"plugins": dict(plugins)} if plugins else {})
                | ({"pluginConfig": list(plugin_config)} if plugin_config else {})
            ],
        }
        if extender:
            config["extenders"] = [
                {
                    "urlPrefix": extender,
                    "filterVerb": "filter",
                    "prioritizeVerb": "prioritize",
                    "weight": 100,
                    "nodeCacheCapable": True,
                    "httpTimeout": "5s",
                    "managedResources": [{"name": name} for name in managed],
                    **({"bindVerb": "bind"} if binds else {}),
                }
            ]
        path = self.folder / f"{profile}.yaml"
        path.write_text(yaml.safe_dump(config))
        self.run(f"scheduler-{profile}", [str(self.programs / "kube-scheduler"), "--config", str(path)])
        time.sleep(SETTLES_S)  # its copies of nodes and pods come after it serves

    def empty(self) -> None:
        """Delete all pods, nodes, events and Leases."""
        for path in (
            "/api/v1/namespaces/default/pods",
            "/api/v1/namespaces/default/events",
            "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases",
        ):
            self.call("DELETE", path, {"gracePeriodSeconds": 0})
        self.call("DELETE", "/api/v1/nodes")

    def stop(self, name: str, how: signal.Signals = signal.SIGKILL) -> None:
        """End one of its programs."""
        process = self.processes.pop(name)
        process.send_signal(how)
        process.wait(30)

    def close(self) -> None:
        for name in list(self.processes)[::-1]:
            self.stop(name)
        self.held.close()
        shutil.rmtree(self.folder / "etcd", ignore_errors=True)


def hollow_node(
    name: str,
    *,
    gpus: int = 8,
    cores: int = 64,
    memory_gib: int = 512,
    labels: Mapping[str, str] | None = None,
    more: Mapping[str, str] | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(node to create, its status to patch): Ready, without a kubelet."""
    capacity = {"cpu": str(cores), "memory": f"{memory_gib}Gi", "pods": "110", **(more or {})}
    if gpus:
        capacity["nvidia.com/gpu"] = str(gpus)
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}},
    }
    return node, {"status": {"capacity": capacity, "allocatable": capacity, "conditions": [ready(True)]}}


def ready(is_ready: bool) -> dict[str, str]:
    """The condition of a node."""
    return {"type": "Ready", "status": "True" if is_ready else "False", "reason": "test", "message": ""}


def make_nodes(plane: ControlPlane, nodes: Sequence[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    """Create hollow nodes."""
    for node, status in nodes:
        plane.call("POST", "/api/v1/nodes", node)
        set_status(plane, node["metadata"]["name"], status)


def define(plane: ControlPlane, crd: Mapping[str, Any], path: str) -> None:
    """Create a custom resource definition, and wait until its objects are served."""
    plane.call("POST", CRDS, crd)

    def is_served() -> bool:
        try:
            plane.call("GET", path)
        except urllib.error.HTTPError:
            return False
        return True

    wait_until(is_served)


@contextlib.contextmanager
def inference_pools(plane: ControlPlane) -> Iterator[None]:
    """A CRD of the pool's name while the block lasts; the official one has rules that 1.20 does not know."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": "inferencepools", "singular": "inferencepool", "kind": "InferencePool"}
    spec = {"group": INFERENCE, "names": names, "scope": "Namespaced", "versions": [version]}
    protected = {"api-approved.kubernetes.io": "unapproved, of a test"}
    name = f"inferencepools.{INFERENCE}"
    define(plane, {"metadata": {"name": name, "annotations": protected}, "spec": spec}, POOLS)
    try:
        yield
    finally:
        plane.call("DELETE", f"{CRDS}/{name}")


def make_inference_pool(plane: ControlPlane, *ports: int) -> None:
    """A pool `chat` of the pods that `make_serving_pod` makes."""
    spec = {"selector": {"matchLabels": {"app": "chat"}}, "targetPorts": [{"number": p} for p in ports]}
    body = {"apiVersion": f"{INFERENCE}/v1", "kind": "InferencePool", "metadata": {"name": "chat"}}
    plane.call("POST", POOLS, {**body, "spec": spec})


def set_status(plane: ControlPlane, name: str, status: Mapping[str, Any]) -> None:
    """Patch the status of a node."""
    plane.call("PATCH", f"/api/v1/nodes/{name}/status", status, kind=STRATEGIC)


def pod(
    name: str,
    *,
    gpus: int = 1,
    scheduler: str = "trimtab",
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    more: Mapping[str, str] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """A pod that asks for GPUs."""
    asked = {"cpu": "1", "memory": "1Gi", **({"nvidia.com/gpu": str(gpus)} if gpus else {}), **(more or {})}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": dict(annotations or {}), "labels": dict(labels or {})},
        "spec": {
            "schedulerName": scheduler,
            "containers": [
                {"name": "main", "image": "none", "resources": {"requests": asked, "limits": asked}}
            ],
            **spec,
        },
    }


def make_pods(plane: ControlPlane, pods: Sequence[dict[str, Any]], namespace: str = "default") -> None:
    """Create pods."""
    for one in pods:
        plane.call("POST", f"/api/v1/namespaces/{namespace}/pods", one)


def make_serving_pod(plane: ControlPlane, name: str, ip: str, is_ready: bool = True) -> None:
    """A pod with an address, as a kubelet would report it."""
    made = pod(name, gpus=0, labels={"app": "chat"})
    made["spec"]["containers"][0]["ports"] = [
        {"name": "http", "containerPort": 8000},
        {"name": "more", "containerPort": 9000},
    ]
    make_pods(plane, [made])
    set_ready(plane, name, is_ready, {"podIP": ip, "podIPs": [{"ip": ip}], "phase": "Running"})


def set_ready(plane: ControlPlane, name: str, is_ready: bool, more: dict[str, Any] | None = None) -> None:
    """Patch whether a pod is ready."""
    condition = {"type": "Ready", "status": str(is_ready)}
    patch = {"status": {**(more or {}), "conditions": [condition]}}
    plane.call("PATCH", f"/api/v1/namespaces/default/pods/{name}/status", patch, kind=STRATEGIC)


def pods_of(plane: ControlPlane, namespace: str = "default") -> list[dict[str, Any]]:
    """All pods of a namespace."""
    found: list[dict[str, Any]] = plane.call("GET", f"/api/v1/namespaces/{namespace}/pods")["items"]
    return found


def reason_of(pod: Mapping[str, Any]) -> str:
    """Why a pod waits, as its condition says."""
    conditions = pod["status"].get("conditions", ())
    return next(
        (c["message"] for c in conditions if c["type"] == "PodScheduled" and c["status"] == "False"), ""
    )


def gpus_by_node(plane: ControlPlane, resource: str = "nvidia.com/gpu") -> dict[str, int]:
    """Node → GPUs that pods bound to it take."""
    taken: dict[str, int] = {}
    for each in pods_of(plane):
        if node := each["spec"].get("nodeName"):
            asked = each["spec"]["containers"][0]["resources"]["requests"].get(resource, "0")
            taken[node] = taken.get(node, 0) + int(asked)
    return taken


def nodes_by_pod(plane: ControlPlane, namespace: str = "default") -> dict[str, str]:
    """Pod → its node; "" = not bound."""
    return {p["metadata"]["name"]: p["spec"].get("nodeName", "") for p in pods_of(plane, namespace)}
