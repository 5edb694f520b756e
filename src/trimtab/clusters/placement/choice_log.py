"""What a policy would have chosen beside what the system's own scheduler chose, and the latter's regret."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Generic

import numpy as np
from numpy.typing import NDArray

from trimtab.clusters.placement.ledger import Ledger, NodeT, WorkloadT
from trimtab.clusters.placement.policy_choice import PolicyChoice
from trimtab.clusters.placement.stranded import Stranded
from trimtab.domain.needs import Host
from trimtab.domain.policy import Decider

FILE: Final = "choices.jsonl"


class ChoiceLog(Generic[NodeT, WorkloadT]):
    """Writes a line for each workload that was placed. Places nothing.

    Both choose from the same state: what the ledger holds just before the workload takes its place.
    """

    def __init__(
        self,
        ledger: Ledger[NodeT, WorkloadT],
        able: Callable[[WorkloadT], NDArray[np.bool_]],
        why: Callable[[WorkloadT], str],
        decider: Decider,
        host: Host,
        folder: Path,
        *,
        seed: int = 0,
    ) -> None:
        """`able`: nodes that may take a workload, [nodes]; `why`: why none may."""
        self._ledger, self._able, self._why = ledger, able, why
        self._choice = PolicyChoice(decider, ledger, host, seed=seed)
        self.degraded = self._choice.degraded
        self._stranded = Stranded(ledger)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._file = (folder / FILE).open("ab", buffering=0)
        self.counts = {"placed": 0, "same": 0, "none": 0}
        self.regret_milli = 0.0

    def placed(self, workload: WorkloadT, node_name: str) -> None:
        """A workload has its place."""
        self._choice.placed(workload, node_name)
        self._stranded.note(workload)

    def ended(self, uid: str) -> None:
        """A workload has left."""
        self._choice.ended(uid)

    def compare(self, workload: WorkloadT, node_name: str, named: Mapping[str, Any]) -> None:
        """Compare the choices for a workload that the ledger does not hold. `named`: it, in the file."""
        ledger = self._ledger
        able = self._able(workload)
        ranked = self._choice.rank(workload, able) if able.any() else []
        chosen = ledger.index.get(node_name)
        row: dict[str, Any] = {**named, "node": node_name}
        self.counts["placed"] += 1
        if ranked and chosen is not None:
            ours, theirs = ledger.nodes[ranked[0]], ledger.nodes[chosen]
            regret = self._stranded.growth(workload, chosen) - self._stranded.growth(workload, ranked[0])
            self.counts["same"] += ranked[0] == chosen
            self.regret_milli += regret
            image = workload.image
            row |= {
                "would": [ledger.nodes[j].name for j in ranked],
                "same": ranked[0] == chosen,
                "able": int(np.count_nonzero(able)),
                "regret_stranded_milli": round(regret, 3),
                "regret_usd_per_hour": round(theirs.usd_per_hour - ours.usd_per_hour, 6),
                "regret_pull_bytes": ours.images.get(image, 0) - theirs.images.get(image, 0),
            }
        else:
            self.counts["none"] += 1
            row |= {"would": [], "why": "" if able.any() else self._why(workload)}
        self._file.write(json.dumps(row, separators=(",", ":")).encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()
