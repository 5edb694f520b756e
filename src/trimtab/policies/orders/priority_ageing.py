"""Priorities with ageing: each level of priority is worth a head start of so many seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from trimtab.compiled.kernel import kernel
from trimtab.domain.cluster import Cluster
from trimtab.domain.needs import Need
from trimtab.domain.parameters import NonNegative, Tunable
from trimtab.domain.policy import Policy
from trimtab.domain.view import Memory, Plan, View, memory


@dataclass(frozen=True)
class PriorityAgeing(Policy):
    """Serve urgent work first, but let waiting make up for rank, so that no request starves.

    Idea
        key = arrival − weight × priority. The key rests while work waits, yet acts as if priority grew with
        the wait: a request is overtaken only by those that arrive less than weight × (difference of
        priorities) after it, a bounded number.
    Source
        James Jackson: "Some problems in queueing with dynamic priorities", Naval Research Logistics Quarterly
        7(3), 1960 (a fixed head start per class); Leonard Kleinrock: Queueing Systems, Volume II, Wiley,
        1976, chapter 3 (priority queueing). From memory.
    Reads
        The arrival and the priority.
    Cost
        O(1).
    When it wins / loses
        Urgent work waits less, at the cost of the rest by no more than the head start. With the weight 0 it
        is first come first served; with a large one strict priority, where low ranks starve under overload.
    Deviations from the source
        The first source counts time in whole steps at one server. The second has priorities that grow at
        different rates with the wait; here all grow at the same rate, from different beginnings. Without
        preemption.
    """

    name: ClassVar[str] = "priority-ageing"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.PRIORITIES})
    degrades: ClassVar[Mapping[Need, str]] = {
        Need.PRIORITIES: "It is first come, first served.",
    }
    weight_s: Annotated[NonNegative, Tunable(1.0, 1000.0, "log")] = 30.0  # head start per level of priority

    def init(self, cluster: Cluster) -> Memory:
        """The weight."""
        return memory(params=[self.weight_s])

    @staticmethod
    @kernel
    def order(view: View, plan: Plan, work: Any, memory: Memory) -> float:
        """Arrival less the head start."""
        return float(work.arrival_s - memory.params[0] * work.priority)
