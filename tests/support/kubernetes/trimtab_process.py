"""`trimtab kube` as processes beside a control plane."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from support.kubernetes.control_plane import ControlPlane
from support.waiting import wait_until

STARTS_WITHIN_S = 180.0  # the first of a policy compiles
COMMAND = (sys.executable, "-c", "from trimtab.cli import main; main()", "kube")


class Trimtab:
    """Starts commands as users of a control plane; the plane ends them."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    def command(self, *arguments: str, user: str = "trimtab") -> list[str]:
        return [*COMMAND, *arguments, "--kubeconfig", str(self._plane.kubeconfig(user))]

    def start(self, name: str, *arguments: str, user: str = "trimtab", until: str = "") -> None:
        """Start a command under a name; wait until its log has this text."""
        self._plane.run(name, self.command(*arguments, user=user))
        if until:
            wait_until(
                lambda: self.log(name),
                lambda log: until in log or self.has_ended(name),
                timeout_s=STARTS_WITHIN_S,
            )
            assert not self.has_ended(name), self.log(name)

    def scheduler(self, name: str = "scheduler", *arguments: str, is_first: bool = True) -> None:
        """Start a scheduler; wait until it is active, or until it has begun to wait for the Lease."""
        fast = ("--qps", "1000", "--burst", "2000")
        until = "scheduling pods" if is_first else "rights:"
        self.start(name, "scheduler", *fast, *arguments, until=until)

    def run(self, *arguments: str, user: str = "trimtab") -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            self.command(*arguments, user=user), capture_output=True, text=True, timeout=120
        )

    def log(self, name: str) -> str:
        path: Path = self._plane.folder / f"{name}.log"
        return path.read_text() if path.exists() else ""

    def has_ended(self, name: str) -> bool:
        return self._plane.processes[name].poll() is not None


def events(plane: ControlPlane, reason: str, namespace: str = "default") -> Sequence[tuple[str, str]]:
    """(pod, message) of the events of a reason."""
    found = plane.call("GET", f"/api/v1/namespaces/{namespace}/events")["items"]
    return [(e["involvedObject"]["name"], e["message"]) for e in found if e["reason"] == reason]
