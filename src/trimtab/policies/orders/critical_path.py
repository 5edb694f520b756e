"""Critical path first: the waiting work with the longest remaining path of its run."""

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
class CriticalPath(Policy):
    """Serve the waiting stage first from whose start the run takes longest.

    Idea
        key = −(estimated seconds from the start of the stage to the end of its run, on the longest path).
    Source
        Thomas Hu: "Parallel sequencing and assembly line problems", Operations Research 9(6), 1961 (highest
        level first; optimal for trees of unit tasks on equal machines). From memory.
    Reads
        The estimated remaining critical path.
    Cost
        O(1).
    When it wins / loses
        Least makespan of one run, nearly, on equal nodes. Of several runs it serves the least advanced first,
        so that all end late: `fair-runs` or `downstream-aware` have the lower mean.
    Deviations from the source
        Stages of unequal length, estimated over all nodes that serve them. Runs arrive over time. What
        follows a stage is known by its declaration only.
    """

    name: ClassVar[str] = "critical-path"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.CHAINS})
    degrades: ClassVar[Mapping[Need, str]] = {Need.CHAINS: PLAIN_REQUESTS}

    @staticmethod
    @kernel
    def order(view: View, plan: Plan, work: Any, memory: Memory) -> float:
        """Estimated seconds on the remaining critical path, negative."""
        return float(-work.rank_s)
