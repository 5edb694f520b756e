"""HEFT as a dispatcher: the longest remaining path first, to the node of earliest finish."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from trimtab.compiled.kernel import kernel
from trimtab.domain.view import Memory, Plan, View
from trimtab.policies.shared.delivery import StagePolicy


@dataclass(frozen=True)
class Heft(StagePolicy):
    """Serve the ready stage of the highest rank first, on the node where it is expected to finish first.

    Idea
        Order: rank = estimated seconds from the start of the stage to the end of its run on the longest path,
        largest first. Node: earliest finish = max(transfer of the inputs that the node lacks, wait) + load +
        service.
    Source
        Haluk Topcuoglu, Salim Hariri, Min-You Wu: "Performance-effective and low-complexity task scheduling
        for heterogeneous computing", IEEE Transactions on Parallel and Distributed Systems 13(3), 2002, §4.2.
        As published, for one graph that is known in advance: `bench/list_schedules.py`.
    Reads
        The estimated remaining critical path; as `congestion-aware`, with what each node holds of the inputs.
    Cost
        O(nodes).
    When it wins / loses
        Low makespan of a run on unequal nodes. Of several runs it serves the least advanced first, so that
        all of them end late. It takes a slow node that is free where the source waits for a fast one.
    Deviations from the source
        A stage is placed when it is ready, not before, so there is no insertion into gaps. Ranks leave out
        communication, whose sizes are known only when the inputs are there. Nodes without room are no
        candidates; where nodes have queues, their wait counts. Several runs share the nodes and are ranked
        together. Estimates stand in for execution times.
    """

    name: ClassVar[str] = "heft"

    @staticmethod
    @kernel
    def order(view: View, plan: Plan, work: Any, memory: Memory) -> float:
        """Upward rank in seconds, negative."""
        return float(-work.rank_s)
