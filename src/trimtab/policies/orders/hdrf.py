"""Hierarchical dominant-resource fairness: down a tree of queues, the one that holds the least goes first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from trimtab.compiled.kernel import kernel
from trimtab.domain.needs import Need
from trimtab.domain.policy import LaneBy, Policy
from trimtab.domain.view import Memory, Plan, View
from trimtab.policies.shared.unmet_needs import NEVER_HELD, NO_QUEUES, ONE_TENANT, SLOTS_ONLY


@dataclass(frozen=True)
class HierarchicalDominantResourceFairness(Policy):
    """From the root down, serve the waiting queue whose requests hold the least of their dominant resource.

    Idea
        A queue's dominant share is the largest, over resources, of the part of the cluster that it holds. At
        each level of the tree the child of the least share by its weight goes first. What an inner queue
        holds is the sum over its children, where those that wait are scaled down to the least share among
        them: a child that no resource stops from growing does not count against a sibling that lags.
        Children that have nothing to send are blocked, and count in full. In a leaf the order is the one that
        the queue declares: by arrival, by priority, or the tenant first that holds the least.
    Source
        Arka Bhattacharya, David Culler, Eric Friedman, Ali Ghodsi, Scott Shenker, Ion Stoica: "Hierarchical
        scheduling for diverse datacenter workloads", SoCC 2013: dynamic H-DRF, with its two rules, rescaling
        to the minimum and ignoring blocked nodes. From memory, and from summaries of it.
    Reads
        The shares that queues hold at nodes, weights, guarantees and orders; all of it in the host's tree.
    Cost
        O(tenants × depth + queues × resources) for each request that is offered.
    When it wins / loses
        Wins where departments share a fleet and their teams share what the department has: what a team leaves
        goes to its own department first. With one level of queues, one tenant each, it is `drf`, decision for
        decision. It governs central queues only: combine it with a policy that holds what does not fit.
        Limits and guarantees hold under every order; only this one reads weights and orders of queues.
    Deviations from the source
        A queue below its guarantee goes before siblings that are not, as in YARN's Fair Scheduler; the source
        has weights only. A queue is blocked if it holds no request that limits allow; the source also calls
        one blocked whose next task needs a resource that is used up. A request that arrives starts at once
        where it fits and no limit forbids it, although others wait. Among held requests that a policy
        compares by score, the tree goes first. In queues of nodes the key is the share of the top queue when
        the request comes there.
    """

    name: ClassVar[str] = "hdrf"
    needs: ClassVar[frozenset[Need]] = frozenset(
        {Need.QUEUES, Need.SHARES_HELD, Need.DOMINANT_SHARES, Need.CENTRAL_QUEUE}
    )
    degrades: ClassVar[Mapping[Need, str]] = {
        Need.QUEUES: NO_QUEUES,
        Need.SHARES_HELD: ONE_TENANT,
        Need.DOMINANT_SHARES: SLOTS_ONLY,
        Need.CENTRAL_QUEUE: NEVER_HELD,
    }
    lane_by: ClassVar[LaneBy] = "tenant"

    @staticmethod
    @kernel
    def order(view: View, plan: Plan, work: Any, memory: Memory) -> float:
        """The share of the tenant's top queue, by its weight; without queues the tenant's."""
        return float(view.context.virtual_counter)
