"""Dominant-resource fairness: of the tenants that wait, the one that holds the least goes first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from trimtab.compiled.kernel import kernel
from trimtab.domain.needs import Need
from trimtab.domain.policy import LaneBy, Policy
from trimtab.domain.view import Memory, Plan, View
from trimtab.policies.shared.unmet_needs import NEVER_HELD, ONE_TENANT, SLOTS_ONLY


@dataclass(frozen=True)
class DominantResourceFairness(Policy):
    """Serve the waiting tenant whose requests hold the least of their dominant resource now.

    Idea
        A tenant's dominant share is the largest, over resources, of the part of the cluster that its requests
        at nodes hold. Whatever becomes free goes to the waiting tenant of the least dominant share by its
        weight, so that all shares rise together (progressive filling). What ends gives its share back. Each
        tenant has a queue of its own, first come first served, and keys are computed at every offer.
    Source
        Ali Ghodsi, Matei Zaharia, Benjamin Hindman, Andy Konwinski, Scott Shenker, Ion Stoica: "Dominant
        resource fairness: fair allocation of multiple resource types", NSDI 2011, §4.1 (example), §4.2
        (algorithm), §4.3 (weights). Sections and the weighted share u_ij / w_ij were checked in excerpts, the
        rest is from memory.
    Reads
        What the tenant's requests at nodes hold, its weight, and what all nodes have.
    Cost
        O(tenants × resources) for each request that is offered.
    When it wins / loses
        Wins where tenants need different resources of the same nodes: each can hold as much of what it needs
        most as any other. The past does not count: who was idle gets no more than others later, and long
        requests are no disadvantage; `drfq` shares out use over time. It governs central queues only:
        combine it with a policy that holds what does not fit, such as `best-fit`. Where nodes have queues
        without bound nothing is held, and it changes nothing.
    Deviations from the source
        Resources of all nodes, up or down, are one pool, as if any request could use any of them. A request
        counts from when it is sent to a node, whether it runs or waits there. A tenant has one weight, not
        one for each resource. A request that arrives starts at once where it fits, although others wait;
        after that shares decide. Where the first request of the least share fits nowhere, a host whose
        `lookahead` is above 1 offers the next; the algorithm ends there. With a lane for each class (the
        gateway) this holds for each class separately. Slots count as one more resource; where no other is
        modelled, this is max-min fairness of slots in use.
    """

    name: ClassVar[str] = "drf"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.SHARES_HELD, Need.DOMINANT_SHARES, Need.CENTRAL_QUEUE})
    degrades: ClassVar[Mapping[Need, str]] = {
        Need.SHARES_HELD: ONE_TENANT,
        Need.DOMINANT_SHARES: SLOTS_ONLY,
        Need.CENTRAL_QUEUE: NEVER_HELD,
    }
    lane_by: ClassVar[LaneBy] = "tenant"

    @staticmethod
    @kernel
    def order(view: View, plan: Plan, work: Any, memory: Memory) -> float:
        """The tenant's dominant share, by its weight."""
        return float(view.context.virtual_counter)
