"""Oldest run first: stages in the order of arrival of their runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from trimtab.compiled.kernel import kernel
from trimtab.domain.needs import Need
from trimtab.domain.policy import Policy
from trimtab.domain.view import Memory, Plan, View
from trimtab.policies.shared.unmet_needs import PLAIN_REQUESTS

_RANK_WEIGHT = 1e-9  # decides between stages of one run only


@dataclass(frozen=True)
class FairRuns(Policy):
    """Serve the waiting stages of the oldest run first.

    Idea
        key = arrival of the run; among stages of one run the longest remaining critical path first. No later
        run overtakes an earlier one at the queue. `fcfs` orders by the time when the stage became ready, so a
        run waits anew behind all others at each of its stages.
    Source
        Own, for stages. First come, first served among jobs is the default of Hadoop and Spark: Matei
        Zaharia, Dhruba Borthakur, Joydeep Sen Sarma, Khaled Elmeleegy, Scott Shenker, Ion Stoica: "Delay
        scheduling", EuroSys 2010, §2 (FIFO). From memory.
    Reads
        The arrival of the run and the estimated remaining critical path.
    Cost
        O(1).
    When it wins / loses
        Low tail of run completion where runs are of similar size. A large run delays small ones behind it.
    Deviations from the source
        None of an own order.
    """

    name: ClassVar[str] = "fair-runs"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.CHAINS})
    degrades: ClassVar[Mapping[Need, str]] = {Need.CHAINS: PLAIN_REQUESTS}

    @staticmethod
    @kernel
    def order(view: View, plan: Plan, work: Any, memory: Memory) -> float:
        """Absolute seconds: arrival of the run."""
        return float(work.run_arrival_s - _RANK_WEIGHT * work.rank_s)
