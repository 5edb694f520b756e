"""Congestion-aware: the node of least expected completion, including the transfer over shared links."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from trimtab.compiled.kernel import helper, kernel
from trimtab.domain.cluster import Cluster
from trimtab.domain.needs import Need
from trimtab.domain.policy import Policy
from trimtab.domain.view import (
    Memory,
    Plan,
    View,
    can_take,
    estimate_s,
    memory,
    missing_load_s,
    needs_of,
    type_of_node,
)
from trimtab.policies.shared.selection import NOTES, notes_room, rank_noted
from trimtab.policies.shared.transfers import transfer_s
from trimtab.policies.shared.waits import expected_wait_s
from trimtab.policies.shared.without import NO_LINKS, NO_LOADS, NO_ROUND_TRIPS


@helper(inline=True)
def delivered_completion_s(view: View, work: Any, j: int) -> float:
    """Expected seconds until node j has served this work, including the transfer; j can serve the work."""
    start_s = max(transfer_s(view, work, j), expected_wait_s(view, j))
    return start_s + missing_load_s(view, work, j) + estimate_s(view, work, type_of_node(view, j))


@dataclass(frozen=True)
class CongestionAware(Policy):
    """Send each request to where it is expected to complete first, transfer over shared links included.

    Idea
        completion(node) = max(transfer, wait) + model load + service. transfer = round trip + the sum of
        payload × (transfers under way + 1) / bandwidth over the links of the path. The node works off its
        backlog during the transfer, so only the longer of the two counts.
    Source
        Henri Casanova, Arnaud Legrand, Dmitrii Zagorodnov, Francine Berman: "Heuristics for scheduling
        parameter sweep applications in grid environments", Heterogeneous Computing Workshop, 2000 (completion
        times with transfers over shared links). From memory.
    Reads
        As `least-expected-completion`; the request's payload and zone; round trips; bandwidth and
        transfers under way of each link.
    Cost
        O(nodes).
    When it wins / loses
        Wins where payloads take as long as service and links are shared: work spreads over links as well as
        nodes. Without payloads and zones the policy equals `least-expected-completion`. The policy does not
        foresee transfers that have yet to start. With old reports of links, dispatchers herd on a link that
        was free.
    Deviations from the source
        Online, one request at a time. The estimate assumes that a transfer shares its links with the present
        transfers until it ends. There is no cache of files. Of the source's heuristics it is the plain
        minimum completion time; its XSufferage, and its schedule that is computed anew for all waiting tasks,
        are left out.
    """

    name: ClassVar[str] = "congestion-aware"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.RESIDENCY, Need.ZONES, Need.LINKS})
    degrades: ClassVar[Mapping[Need, str]] = {
        Need.RESIDENCY: NO_LOADS,
        Need.ZONES: NO_ROUND_TRIPS,
        Need.LINKS: NO_LINKS,
    }

    def init(self, cluster: Cluster) -> Memory:
        """Notes of the nodes."""
        return memory(floats=notes_room(cluster.n_nodes))

    @staticmethod
    @kernel
    def dispatch(view: View, plan: Plan, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        """Rank all nodes by expected completion."""
        needs, floats = needs_of(work), memory.floats
        for j in range(view.context.n_nodes):
            is_able = can_take(view, needs, j)
            floats[NOTES + j] = delivered_completion_s(view, needs, j) if is_able else np.inf
        return int(rank_noted(floats, ranking, view.context.n_nodes))
