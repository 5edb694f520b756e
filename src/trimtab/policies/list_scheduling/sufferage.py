"""Sufferage: of all tasks that wait, the one that loses most without its best node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from trimtab.compiled.kernel import kernel
from trimtab.domain.view import Memory, Plan, View, can_take, needs_of, type_of_node
from trimtab.policies.shared.delivery import DeliveryPolicy, delivered_completion_s
from trimtab.policies.shared.selection import NOTES, rank_noted


@dataclass(frozen=True)
class Sufferage(DeliveryPolicy):
    """Place the waiting task first that would lose most if it did not get its best node.

    Idea
        sufferage = finish on the second best node − finish on the best one, among all nodes that serve the
        task, those without room too. Largest sufferage first, on the best node that has room.
    Source
        Muthucumaru Maheswaran, Shoukat Ali, Howard Jay Siegel, Debra Hensgen, Richard Freund: "Dynamic
        mapping of a class of independent tasks onto heterogeneous computing systems", Journal of Parallel and
        Distributed Computing 59(2), 1999, §4 (batch mode, Sufferage).
    Reads
        As `congestion-aware`, with what each node holds of a stage's inputs.
    Cost
        O(nodes) a decision; 128 decisions and more when a slot comes free while many are held.
    When it wins / loses
        Wins where nodes are unrelated and each task has a node that suits it. Nodes alike: all sufferages are
        small, and the order among tasks is nearly that of arrival.
    Deviations from the source
        Mapped is what a node with room can take now, when room appears, instead of all tasks at set times.
        Compared are the first 128 held requests that have a candidate. Transfers and loads count. A node
        without room counts for the sufferage with its expected wait, and gets nothing.
    """

    name: ClassVar[str] = "sufferage"
    compares: ClassVar[int] = 128

    @staticmethod
    @kernel
    def dispatch(view: View, plan: Plan, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        """Rank nodes with room by expected finish; the score is the sufferage, negative."""
        needs, floats = needs_of(work), memory.floats
        first_s, second_s = np.inf, np.inf
        for j in range(view.context.n_nodes):
            floats[NOTES + j] = np.inf
            if view.nodes.up[j] == 1 and view.fixed_s[needs.class_idx, type_of_node(view, j)] < np.inf:
                finish_s = delivered_completion_s(view, needs, j)
                second_s = min(second_s, max(first_s, finish_s))
                first_s = min(first_s, finish_s)
                if can_take(view, needs, j):
                    floats[NOTES + j] = finish_s
        count = rank_noted(floats, ranking, view.context.n_nodes)
        lost_s = second_s - first_s if second_s < np.inf else np.inf
        for i in range(count):
            ranking.score[i] = -lost_s
        return int(count)
