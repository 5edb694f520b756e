"""Hungarian: matches waiting requests to the slots that become free, a few times a second."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from trimtab.compiled.kernel import helper, kernel
from trimtab.domain.cluster import Floats, Ints
from trimtab.domain.needs import Need
from trimtab.domain.parameters import NonNegative, Positive, Tunable
from trimtab.domain.planning import History
from trimtab.domain.view import (
    BINDING,
    Memory,
    Plan,
    View,
    can_take,
    empty_plan,
    needs_of,
    own_s,
)
from trimtab.policies.shared.demand_forecast import loads_s, remaining_s, services_s
from trimtab.policies.shared.selection import NOTES, NotingPolicy, rank_noted
from trimtab.policies.shared.unmet_needs import NO_LOADS

MOST_SLOTS = 512  # that one matching looks at, the soonest free
KEPT_PERIODS = 4  # how long a binding lasts where no new plan comes


@helper
def is_promised(view: View, plan: Plan, serial: int) -> bool:
    """Whether the plan binds a request now. O(bindings)."""
    for i in range(len(plan.binding.serial)):
        if plan.binding.serial[i] == serial:
            return bool(view.context.now_s <= plan.binding.expires_s[i])
    return False


def slots_ahead(view: View) -> tuple[Ints, Floats]:
    """Slots of the nodes that are up: node and seconds until free, the soonest first, both [slots].

    What remains of a node's work is shared evenly by its busy slots, which end evenly spread over time.
    """
    nodes = view.nodes
    busy = np.minimum(nodes.in_flight, nodes.slots)
    node = np.repeat(np.arange(len(nodes)), np.where(nodes.up == 1, nodes.slots, 0))
    place = np.arange(len(node)) - np.searchsorted(node, node)  # 0 … of the slots of a node
    turn = place - (nodes.slots - busy)[node] + 1  # 1 … of the busy ones; the idle ones come first
    mean_s = (remaining_s(view) / np.maximum(busy, 1))[node]
    free_s = np.where(turn > 0, mean_s * 2.0 * turn / (busy[node] + 1.0), 0.0)
    soonest = np.argsort(free_s, kind="stable")[:MOST_SLOTS]
    return node[soonest], free_s[soonest]


def least_cost(cost_s: Floats, aged_s: Floats) -> Ints:
    """The matching [requests] of costs [requests, slots] at least total cost; -1 = left out.

    Leaving out costs a second more than the dearest slot, and the request's `aged_s` [requests].
    """
    from trimtab.solvers import assignment_problem, solve  # with the first plan: it takes a second

    worst_s = np.max(cost_s, initial=0.0, where=np.isfinite(cost_s)) + 1.0
    problem = assignment_problem(
        cost_s, np.ones(cost_s.shape), np.ones(cost_s.shape[1]), optional=True, skip_value=worst_s + aged_s
    )
    return solve(problem).assignment.astype(np.int64)


@dataclass(frozen=True)
class Hungarian(NotingPolicy):
    """Send a request to an idle node at once; match waiting requests to slots at least total cost.

    Idea
        With an idle node that serves it, a request goes to the one where load and service take least. Else
        it is held. Every `plan_period_s` the held requests are matched to slots: cost(request, slot) =
        seconds until the slot is free + model load + service, all estimated, and the sum of costs is least;
        leaving a request out costs more than any slot, and more by `ageing` for every second that it has
        waited. A matched request gets its slot before others are offered it, and waits for it meanwhile.
    Source
        Harold Kuhn: "The Hungarian method for the assignment problem", Naval Research Logistics Quarterly
        2(1–2), 1955; mapping in batches at regular intervals: Muthucumaru Maheswaran, Shoukat Ali, Howard Jay
        Siegel, Debra Hensgen, Richard Freund: "Dynamic mapping of a class of independent tasks onto
        heterogeneous computing systems", Journal of Parallel and Distributed Computing 59(2), 1999 (batch
        mode). From memory.
    Reads
        The first held requests and what they need; backlog, in-flight requests and resident models of each
        node; the bindings of its plan.
    Cost
        O(nodes + bindings) a decision; a plan is a linear assignment of at most 256 requests and 512 slots,
        O(requests² · slots).
    When it wins / loses
        Wins under load, where it gives a slot to a request whose model is loaded there, and where
        nodes are unrelated. At low load no request waits, and the policy takes the fastest idle node. All
        waiting is central, so with long round trips slots stay idle.
    Deviations from the source
        Solved by shortest augmenting paths, which find the same optimum. Nodes have several slots. A request
        may be left out. A new request goes to an idle node at once. At most 256 requests and the 512 slots
        that are free soonest take part. The price of leaving a request out, and its growth with the wait, are
        trimtab's own; the batch heuristics of the second source are min-min, max-min and sufferage, not a
        matching.
    """

    name: ClassVar[str] = "hungarian"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.RESIDENCY, Need.HOLDING})
    degrades: ClassVar[Mapping[Need, str]] = {
        Need.RESIDENCY: NO_LOADS,
    }
    binds: ClassVar[bool] = True
    plan_period_s: Positive = 0.25
    ageing: Annotated[NonNegative, Tunable(0.1, 4.0, "log")] = 1.0

    def plan(self, view: View, history: History, waiting: Any, rollout: Any) -> Plan | None:
        """Bind what waits to slots."""
        if not len(waiting):
            return None
        node, free_s = slots_ahead(view)
        if not len(node):
            return None
        slot = self.match(view, waiting, node, free_s)
        matched = np.flatnonzero(slot >= 0)
        binding = np.zeros(len(matched), BINDING)
        binding["serial"], binding["node_idx"] = waiting["serial"][matched], node[slot[matched]]
        binding["expires_s"] = view.context.now_s + KEPT_PERIODS * self.plan_period_s
        return empty_plan()._replace(binding=binding)

    def match(self, view: View, waiting: Any, node: Ints, free_s: Floats) -> Ints:
        """The slot of each request that waits, no slot twice, -1 = left out, [at most the requests].

        `node` and `free_s` [slots] are those of `slots_ahead`.
        """
        cost_s = (
            free_s + loads_s(view, waiting)[:, node] + services_s(view, waiting)[:, view.nodes.type_idx[node]]
        )
        return least_cost(cost_s, self.ageing * (view.context.now_s - waiting["arrival_s"]))

    @staticmethod
    @kernel
    def dispatch(view: View, plan: Plan, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        """Rank idle nodes by load and service; hold a request that has a promised slot or no idle node."""
        if is_promised(view, plan, work.serial):
            return 0
        nodes, needs, floats = view.nodes, needs_of(work), memory.floats
        for j in range(view.context.n_nodes):
            is_idle = nodes.in_flight[j] < nodes.slots[j] and can_take(view, needs, j)
            floats[NOTES + j] = own_s(view, needs, j) if is_idle else np.inf
        return int(rank_noted(floats, ranking, view.context.n_nodes))
