"""One real node of a control plane: kubelet and containerd on this machine, and an image that is made here.

kubelet changes settings of the kernel and writes into /var/log; all of it is as before afterwards.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import yaml

from support.kubernetes.control_plane import ControlPlane, set_status
from support.waiting import wait_until

NAME = "real"
IMAGE, PAUSE = "localhost/busybox:1", "localhost/pause:1"
PROGRAMS = ("containerd", "ctr", "runc", "busybox")
PLUGINS = Path("/usr/lib/cni")
BRIDGE = "trimtab0"
SUBNET = "10.244.77.0/24"
READY_WITHIN_S = 120.0
KERNEL = [
    Path("/proc/sys", name)
    for name in ("vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops", "net/ipv4/ip_forward")
]
LOGS = (Path("/var/log/pods"), Path("/var/log/containers"))
NETWORKS = Path("/run/netns")


def lacking(programs: Path) -> str:
    """Why there can be no real node here; "" = there can."""
    if os.geteuid() != 0:
        return "kubelet and containerd need root"
    if missing := [name for name in PROGRAMS if not shutil.which(name)]:
        return f"{', '.join(missing)}: not here; apt-get install containerd runc busybox-static"
    if not (PLUGINS / "bridge").exists():
        return f"{PLUGINS}/bridge is not here; apt-get install containernetworking-plugins"
    if not (programs / "kubelet").exists():
        return "kubelet is not built yet; `make test-node` builds it"
    return ""


class CannotRun(Exception):  # noqa: N818 - reads as the sentence it prints
    """This machine runs no containers, or no kubelet."""


class RealNode:
    """A node `real`, until the end of `with`. Its programs are among those of the control plane.

    Raises CannotRun.
    """

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self._plane, self._folder = plane, folder
        self._socket = folder / "containerd.sock"

    def __enter__(self) -> Self:
        self._before = {setting: setting.read_text() for setting in KERNEL if setting.exists()}
        self._there = _entries()
        try:
            self._start_containerd()
            self._start_kubelet()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in ("kubelet", "containerd"):
            if name in self._plane.processes:
                self._plane.stop(name)
        left = _entries() - self._there
        mounted = [path for path in left if path.parent == NETWORKS] + _mounts_below(self._folder)
        for path in sorted(mounted, reverse=True):
            subprocess.run(["umount", "--lazy", str(path)], check=False)
        for path in left:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        for cgroup in Path("/sys/fs/cgroup").glob("**/k8s.io"):
            with contextlib.suppress(OSError):  # another's
                cgroup.rmdir()
        subprocess.run(["ip", "link", "delete", BRIDGE], check=False, capture_output=True)
        for setting, value in self._before.items():
            setting.write_text(value)

    def ended(self) -> bool:
        """Whether nothing of pods is left here."""
        tasks = self._ctr("--namespace", "k8s.io", "tasks", "list", "--quiet").stdout.split()
        networks = {path for path in _entries() - self._there if path.parent == NETWORKS}
        return not tasks and not networks

    def _start_containerd(self) -> None:
        cni = self._folder / "cni"
        cni.mkdir(parents=True)
        addresses = {
            "type": "host-local",
            "dataDir": str(self._folder / "addresses"),
            "ranges": [[{"subnet": SUBNET}]],
        }
        bridge = {"type": "bridge", "bridge": BRIDGE, "isGateway": True, "ipam": addresses}
        (cni / "pods.conflist").write_text(
            json.dumps({"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge]})
        )
        config = self._folder / "containerd.toml"
        config.write_text(f"""
version = 2
root = "{self._folder}/root"
state = "{self._folder}/state"
[grpc]
  address = "{self._socket}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{self._folder}/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  restrict_oom_score_adj = true
  disable_tcp_service = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{PLUGINS}"
    conf_dir = "{cni}"
""")
        self._plane.run("containerd", ["containerd", "--config", str(config)])
        wait_until(lambda: self._ctr("version").returncode == 0)
        for image, command in ((IMAGE, ["/bin/sh"]), (PAUSE, ["/bin/busybox", "sleep", "2147483"])):
            archive = self._folder / "image.tar"
            archive.write_bytes(_image(image, command))
            done = self._ctr("--namespace", "k8s.io", "images", "import", str(archive))
            assert done.returncode == 0, done.stderr
        tried = self._ctr("--namespace", "k8s.io", "run", "--rm", IMAGE, "try", "/bin/busybox", "true")
        if tried.returncode:
            raise CannotRun(f"containerd runs no container here: {tried.stderr.strip()[-500:]}")

    def _ctr(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = ["ctr", "--address", str(self._socket), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    def _start_kubelet(self) -> None:
        config = self._folder / "kubelet.yaml"
        settings = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "port": self._plane.free_port(),
            "healthzPort": 0,
            "readOnlyPort": 0,
            "cgroupDriver": "cgroupfs",
            "cgroupsPerQOS": False,
            "enforceNodeAllocatable": [],
            "failSwapOn": False,
            "makeIPTablesUtilChains": False,
            "oomScoreAdj": 0,
            "evictionHard": {"memory.available": "50Mi"},
            "featureGates": {"LocalStorageCapacityIsolation": False},
        }
        config.write_text(yaml.safe_dump(settings))
        options = {
            "config": config,
            "kubeconfig": self._plane.kubeconfig(),
            "container-runtime": "remote",
            "container-runtime-endpoint": f"unix://{self._socket}",
            "hostname-override": NAME,
            "root-dir": self._folder / "kubelet",
            "cert-dir": self._folder / "kubelet-certs",
        }
        words = [f"--{name}={value}" for name, value in options.items()]
        self._plane.run("kubelet", [str(self._plane.programs / "kubelet"), *words])
        wait_until(self._is_ready, timeout_s=READY_WITHIN_S)
        gpus = {"nvidia.com/gpu": "2"}  # as the documentation of Kubernetes advertises an extended resource
        set_status(self._plane, NAME, {"status": {"capacity": gpus, "allocatable": gpus}})

    def _is_ready(self) -> bool:
        if self._plane.processes["kubelet"].poll() is not None:
            told = (self._plane.folder / "kubelet.log").read_text().splitlines()
            why = next((line for line in told if line.startswith("F")), told[-1])
            raise CannotRun(f"kubelet does not run here: {why}")
        nodes = self._plane.call("GET", "/api/v1/nodes")["items"]
        told = [each for node in nodes for each in node["status"].get("conditions", ())]
        return any(each["type"] == "Ready" and each["status"] == "True" for each in told)


def _image(name: str, command: Sequence[str]) -> bytes:
    """An image of busybox, in the format of `docker save`."""
    layer = _archive({"bin/busybox": Path(shutil.which("busybox") or "").read_bytes()}, {"bin/sh": "busybox"})
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Cmd": list(command)},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    files = {"layer.tar": layer}
    files["config.json"], files["manifest.json"] = (json.dumps(d).encode() for d in (config, manifest))
    return _archive(files, {})


def _archive(files: dict[str, bytes], links: dict[str, str]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o755
            archive.addfile(entry, io.BytesIO(data))
        for name, target in links.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            archive.addfile(entry)
    return made.getvalue()


def _entries() -> set[Path]:
    """Logs of pods on this machine, and networks of pods."""
    logs = {path for folder in LOGS if folder.exists() for path in folder.iterdir()}
    return logs | set(NETWORKS.glob("cni-*"))


def _mounts_below(folder: Path) -> list[Path]:
    mounted = [Path(line.split()[1]) for line in Path("/proc/mounts").read_text().splitlines()]
    return [place for place in mounted if folder in place.parents]
