"""Earliest deadline first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from trimtab.compiled.kernel import kernel
from trimtab.domain.needs import Need
from trimtab.domain.policy import Policy
from trimtab.domain.view import Memory, Plan, View


@dataclass(frozen=True)
class Edf(Policy):
    """Serve the waiting work with the earliest deadline first; work without a deadline comes last.

    Idea
        key = absolute deadline, infinite where there is none.
    Source
        James Jackson: "Scheduling a production line to minimize maximum tardiness", Management Science
        Research Project, Report 43, UCLA, 1955; C. L. Liu, James Layland: "Scheduling algorithms for
        multiprogramming in a hard-real-time environment", Journal of the ACM 20(1), 1973, §7. From memory.
    Reads
        The deadline.
    Cost
        O(1).
    When it wins / loses
        Least maximum lateness of work that is all there at one server; meets all deadlines if any order can.
        Beyond capacity it serves what is too late already, and many miss.
    Deviations from the source
        Without preemption, which the second source assumes. Several servers. What arrives is decided at once,
        as with `fcfs`.
    """

    name: ClassVar[str] = "edf"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.DEADLINES})
    degrades: ClassVar[Mapping[Need, str]] = {
        Need.DEADLINES: "It is first come, first served.",
    }

    @staticmethod
    @kernel
    def order(view: View, plan: Plan, work: Any, memory: Memory) -> float:
        """Absolute seconds of the deadline."""
        return float(work.deadline_s)
