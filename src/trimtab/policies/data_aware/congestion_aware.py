"""Congestion-aware: the node of least expected completion, including the transfer over shared links."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from trimtab.policies.shared.delivery import DeliveryPolicy


@dataclass(frozen=True)
class CongestionAware(DeliveryPolicy):
    """Send each request to where it is expected to complete first, transfer over shared links included.

    Idea
        completion(node) = max(transfer, wait) + model load + service. transfer = round trip + the sum of
        payload × (transfers under way + 1) / bandwidth over the links of the path; in a network, whose links
        carry a flow at once, that of the fullest link of the route. The node works off its backlog during the
        transfer, so only the longer of the two counts.
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
