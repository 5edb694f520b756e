"""Virtual token counter: of the tenants that wait, the one that was served least goes first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from trimtab.compiled.kernel import kernel
from trimtab.domain.view import Memory, Plan, View
from trimtab.policies.shared.unmet_needs import TenantOrder


@dataclass(frozen=True)
class VirtualTokenCounter(TenantOrder):
    """Serve the waiting tenant that has been served the fewest weighted tokens so far.

    Idea
        The host keeps a virtual counter for each tenant: the cost of its service so far. The key of a request
        is its tenant's counter. Counters only grow, so the host computes the key of the first request again
        before it takes it out, which finds the tenant with the lowest counter exactly. Within a tenant
        requests are served in order of arrival. A tenant that returns from idleness starts at the lowest
        counter of the waiting tenants.
    Source
        Ying Sheng, Shiyi Cao, Dacheng Li, Banghua Zhu, Zhuohan Li, Danyang Zhuo, Joseph E. Gonzalez, Ion
        Stoica: "Fairness in serving large language models", OSDI 2024, algorithm 2; its bound: theorem 4.4
        (both from memory). The authors' code was read (Ying1123/VTC-artifact,
        slora/server/router/vtc_req_queue.py).
    Reads
        The tenant's virtual counter when the request is offered.
    Cost
        O(1) a key; each time the first has grown, one more pass through the queue's heap.
    When it wins / loses
        Wins where tenants share a fleet and one floods it: the others' share is kept. Does nothing for
        requests within a tenant.
    Deviations from the source
        The counter is charged with a request's known part when it is sent, as in the paper, and with its
        output as the host learns of it; the simulator books the estimate first and corrects it at the end,
        where a correction downwards can leave a key too high until its request is offered. Priorities are not
        read. It governs central queues only, not those inside nodes. The source admits requests to the batch
        of one server, and stops where the next one does not fit; here each free place of a node takes one,
        and a host with a `lookahead` above 1 offers later ones too. Where none waits, a tenant that returns
        is lifted to the counter of the tenant that left the queue last, as in algorithm 2; the authors' code
        leaves it as it is.
    """

    name: ClassVar[str] = "vtc"

    @staticmethod
    @kernel
    def order(view: View, plan: Plan, work: Any, memory: Memory) -> float:
        """The tenant's account."""
        return float(view.context.virtual_counter)
