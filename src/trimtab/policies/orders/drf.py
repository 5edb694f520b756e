"""Dominant-resource fairness: of the tenants that wait, the one with the least dominant share goes first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from trimtab.compiled.kernel import kernel
from trimtab.domain.needs import Need
from trimtab.domain.policy import Policy
from trimtab.domain.view import Memory, Plan, View
from trimtab.policies.shared.without import NEVER_HELD


@dataclass(frozen=True)
class DominantResourceFairness(Policy):
    """Serve the waiting tenant whose most-used resource it has had the least of so far.

    Idea
        A tenant's dominant share is the largest, over resources, of the fraction of the cluster that its
        requests have held, times how long. The key of a request is the dominant share of its tenant so far,
        which the host keeps as a virtual counter. So one tenant's cores are worth another's accelerators,
        each relative to the total. The host computes the key of the first request in the queue again before
        it takes it out.
    Source
        Ali Ghodsi, Matei Zaharia, Benjamin Hindman, Andy Konwinski, Scott Shenker, Ion Stoica: "Dominant
        resource fairness: fair allocation of multiple resource types", NSDI 2011; over time: Ali Ghodsi,
        Vyas Sekar, Matei Zaharia, Ion Stoica: "Multi-resource fair queueing for packet processing", SIGCOMM
        2012 (dominant-resource fair queueing, memoryless).
    Reads
        The tenant's virtual counter when the request is offered.
    Cost
        O(1) a key; each time the first has grown, one more pass through the queue's heap. O(resources) per
        request sent and ended.
    When it wins / loses
        Wins where tenants need different resources and compete for the same nodes. Shares by cost or by slots
        would give a tenant of small demands as little as a tenant of large ones. Does nothing for requests
        within a tenant. Combine it with a policy that holds requests that do not fit, such as `best-fit`,
        because it governs central queues only.
    Deviations from the source
        A request is charged what it is expected to hold when it is sent, and what it held when it ends, which
        may leave a key too high until its request is offered; virtual time is the least account of those that
        wait. Resources of all nodes are one pool, as if any request could use any of them. Where no resources
        are modelled, slots are the only one; in the gateway accounts are what it books, as for `vtc`.
    """

    name: ClassVar[str] = "drf"
    needs: ClassVar[frozenset[Need]] = frozenset(
        {Need.VIRTUAL_COUNTERS, Need.DOMINANT_SHARES, Need.CENTRAL_QUEUE}
    )
    degrades: ClassVar[Mapping[Need, str]] = {
        Need.VIRTUAL_COUNTERS: "With one tenant it is first come, first served.",
        Need.DOMINANT_SHARES: "The counters are of slots; in a gateway, of cost.",
        Need.CENTRAL_QUEUE: NEVER_HELD,
    }

    @staticmethod
    @kernel
    def order(view: View, plan: Plan, work: Any, memory: Memory) -> float:
        """The tenant's dominant share so far, in seconds of the whole cluster."""
        return float(view.context.virtual_counter)
