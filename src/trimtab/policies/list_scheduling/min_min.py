"""Min-min: of all tasks that wait, the one that finishes soonest is placed first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from trimtab.policies.shared.delivery import DeliveryPolicy


@dataclass(frozen=True)
class MinMin(DeliveryPolicy):
    """Place the waiting task first whose earliest finish is the soonest.

    Idea
        For each waiting task the node of earliest finish; of these pairs the one with the least finish
        first.
    Source
        Muthucumaru Maheswaran, Shoukat Ali, Howard Jay Siegel, Debra Hensgen, Richard Freund: "Dynamic
        mapping of a class of independent tasks onto heterogeneous computing systems", Journal of Parallel and
        Distributed Computing 59(2), 1999, §4 (batch mode, Min-min); after Oscar Ibarra,
        Chul Kim: Journal of the ACM 24(2), 1977.
    Reads
        As `congestion-aware`, with what each node holds of a stage's inputs.
    Cost
        O(nodes) a decision; 128 decisions and more when a slot comes free while many are held.
    When it wins / loses
        Low mean completion: short tasks first. Long tasks are left for last, which costs makespan.
    Deviations from the source
        Mapped is what a node with room can take now, when room appears, instead of all tasks at set times.
        Compared are the first 128 held requests that have a candidate. Transfers and loads count.
    """

    name: ClassVar[str] = "min-min"
    compares: ClassVar[int] = 128
