"""Shortest job first, by estimate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from trimtab.compiled.kernel import kernel
from trimtab.domain.policy import Policy
from trimtab.domain.view import Memory, Plan, View


@dataclass(frozen=True)
class Sjf(Policy):
    """Serve the waiting work with the least estimated service time first.

    Idea
        key = estimated service seconds on the best node type, the same on every node.
    Source
        Thomas Phipps: "Machine repair as a priority waiting-line problem", Operations Research 4(1), 1956;
        all work present at once: Wayne Smith, "Various optimizers for single-stage production", Naval
        Research Logistics Quarterly 3, 1956. From memory.
    Reads
        The estimate of the service time.
    Cost
        O(1).
    When it wins / loses
        Least mean completion at one server without preemption. Long work may starve; wrong estimates put it
        out of order.
    Deviations from the source
        Estimates stand in for true sizes, on the best type of node, whichever serves the request. Several
        servers.
    """

    name: ClassVar[str] = "sjf"

    @staticmethod
    @kernel
    def order(view: View, plan: Plan, work: Any, memory: Memory) -> float:
        """Estimated seconds of service."""
        return float(work.estimate_s)
