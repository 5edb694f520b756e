"""Max-min: of all tasks that wait, the one that finishes last at best is placed first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from trimtab.compiled.kernel import kernel
from trimtab.domain.view import Memory, Plan, View, needs_of
from trimtab.policies.shared.delivery import DeliveryPolicy, rank_by_delivery


@dataclass(frozen=True)
class MaxMin(DeliveryPolicy):
    """Place the waiting task first whose earliest finish is the latest.

    Idea
        For each waiting task the node of earliest finish; of these pairs the one with the largest finish
        first.
    Source
        Muthucumaru Maheswaran, Shoukat Ali, Howard Jay Siegel, Debra Hensgen, Richard Freund: "Dynamic
        mapping of a class of independent tasks onto heterogeneous computing systems", Journal of Parallel and
        Distributed Computing 59(2), 1999, §4 (batch mode, Max-min); after Oscar Ibarra,
        Chul Kim: Journal of the ACM 24(2), 1977.
    Reads
        As `congestion-aware`, with what each node holds of a stage's inputs.
    Cost
        O(nodes) a decision; 128 decisions and more when a slot comes free while many are held.
    When it wins / loses
        Low makespan where few tasks are much longer than the others. High mean completion.
    Deviations from the source
        Mapped is what a node with room can take now, when room appears, instead of all tasks at set times.
        Compared are the first 128 held requests that have a candidate. Transfers and loads count.
    """

    name: ClassVar[str] = "max-min"
    compares: ClassVar[int] = 128

    @staticmethod
    @kernel
    def dispatch(view: View, plan: Plan, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        """Rank all nodes by expected finish; the score is the least finish, negative."""
        count = rank_by_delivery(view, needs_of(work), memory, ranking)
        least_s = ranking.score[0]
        for i in range(count):
            ranking.score[i] = -least_s
        return count
