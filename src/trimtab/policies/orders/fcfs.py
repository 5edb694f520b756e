"""First come, first served."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from trimtab.compiled.kernel import kernel
from trimtab.domain.policy import Policy
from trimtab.domain.view import Memory, Plan, View


@dataclass(frozen=True)
class Fcfs(Policy):
    """Serve waiting work in order of arrival.

    Idea
        key = arrival: no request overtakes another of its queue.
    Source
        Leonard Kleinrock: Queueing Systems, Volume I: Theory, Wiley, 1975, chapter 5 (M/G/1). From memory.
    Reads
        The arrival.
    Cost
        O(1).
    When it wins / loses
        Least variance of the wait among orders that ignore size; no request starves. Short requests wait
        behind long ones, and urgent requests behind others.
    Deviations from the source
        Several queues: each node serves its own in this order, the host its central one. A request that
        arrives is decided at once, so one that fits somewhere now goes before those that are held because
        they fit nowhere; a host with a `lookahead` above 1 also offers later ones. So it is with every order.
    """

    name: ClassVar[str] = "fcfs"

    @staticmethod
    @kernel
    def order(view: View, plan: Plan, work: Any, memory: Memory) -> float:
        """Seconds of arrival."""
        return float(work.arrival_s)
