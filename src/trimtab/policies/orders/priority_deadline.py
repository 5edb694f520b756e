"""Priority classes with deadlines: classes first, earliest deadline within a class, bounded ageing across."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from trimtab.compiled.kernel import kernel
from trimtab.domain.cluster import Cluster
from trimtab.domain.needs import Need
from trimtab.domain.parameters import Positive, Tunable
from trimtab.domain.policy import Policy
from trimtab.domain.view import Memory, Plan, View, memory


@dataclass(frozen=True)
class PriorityDeadline(Policy):
    """Serve higher priorities first, the earliest deadline first within one, and let no request starve.

    Idea
        key = arrival + min(time to the deadline, level_s) − level_s × priority. Of two requests that arrive
        together, the one of higher priority comes first, whatever their deadlines, since these shift a key
        by less than one level. Of two of one priority, the one with the earlier deadline comes first. A
        request is overtaken only by those that arrive less than (difference of priorities + 1) × level_s
        after it, a bounded number, because keys grow with the arrival and rest while work waits.
    Source
        Own. The head start per class: James Jackson, "Some problems in queueing with dynamic priorities",
        Naval Research Logistics Quarterly 7(3), 1960; earliest deadline: as `edf`.
    Reads
        The arrival, the priority and the deadline.
    Cost
        O(1).
    When it wins / loses
        Wins where priority and deadline both say something: `edf` ignores the first, `priority-ageing` the
        second. With a large `level_s` it is strict priority, where low priorities starve under overload.
        Loses where deadlines are further off than `level_s`: these count as `level_s`, and equal ones are
        served by arrival.
    Deviations from the source
        There is none to deviate from. Without preemption; a deadline that has passed is still the earliest.
    """

    name: ClassVar[str] = "priority-deadline"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.PRIORITIES, Need.DEADLINES})
    degrades: ClassVar[Mapping[Need, str]] = {
        Need.PRIORITIES: "Only deadlines count.",
        Need.DEADLINES: "Within a priority it is first come, first served.",
    }
    level_s: Annotated[Positive, Tunable(1.0, 3600.0, "log")] = (
        60.0  # head start per level of priority; later deadlines count as this
    )

    def init(self, cluster: Cluster) -> Memory:
        """The level."""
        return memory(params=[self.level_s])

    @staticmethod
    @kernel
    def order(view: View, plan: Plan, work: Any, memory: Memory) -> float:
        """The earlier of the deadline and one level after the arrival, less the head start."""
        level_s = memory.params[0]
        due_s = min(work.deadline_s, work.arrival_s + level_s)
        return float(due_s - level_s * work.priority)
