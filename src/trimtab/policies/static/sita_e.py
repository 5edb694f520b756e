"""Size interval task assignment with equal load: each node serves requests of one range of sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from trimtab.compiled.kernel import helper, kernel
from trimtab.domain.cluster import Cluster
from trimtab.domain.parameters import Positive
from trimtab.domain.planning import History
from trimtab.domain.policy import Policy
from trimtab.domain.view import Memory, Plan, View, can_take, empty_plan, memory
from trimtab.policies.shared.selection import next_able, rank_from, uniform_able


@helper(inline=True)
def _n_below(values: Any, at: int, count: int, limit: float, or_equal: bool) -> int:
    """How many of `count` rising values from `at` on are below the limit, or at it."""
    low, high = 0, count
    while low < high:
        middle = (low + high) >> 1
        value = values[at + middle]
        if value < limit or (or_equal and value == limit):
            low = middle + 1
        else:
            high = middle
    return low


@helper(inline=True)
def _load_below(params: Any, n_sizes: int, size_s: float, u: float) -> float:
    """Share of all load that comes from smaller requests; among requests of one size u in [0, 1) decides."""
    below = _n_below(params, 0, n_sizes, size_s, False)
    upto = _n_below(params, 0, n_sizes, size_s, True)
    least = params[n_sizes + below - 1] if below > 0 else 0.0
    most = params[n_sizes + upto - 1] if upto > 0 else 0.0
    return float(least + u * (most - least))


@dataclass(frozen=True)
class SitaE(Policy):
    """Give each node requests of one range of sizes, with ranges such that all nodes get equal load.

    Idea
        Cutoffs x₁ < x₂ < … divide the sizes so that the requests between two of them carry a node's share of
        the total work: ∫ x dF(x) from xᵢ₋₁ to xᵢ is the same for all nodes. So the sizes at each node vary
        little, and small requests never wait behind large ones. Every `plan_period_s` the cutoffs are
        computed from the sizes of the last 4096 requests. Second candidate: the next able node.
    Source
        Mor Harchol-Balter, Mark Crovella, Cristina Murta: "On choosing a task assignment policy for a
        distributed server system", Journal of Parallel and Distributed Computing 59(2), 1999, §2 and §4
        (SITA-E).
    Reads
        The estimated service time of the request on the best node type; weights of nodes; in `plan`, sizes of
        recent arrivals; which nodes are up, have room and serve the class.
    Cost
        O(log arrivals remembered + log nodes) a decision; a plan sorts them.
    When it wins / loses
        Wins by orders of magnitude over `lwl` where sizes are heavy-tailed and known. Where sizes vary little
        it is no better than `random`, as it does not look at queues. Loses when the sizes change faster than
        the plan, or classes run on different nodes.
    Deviations from the source
        Sizes are estimates, their distribution that of recent arrivals. Nodes may be unequal: a node's share
        of the load is its share of the capacity, and slower nodes take smaller sizes. Where many requests
        have the same size and a cutoff falls on it, chance divides them. Nodes that cannot take a request
        pass it on to the next one. Before the first plan requests go to random nodes.
    """

    name: ClassVar[str] = "sita-e"
    draws = 1
    plan_period_s: Positive = 5.0

    def init(self, cluster: Cluster) -> Memory:
        """The nodes, slowest first; the share of the capacity of each and all before it."""
        order = np.argsort(cluster.weight / cluster.slots, kind="stable")
        return memory(ints=order, floats=np.cumsum(cluster.weight[order]) / cluster.weight.sum())

    def plan(self, view: View, history: History, waiting: Any, rollout: Any) -> Plan | None:
        """The sizes that came, in rising order, then the share of all load of each and the smaller ones."""
        size_s = history.work["estimate_s"]
        sizes, counts = np.unique(size_s[np.isfinite(size_s) & (size_s > 0.0)], return_counts=True)
        if not len(sizes):
            return None
        load = np.cumsum(sizes * counts)
        return empty_plan()._replace(params=np.concatenate([sizes, load / load[-1]]))

    @staticmethod
    @kernel
    def dispatch(view: View, plan: Plan, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        """Take the node whose range of sizes has the request's."""
        n, n_sizes = view.context.n_nodes, len(plan.params) // 2
        if n_sizes == 0:
            j = uniform_able(view, work, draws[0])
        else:
            load = _load_below(plan.params, n_sizes, work.estimate_s, draws[0])
            j = memory.ints[min(_n_below(memory.floats, 0, n, load, True), n - 1)]
            if not can_take(view, work, j):
                j = next_able(view, work, j + 1)
        return rank_from(view, work, ranking, j)
