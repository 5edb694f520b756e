"""What a policy would have chosen beside what the cluster's scheduler chose."""

from __future__ import annotations

from pathlib import Path

from trimtab.clusters.kube.feasibility import Feasibility
from trimtab.clusters.kube.mirror import Listener, Mirror
from trimtab.clusters.kube.objects import KUBERNETES, Pod
from trimtab.clusters.placement.choice_log import ChoiceLog
from trimtab.domain.policy import Decider


class DryRun(Listener):
    """Logs the choices for each pod that is bound while it listens. Binds nothing."""

    def __init__(self, mirror: Mirror, decider: Decider, folder: Path, *, seed: int = 0) -> None:
        self._ledger = mirror.ledger
        feasible = Feasibility(self._ledger)
        self.log = ChoiceLog(
            self._ledger, feasible.mask, feasible.summary, decider, KUBERNETES, folder, seed=seed
        )
        mirror.listeners.append(self)

    def pod_changed(self, pod: Pod, before: Pod | None) -> None:
        """Compare the choices for a pod that has just been bound."""
        if not pod.node_name:
            return
        if before is not None and not before.node_name:
            holding = self._ledger.release(pod.uid)
            assert holding is not None
            self.log.compare(pod, pod.node_name, {"pod": pod.full_name, "scheduler": pod.scheduler})
            self._ledger.hold(pod, pod.node_name, holding.devices)
        self.log.placed(pod, pod.node_name)

    def pod_gone(self, pod: Pod) -> None:
        """A pod has left."""
        self.log.ended(pod.uid)
