"""Dominant-resource fair queueing: of the tenants that wait, the one that has had the least goes first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from trimtab.compiled.kernel import kernel
from trimtab.domain.needs import Need
from trimtab.domain.view import Memory, Plan, View
from trimtab.policies.shared.unmet_needs import SLOTS_ONLY, TenantOrder


@dataclass(frozen=True)
class DominantResourceFairQueueing(TenantOrder):
    """Serve the waiting tenant that has had the least dominant-resource time so far.

    Idea
        A request costs its dominant share, the largest part of the cluster that it holds of any resource,
        times how long it holds it. The key of a request is the sum over its tenant's requests so far, by the
        tenant's weight, which the host keeps as a virtual counter. So one tenant's cores are worth another's
        accelerators, each relative to the total. The host computes the key of the first request in the queue
        again before it takes it out.
    Source
        Ali Ghodsi, Vyas Sekar, Matei Zaharia, Ion Stoica: "Multi-resource fair queueing for packet
        processing", SIGCOMM 2012, §5.4: memoryless DRFQ. Read in excerpts and in another's implementation
        (jahnavi0805/DRFQ).
    Reads
        The tenant's virtual counter when the request is offered.
    Cost
        O(1) a key; each time the first has grown, one more pass through the queue's heap. O(resources) per
        request sent and ended.
    When it wins / loses
        Wins where tenants need different resources and compete for the same nodes. Shares by cost or by slots
        would give a tenant of small demands as little as a tenant of large ones. A tenant of long requests
        waits until others have had as much; `drf` divides what is in use at each moment. Does nothing for
        requests within a tenant. Combine it with a policy that holds requests that do not fit, such as
        `best-fit`, because it governs central queues only.
    Deviations from the source
        The source orders packets by start tags given on arrival: the larger of virtual time and the finish
        tag of the packet before, which is its start tag and its largest processing time by weight; here the
        counter when a request is offered counts, as in `vtc`. A request is charged what it is expected to
        hold when it is sent, and what it held when it ends, which may leave a key too high until its request
        is offered; virtual time is the least counter of those that wait, not the largest tag in service. A
        tenant that alternates between resources is charged the dominant one of each request; the source's
        dovetailing is left out. Resources of all nodes are one pool, as if any request could use any of them.
        Slots count as one more resource. In the gateway a change of its nodes charges running requests anew.
    """

    name: ClassVar[str] = "drfq"
    needs: ClassVar[frozenset[Need]] = TenantOrder.needs | {Need.DOMINANT_SHARES}
    degrades: ClassVar[Mapping[Need, str]] = {**TenantOrder.degrades, Need.DOMINANT_SHARES: SLOTS_ONLY}

    @staticmethod
    @kernel
    def order(view: View, plan: Plan, work: Any, memory: Memory) -> float:
        """The tenant's dominant-resource time so far, in seconds of the whole cluster."""
        return float(view.context.virtual_counter)
