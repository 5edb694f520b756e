"""Priority reservation: a share of the fast nodes' slots is kept for priority work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from trimtab.compiled.kernel import helper, kernel
from trimtab.domain.cluster import Cluster
from trimtab.domain.needs import Need
from trimtab.domain.parameters import OneOrMore, Range
from trimtab.domain.policy import Policy
from trimtab.domain.view import Memory, Plan, View, can_take, estimate_s, memory, needs_of, type_of_node
from trimtab.policies.load_aware.least_expected_completion import expected_completion_s
from trimtab.policies.shared.selection import NOTES, notes_room, rank_noted
from trimtab.policies.shared.unmet_needs import NO_LOADS

_EVER_S = 1e300  # more than any estimate


@helper(inline=True)
def _is_fast(view: View, work: Any, j: int, fast_s: float) -> bool:
    return bool(estimate_s(view, work, type_of_node(view, j)) <= fast_s)


@helper(inline=True)
def _is_reserved(view: View, work: Any, fast_s: float, reserve_frac: float) -> bool:
    """Whether no more than the reserved share of the fast nodes' slots is free, and slower nodes are up."""
    nodes, slots, free, any_slow = view.nodes, 0, 0, False
    for j in range(view.context.n_nodes):
        if nodes.up[j] == 1 and estimate_s(view, work, type_of_node(view, j)) < np.inf:
            if _is_fast(view, work, j, fast_s):
                slots += nodes.slots[j]
                free += max(0, nodes.slots[j] - nodes.in_flight[j])
            else:
                any_slow = True
    return any_slow and free <= int(reserve_frac * slots)


@helper(inline=True)
def _reserve(view: View, work: Any, floats: Any, fast_s: float, penalty: float) -> float:
    """Multiply the notes of fast nodes; returns the least expected completion on a full slower node."""
    full_s, nodes = np.inf, view.nodes
    for j in range(view.context.n_nodes):
        if _is_fast(view, work, j, fast_s):
            floats[NOTES + j] *= penalty
        elif floats[NOTES + j] == np.inf and nodes.up[j] == 1:
            full_s = min(full_s, expected_completion_s(view, work, j))
    return full_s


@dataclass(frozen=True)
class PriorityReservation(Policy):
    """Send priority work where it completes first; keep part of the fast nodes' slots free for it.

    Idea
        A node is fast for a request where its service takes at most `fast_ratio` times that on the best type.
        Work of `min_priority` or more goes where it is expected to complete first. So does other work while
        more than `reserve_frac` of the fast nodes' slots are free. With fewer free, its expected completion
        on fast nodes counts `penalty` times: it goes to a slower node, or waits for one, unless that takes so
        many times as long. Where no slower node is up nothing is reserved.
    Source
        Own. Reservation by a threshold on free servers, with overflow to a second group: Viên Nguyen, "On the
        optimality of trunk reservation in overflow processes", Probability in the Engineering and
        Informational Sciences 5(3), 1991. Expected completion: as `least-expected-completion`.
    Reads
        As `least-expected-completion`, and the priority.
    Cost
        O(nodes).
    When it wins / loses
        Priority work completes sooner than by `least-expected-completion`, other work later, where nodes
        differ in speed and load keeps the fast ones busy. Between equal nodes it equals
        `least-expected-completion`. It reserves nodes, not places in queues: combine it with an order that
        reads priority, such as `priority-deadline`.
    Deviations from the source
        Trunk reservation refuses what exceeds the threshold; here a large enough wait on slower nodes
        outweighs it. The group of fast nodes is another one for each class.
    """

    name: ClassVar[str] = "priority-reservation"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.RESIDENCY, Need.PRIORITIES, Need.HOLDING})
    degrades: ClassVar[Mapping[Need, str]] = {
        Need.RESIDENCY: NO_LOADS,
        Need.PRIORITIES: "All work competes for what no priority work claims.",
    }
    min_priority: int = 1
    fast_ratio: OneOrMore = 1.25  # most service on a fast node, relative to the best type
    # of the fast nodes' slots
    reserve_frac: Annotated[float, Range(0.0, 1.0, excludes_most=True)] = 0.25
    penalty: OneOrMore = 3.0  # factor on the completion of other work where slots are reserved

    def init(self, cluster: Cluster) -> Memory:
        """The parameters, and notes of the nodes."""
        params = [self.min_priority, self.fast_ratio, self.reserve_frac, self.penalty]
        return memory(params=params, floats=notes_room(cluster.n_nodes))

    @staticmethod
    @kernel
    def dispatch(view: View, plan: Plan, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        """Rank by expected completion; 0 if it is better to wait for a slower node."""
        needs, floats, params, n = needs_of(work), memory.floats, memory.params, view.context.n_nodes
        for j in range(n):
            is_able = can_take(view, needs, j)
            floats[NOTES + j] = expected_completion_s(view, needs, j) if is_able else np.inf
        full_s, fast_s = np.inf, work.estimate_s * params[1]
        if work.priority < params[0] and _is_reserved(view, needs, fast_s, params[2]):
            full_s = _reserve(view, needs, floats, fast_s, params[3])
        count = int(rank_noted(floats, ranking, n))
        return 0 if count > 0 and full_s < ranking.score[0] else count
