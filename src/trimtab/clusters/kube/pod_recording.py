"""A trace of the pods that run on a cluster."""

from __future__ import annotations

from pathlib import Path

from trimtab.clusters.kube.feasibility import Feasibility
from trimtab.clusters.kube.mirror import Listener, Mirror
from trimtab.clusters.kube.objects import Node, Pod
from trimtab.clusters.placement.cluster_recording import Recording


class PodRecording(Listener):
    """Tells a recording what the mirror sees."""

    def __init__(self, mirror: Mirror, folder: Path, policy: str) -> None:
        """Raises UsageError where the folder cannot be written."""

        def takes(node: Node) -> bool:
            return node.takes_pods

        suited = Feasibility(mirror.ledger).suited
        self._mirror = mirror
        self._recording = Recording(mirror.ledger, suited, takes, folder, policy, "pod")
        self.close = self._recording.close
        mirror.listeners.append(self)

    def nodes_listed(self) -> None:
        """All nodes are known."""
        self._recording.nodes_listed()

    def node_changed(self, name: str) -> None:
        """A node came, went, or takes pods no more."""
        self._recording.node_changed(name)

    def pod_changed(self, pod: Pod, before: Pod | None) -> None:
        """A pod came, or was bound."""
        was_there = not self._mirror.is_synced
        if pod.node_name:
            self._recording.placed(pod, pod.node_name, was_there=was_there)
        else:
            self._recording.came(pod, was_there=was_there)

    def pod_gone(self, pod: Pod) -> None:
        """A pod has ended."""
        self._recording.ended(pod.uid, "failed" if pod.phase == "Failed" else "done")
