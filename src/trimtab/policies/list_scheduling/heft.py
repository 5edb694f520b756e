"""HEFT as a dispatcher: the longest remaining path first, to the node of earliest finish."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from trimtab.compiled.kernel import kernel
from trimtab.domain.cluster import Cluster
from trimtab.domain.needs import Need
from trimtab.domain.policy import Policy
from trimtab.domain.view import Memory, Plan, View, memory, needs_of
from trimtab.policies.shared.delivery import WITHOUT_DELIVERY, rank_by_delivery
from trimtab.policies.shared.selection import notes_room
from trimtab.policies.shared.without import PLAIN_REQUESTS


@dataclass(frozen=True)
class Heft(Policy):
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
    needs: ClassVar[frozenset[Need]] = frozenset({Need.RESIDENCY, Need.ZONES, Need.LINKS, Need.CHAINS})
    degrades: ClassVar[Mapping[Need, str]] = {
        **WITHOUT_DELIVERY,
        Need.CHAINS: PLAIN_REQUESTS,
    }

    def init(self, cluster: Cluster) -> Memory:
        """Notes of the nodes."""
        return memory(floats=notes_room(cluster.n_nodes))

    @staticmethod
    @kernel
    def dispatch(view: View, plan: Plan, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        """Rank all nodes by expected finish."""
        return rank_by_delivery(view, needs_of(work), memory, ranking)

    @staticmethod
    @kernel
    def order(view: View, plan: Plan, work: Any, memory: Memory) -> float:
        """Upward rank in seconds, negative."""
        return float(-work.rank_s)
