"""PEFT as a dispatcher: earliest finish plus the least time of what follows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from trimtab.compiled.kernel import kernel
from trimtab.domain.cluster import Cluster
from trimtab.domain.view import Memory, Plan, View, can_take, memory, needs_of
from trimtab.policies.shared.delivery import StagePolicy, delivered_completion_s
from trimtab.policies.shared.later_stages import least_after_s, notes_and_types, outlook
from trimtab.policies.shared.selection import NOTES, rank_noted


@dataclass(frozen=True)
class Peft(StagePolicy):
    """Choose the node by expected finish plus the least time of what follows from there.

    Idea
        OCT(node) = least time of the rest of the run if the stage runs on this node: its successor stays
        there, or runs on the type that serves it best after the output has moved. Node: least of finish +
        OCT. Order: mean OCT, largest first.
    Source
        Hamid Arabnejad, Jorge Barbosa: "List scheduling algorithm for heterogeneous systems by an optimistic
        cost table", IEEE Transactions on Parallel and Distributed Systems 25(3), 2014, §4. As published:
        `bench/list_schedules.py`.
    Reads
        The remaining critical path, the successor's class and its service times per type, the declared size
        of the output; as `heft`.
    Cost
        O(nodes · types).
    When it wins / loses
        Wins over `heft` where the successor runs well on few nodes only and outputs are large. On equal nodes
        without links it is `heft` with another order.
    Deviations from the source
        The table has one step: the successor on the critical path; what follows is scaled by its speed on a
        type. The order is the mean rest of the path, by estimates, where the source takes the mean of the
        table. As `heft` otherwise: no stage is placed before it is ready, no insertion, several runs.
    """

    name: ClassVar[str] = "peft"

    def init(self, cluster: Cluster) -> Memory:
        """Notes of the nodes, and how many there are of each type."""
        return memory(floats=notes_and_types(cluster))

    @staticmethod
    @kernel
    def dispatch(view: View, plan: Plan, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        """Rank all nodes by expected finish and what follows."""
        needs, floats = needs_of(work), memory.floats
        ahead = outlook(view, work, floats)
        for j in range(view.context.n_nodes):
            note_s = np.inf
            if can_take(view, needs, j):
                note_s = delivered_completion_s(view, needs, j) + least_after_s(view, work, ahead, j)
            floats[NOTES + j] = note_s
        return int(rank_noted(floats, ranking, view.context.n_nodes))

    @staticmethod
    @kernel
    def order(view: View, plan: Plan, work: Any, memory: Memory) -> float:
        """Seconds of the path after the stage, negative."""
        return float(-outlook(view, work, memory.floats).after_s)
