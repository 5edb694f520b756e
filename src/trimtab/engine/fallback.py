"""The fallback of a failed policy: the node with the fewest requests in flight per slot."""

from __future__ import annotations

from typing import Any

from trimtab.compiled.kernel import kernel
from trimtab.domain.policy import Policy
from trimtab.domain.view import Memory, Plan, View, can_take


class Fallback(Policy):
    """Least connections by a scan without memory, so it can decide at any time. O(nodes)."""

    @staticmethod
    @kernel
    def dispatch(view: View, plan: Plan, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        """Choose the node that can take the work and has the least in flight per slot, ties by node."""
        best, nodes = -1, view.nodes
        for j in range(view.context.n_nodes):
            if can_take(view, work, j) and (
                best < 0 or nodes.in_flight[j] * nodes.slots[best] < nodes.in_flight[best] * nodes.slots[j]
            ):
                best = j
        ranking[0] = best
        return 1 if best >= 0 else 0
