"""What kubelets do, in the test's process: pods that are bound run as processes of this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import urllib.error
from collections.abc import Mapping
from typing import Any, Self

from support.kubernetes.control_plane import ControlPlane, pods_of

LOOK_S = 0.1
MERGE = "application/strategic-merge-patch+json"
MISSING = "none"  # an image that no registry has


class HollowKubelets:
    """The kubelets of all nodes. `with` runs them."""

    def __init__(self, plane: ControlPlane, env: Mapping[str, str] | None = None) -> None:
        self._plane, self._env = plane, {**os.environ, **(env or {})}
        self.running: dict[str, tuple[str, subprocess.Popen[bytes]]] = {}  # uid → node, process
        self._seen: set[str] = set()
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.errors: list[BaseException] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()
        for uid in list(self.running):
            self._kill(uid)
        assert not self.errors

    def _run(self) -> None:
        while not self._ends.wait(LOOK_S):
            try:
                self._look()
            except urllib.error.HTTPError as error:  # a pod that went meanwhile
                if error.code != 404:
                    self.errors.append(error)
            except OSError:  # the API server is gone
                pass
            except BaseException as error:
                self.errors.append(error)

    def _look(self) -> None:
        nodes = {node["metadata"]["name"] for node in self._plane.call("GET", "/api/v1/nodes")["items"]}
        pods = {pod["metadata"]["uid"]: pod for pod in pods_of(self._plane)}
        for uid, (node, process) in list(self.running.items()):
            if node not in nodes or uid not in pods:
                self._kill(uid)
            elif (code := process.poll()) is not None:
                del self.running[uid]
                self._tell(pods[uid], code)
        for uid, pod in pods.items():
            is_ending = "deletionTimestamp" in pod["metadata"]
            if is_ending or (uid in self._seen and uid not in self.running and not _is_over(pod)):
                self._kill(uid)
                self._call("DELETE", pod, {"gracePeriodSeconds": 0})
            elif pod["spec"].get("nodeName") in nodes and uid not in self._seen and not _is_over(pod):
                self._seen.add(uid)
                self._start(uid, pod)

    def _start(self, uid: str, pod: dict[str, Any]) -> None:
        container = pod["spec"]["containers"][0]
        if container["image"] == MISSING:
            waiting = {"reason": "ImagePullBackOff", "message": f'Back-off pulling image "{MISSING}"'}
            self.running[uid] = (
                pod["spec"]["nodeName"],
                subprocess.Popen(["sleep", "600"], start_new_session=True),
            )
            self._patch(pod, "Pending", {"waiting": waiting})
            return
        env = {each["name"]: each["value"] for each in container.get("env", ())}
        first, *words = container["command"]
        process = subprocess.Popen(
            [sys.executable if first == "python" else first, *words],
            env={**self._env, **env},
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.running[uid] = pod["spec"]["nodeName"], process
        self._patch(pod, "Running", {"running": {}})

    def _tell(self, pod: dict[str, Any], code: int) -> None:
        ended = {"exitCode": code % 256, "reason": "Completed" if code == 0 else "Error"}
        self._patch(pod, "Failed" if code else "Succeeded", {"terminated": ended})

    def _patch(self, pod: dict[str, Any], phase: str, state: Mapping[str, Any]) -> None:
        container = {"name": pod["spec"]["containers"][0]["name"], "image": "", "imageID": "", "ready": False}
        told = [{**container, "restartCount": 0, "state": state}]
        self._call("PATCH", pod, {"status": {"phase": phase, "containerStatuses": told}}, "/status")

    def _call(self, method: str, pod: dict[str, Any], body: Any, more: str = "") -> None:
        name, kind = pod["metadata"]["name"], MERGE if method == "PATCH" else "application/json"
        path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{name}{more}"
        self._plane.call(method, path, body, kind=kind)

    def _kill(self, uid: str) -> None:
        _, process = self.running.pop(uid, ("", None))
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _is_over(pod: Mapping[str, Any]) -> bool:
    return pod["status"].get("phase") in ("Succeeded", "Failed")
