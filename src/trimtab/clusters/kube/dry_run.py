"""What a policy would have chosen beside what the cluster's scheduler chose, and the latter's regret."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson

from trimtab.clusters.kube.feasibility import Feasibility
from trimtab.clusters.kube.mirror import Listener, Mirror
from trimtab.clusters.kube.objects import Pod
from trimtab.clusters.kube.policy_choice import PolicyChoice
from trimtab.clusters.kube.stranded import Stranded
from trimtab.domain.policy import Decider

FILE: Final = "choices.jsonl"


class DryRun(Listener):
    """Writes a line for each pod that is bound while it listens. Binds nothing.

    Both choose from the same state: what the ledger holds just before the pod takes its place.
    """

    def __init__(self, mirror: Mirror, decider: Decider, folder: Path, *, seed: int = 0) -> None:
        self._mirror, self._ledger = mirror, mirror.ledger
        self._feasible = Feasibility(self._ledger)
        self._choice = PolicyChoice(decider, self._ledger, seed=seed)
        self.degraded = self._choice.degraded
        self._stranded = Stranded(self._ledger)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._file = (folder / FILE).open("ab", buffering=0)
        self.counts = {"pods": 0, "same": 0, "none": 0}
        self.regret_milli = 0.0
        mirror.listeners.append(self)

    def pod_changed(self, pod: Pod, before: Pod | None) -> None:
        """Compare the choices for a pod that has just been bound."""
        if not pod.node_name:
            return
        if before is not None and not before.node_name:
            self._compare(pod)
        self._choice.placed(pod, pod.node_name)
        self._stranded.note(pod)

    def pod_gone(self, pod: Pod) -> None:
        """A pod has left."""
        self._choice.ended(pod.uid)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _compare(self, pod: Pod) -> None:
        holding = self._ledger.release(pod.uid)
        assert holding is not None
        able = self._feasible.mask(pod)
        ranked = self._choice.rank(pod, able) if able.any() else []
        chosen = self._ledger.index.get(pod.node_name)
        row: dict[str, Any] = {"pod": pod.full_name, "scheduler": pod.scheduler, "node": pod.node_name}
        self.counts["pods"] += 1
        if ranked and chosen is not None:
            ours = self._ledger.nodes[ranked[0]]
            regret = self._stranded.growth(pod, chosen) - self._stranded.growth(pod, ranked[0])
            theirs = self._ledger.nodes[chosen]
            self.counts["same"] += ranked[0] == chosen
            self.regret_milli += regret
            row |= {
                "would": [self._ledger.nodes[j].name for j in ranked],
                "same": ranked[0] == chosen,
                "able": int(np.count_nonzero(able)),
                "regret_stranded_milli": round(regret, 3),
                "regret_usd_per_hour": round(theirs.usd_per_hour - ours.usd_per_hour, 6),
                "regret_pull_bytes": ours.images.get(pod.image, 0) - theirs.images.get(pod.image, 0),
            }
        else:
            self.counts["none"] += 1
            row |= {"would": [], "why": "" if able.any() else self._feasible.summary(pod)}
        self._ledger.hold(pod, pod.node_name, holding.devices)
        self._file.write(orjson.dumps(row) + b"\n")
