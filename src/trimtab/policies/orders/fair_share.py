"""Fair share: start-time fair queueing of tenants by the cost of their requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from trimtab.compiled.kernel import kernel
from trimtab.domain.view import Memory, Plan, View
from trimtab.policies.shared.unmet_needs import TenantOrder


@dataclass(frozen=True)
class FairShare(TenantOrder):
    """Give tenants equal service, by cost and weight: each request is queued by its virtual start.

    Idea
        A request's start tag is what its tenant will have been served, by cost over weight, when its turn
        comes: the tenant's account, plus the charges of those that it has waiting already. Least tag first.
        A tenant that was idle begins at the least account of those that wait, which is the virtual time.
    Source
        Pawan Goyal, Harrick Vin, Haichen Cheng: "Start-time fair queueing: a scheduling algorithm for
        integrated services packet switching networks", SIGCOMM 1996. From memory.
    Reads
        The tenant's account, and the charges of its requests that wait before this one.
    Cost
        O(1) a key. The host computes the key of a queue's first request again only when the request leaves.
    When it wins / loses
        Wins where tenants share a fleet and one floods it. As `vtc` does, which has to sift the requests of
        a tenant that was served meanwhile back into the queue one by one; with exact estimates both decide
        alike.
    Deviations from the source
        What a request costs is known at its end only: tags hold estimates. Accounts are corrected at each
        end, so later tags are right. Of those given before, one that has become too low is put right when its
        request is first in the queue; one too high stays. It exceeds the account at service, which `vtc` goes
        by, by at most the overestimates of the tenant's requests that ended since the oldest of those came
        that waited when it was given, and the charges of those that were cancelled. It governs central queues
        only; virtual time is the least account of those that wait, not the tag in service. Several servers,
        where the source has one link.
    """

    name: ClassVar[str] = "fair-share"

    @staticmethod
    @kernel
    def order(view: View, plan: Plan, work: Any, memory: Memory) -> float:
        """The virtual start."""
        return float(view.context.virtual_counter + view.context.queued_cost)
