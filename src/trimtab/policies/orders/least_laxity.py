"""Least laxity first: the waiting work that can wait the shortest time without missing its deadline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from trimtab.compiled.kernel import kernel
from trimtab.domain.needs import Need
from trimtab.domain.policy import Policy
from trimtab.domain.view import Memory, Plan, View
from trimtab.policies.shared.unmet_needs import PLAIN_REQUESTS


@dataclass(frozen=True)
class LeastLaxity(Policy):
    """Serve the waiting work of the least laxity first: deadline less present time less remaining service.

    Idea
        Laxity is how long work can still wait and end in time. While work waits, its remaining service stays
        as it is and the time is the same for all, so deadline − estimate gives the same order as laxity at
        every moment. The key is therefore final: key = deadline − remaining service. Of a request that is its
        estimated service; of a stage, the estimated rest of its run on the critical path, before the deadline
        of the run. Without a deadline the laxity is infinite.
    Source
        Aloysius Mok: "Fundamental design problems of distributed systems for the hard-real-time environment",
        PhD thesis, MIT, 1983; Michael Dertouzos, Aloysius Mok: "Multiprocessor online scheduling of
        hard-real-time tasks", IEEE Transactions on Software Engineering 15(12), 1989. From memory.
    Reads
        The deadline, and the estimate of the service time or of the remaining critical path.
    Cost
        O(1).
    When it wins / loses
        Wins over `edf` where requests of very different size share nodes: a long one is begun while there is
        still time for it. At one server without preemption `edf` has the least maximum lateness of work that
        is all there. Beyond capacity it serves what is too late already, as `edf` does.
    Deviations from the source
        Without preemption, so work that runs is never compared. Estimates stand in for true service times:
        of a request on the best type of node, of stages as means over the nodes that serve them.
    """

    name: ClassVar[str] = "least-laxity"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.DEADLINES, Need.CHAINS})
    degrades: ClassVar[Mapping[Need, str]] = {
        Need.DEADLINES: "It is first come, first served.",
        Need.CHAINS: PLAIN_REQUESTS,
    }

    @staticmethod
    @kernel
    def order(view: View, plan: Plan, work: Any, memory: Memory) -> float:
        """Absolute seconds of the latest start that meets the deadline."""
        return float(work.deadline_s - work.rank_s)
