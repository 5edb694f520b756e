"""CPOP as a dispatcher: stages of the critical path go to the fastest node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from trimtab.compiled.kernel import helper, kernel
from trimtab.domain.view import Memory, Plan, View, can_take, needs_of, own_s
from trimtab.policies.shared.delivery import StagePolicy, delivered_completion_s
from trimtab.policies.shared.selection import NOTES, rank_noted


@helper(inline=True)
def path_through_s(work: Any) -> float:
    """Seconds of the run through this stage: what has passed until it was ready, and what is left."""
    return float(work.arrival_s - work.run_arrival_s + work.rank_s)


@dataclass(frozen=True)
class Cpop(StagePolicy):
    """Serve the stage of the longest path through it first; critical stages on the fastest node that is free.

    Idea
        priority = downward rank + upward rank: the length of the longest path through the stage. A stage
        whose priority is no less than the critical path of its run is critical and goes to the node that
        serves it in the least time; another stage goes to the node of earliest finish, as in `heft`.
    Source
        Haluk Topcuoglu, Salim Hariri, Min-You Wu: "Performance-effective and low-complexity task scheduling
        for heterogeneous computing", IEEE Transactions on Parallel and Distributed Systems 13(3), 2002, §4.3
        (critical path on a processor). As published: `bench/list_schedules.py`.
    Reads
        The run's arrival and critical path on arrival; as `heft`.
    Cost
        O(nodes).
    When it wins / loses
        Wins where one path of a run takes most of its time and nodes are very unequal. Elsewhere `heft` is
        better: the source says so too.
    Deviations from the source
        The downward rank is the time that has passed since the run arrived, waiting included; so stages that
        are late are critical too. There is no single processor for the whole path: each critical stage takes
        the fastest node with room. Communication counts for other stages only. As `heft` otherwise: no stage
        is placed before it is ready, no insertion, several runs, estimates.
    """

    name: ClassVar[str] = "cpop"

    @staticmethod
    @kernel
    def dispatch(view: View, plan: Plan, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        """Rank all nodes by service time for a critical stage, else by expected finish."""
        needs, floats = needs_of(work), memory.floats
        path_s = view.context.run_path_s
        is_critical = path_s > 0.0 and path_through_s(work) >= path_s * (1.0 - 1e-9)
        for j in range(view.context.n_nodes):
            note_s = np.inf
            if can_take(view, needs, j):
                note_s = own_s(view, needs, j) if is_critical else delivered_completion_s(view, needs, j)
            floats[NOTES + j] = note_s
        return int(rank_noted(floats, ranking, view.context.n_nodes))

    @staticmethod
    @kernel
    def order(view: View, plan: Plan, work: Any, memory: Memory) -> float:
        """Seconds of the longest path through the stage, negative."""
        return -path_through_s(work)
