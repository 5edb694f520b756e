"""Min-min: of all tasks that wait, the one that finishes soonest is placed first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from trimtab.compiled.kernel import kernel
from trimtab.domain.cluster import Cluster
from trimtab.domain.needs import Need
from trimtab.domain.policy import Policy
from trimtab.domain.view import Memory, Plan, View, can_take, memory, needs_of
from trimtab.policies.data_aware.congestion_aware import delivered_completion_s
from trimtab.policies.shared.selection import NOTES, notes_room, rank_noted
from trimtab.policies.shared.without import NO_LINKS, NO_LOADS, NO_ROUND_TRIPS


@dataclass(frozen=True)
class MinMin(Policy):
    """Place the waiting task first whose earliest finish is the soonest.

    Idea
        For each waiting task the node of earliest finish; of these pairs the one with the least finish
        first.
    Source
        Muthucumaru Maheswaran, Shoukat Ali, Howard Jay Siegel, Debra Hensgen, Richard Freund: "Dynamic
        mapping of a class of independent tasks onto heterogeneous computing systems", Journal of Parallel and
        Distributed Computing 59(2), 1999, §4 (batch mode, Min-min); after Oscar Ibarra,
        Chul Kim: Journal of the ACM 24(2), 1977.
    Reads
        As `congestion-aware`, with what each node holds of a stage's inputs.
    Cost
        O(nodes) a decision; 128 decisions and more when a slot comes free while many are held.
    When it wins / loses
        Low mean completion: short tasks first. Long tasks are left for last, which costs makespan.
    Deviations from the source
        Mapped is what a node with room can take now, when room appears, instead of all tasks at set times.
        Compared are the first 128 held requests that have a candidate. Transfers and loads count.
    """

    name: ClassVar[str] = "min-min"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.RESIDENCY, Need.ZONES, Need.LINKS})
    degrades: ClassVar[Mapping[Need, str]] = {
        Need.RESIDENCY: NO_LOADS,
        Need.ZONES: NO_ROUND_TRIPS,
        Need.LINKS: NO_LINKS,
    }
    compares: ClassVar[int] = 128

    def init(self, cluster: Cluster) -> Memory:
        """Notes of the nodes."""
        return memory(floats=notes_room(cluster.n_nodes))

    @staticmethod
    @kernel
    def dispatch(view: View, plan: Plan, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        """Rank all nodes by expected finish, which is the score."""
        needs, floats = needs_of(work), memory.floats
        for j in range(view.context.n_nodes):
            is_able = can_take(view, needs, j)
            floats[NOTES + j] = delivered_completion_s(view, needs, j) if is_able else np.inf
        return int(rank_noted(floats, ranking, view.context.n_nodes))
