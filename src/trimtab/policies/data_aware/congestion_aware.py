"""Congestion-aware: the node of least expected completion, including the transfer over shared links."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from trimtab.compiled.kernel import kernel
from trimtab.domain.cluster import Cluster
from trimtab.domain.needs import Need
from trimtab.domain.policy import Policy
from trimtab.domain.view import Memory, Plan, View, memory, needs_of
from trimtab.policies.shared.delivery import WITHOUT_DELIVERY, rank_by_delivery
from trimtab.policies.shared.selection import notes_room


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
        times with transfers over shared links; from memory, only the abstract was read).
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
    degrades: ClassVar[Mapping[Need, str]] = WITHOUT_DELIVERY

    def init(self, cluster: Cluster) -> Memory:
        """Notes of the nodes."""
        return memory(floats=notes_room(cluster.n_nodes))

    @staticmethod
    @kernel
    def dispatch(view: View, plan: Plan, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        """Rank all nodes by expected completion."""
        return rank_by_delivery(view, needs_of(work), memory, ranking)
