"""Least expected completion: the node on which this request is expected to end first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from trimtab.compiled.kernel import helper, kernel
from trimtab.domain.cluster import Cluster
from trimtab.domain.parameters import NonNegative
from trimtab.domain.view import Memory, Plan, View, can_take, memory, missing_load_s, needs_of, own_s
from trimtab.policies.shared.node_words import n_groups, refresh_nodes
from trimtab.policies.shared.selection import NOTES, notes_room, rank_noted
from trimtab.policies.shared.unmet_needs import LoadsPolicy
from trimtab.policies.shared.wait_index import (
    completion_cost,
    is_indexable,
    n_kinds,
    own_of_kind_s,
    rank_free_by_own,
    rank_waiting,
    wait_index,
)
from trimtab.policies.shared.waits import expected_wait_s


@helper(inline=True)
def expected_completion_s(view: View, work: Any, j: int) -> float:
    """Expected seconds until node j, which can serve it, has served this work: wait, load and service."""
    return expected_wait_s(view, j) + own_s(view, work, j)


@helper(inline=True)
def note_waits(view: View, work: Any, floats: Any) -> float:
    """Note each node's expected wait, inf where it can't take the work; returns the least."""
    least_s = np.inf
    for j in range(view.context.n_nodes):
        wait_s = expected_wait_s(view, j) if can_take(view, work, j) else np.inf
        floats[NOTES + j] = wait_s
        least_s = min(least_s, wait_s)
    return least_s


@helper
def _rank_indexed(view: View, memory: Memory, work: Any, ranking: Any) -> int:
    """As the scan, by the index. Free nodes come first, because they bound the waits that count."""
    refresh_nodes(view, memory)
    count = rank_free_by_own(view, memory, work, ranking)
    for g in range(n_groups(memory)):
        for kind in range(n_kinds(work)):
            own_s = own_of_kind_s(view, memory, work, g, kind)
            if own_s < np.inf:
                count = rank_waiting(view, memory, work, ranking, count, g, kind, completion_cost(own_s))
    return int(count)


@helper
def rank_by_completion(view: View, memory: Memory, work: Any, ranking: Any) -> int:
    """Rank all nodes by expected completion."""
    if memory.params[0] == 1.0:
        return int(_rank_indexed(view, memory, work, ranking))
    floats, w_load = memory.floats, memory.params[1]
    for j in range(view.context.n_nodes):
        score_s = expected_completion_s(view, work, j) if can_take(view, work, j) else np.inf
        floats[NOTES + j] = score_s if w_load == 0.0 else score_s + w_load * missing_load_s(view, work, j)
    return int(rank_noted(floats, ranking, view.context.n_nodes))


@dataclass(frozen=True)
class LeastExpectedCompletion(LoadsPolicy):
    """Send each request to the node where it is expected to complete first.

    Idea
        completion(node) = wait + model load + service, all estimated: wait = what is queued and what remains
        of running work, per slot (0 while a slot is free); load = seconds to load the models that the node
        lacks. Least first, ties by node. With `w_load` each second of loading counts as so many more.
    Source
        Muthucumaru Maheswaran, Shoukat Ali, Howard Jay Siegel, Debra Hensgen, Richard Freund: "Dynamic
        mapping of a class of independent tasks onto heterogeneous computing systems", Journal of Parallel and
        Distributed Computing 59(2), 1999, §3 (on-line mode, MCT); after Oscar Ibarra, Chul Kim: "Heuristic
        algorithms for scheduling independent tasks on nonidentical processors", Journal of the ACM 24(2),
        1977.
    Reads
        Backlog and its time, running and in-flight requests, slots, resident models of each node; the
        estimated service time of this request per node type; which nodes are up, have room and serve the
        class.
    Cost
        O(nodes) in small clusters and with `w_load`; else by an index, O(items that it holds) per change of a
        node, and per decision O(groups × nodes / 60), mostly much less.
    When it wins / loses
        Wins where nodes are unrelated and model loads cost as much as service. Greedy: it may fill fast nodes
        with requests that others need more; misled by wrong estimates. Where several models share nodes that
        hold one each, it swaps them for single requests, which then all wait for loads: `w_load` of 3 to 10
        keeps models where they are until the wait for them is as long as that many loads.
    Deviations from the source
        Machines have several slots, shared evenly by the backlog; loading a model is added to the service
        time, but loads of queued work are not. `w_load` is trimtab's own: the price of a swap to later
        requests. The source's machines load nothing; by default it is 0. Running work drains at the rate of
        its slots, and never counts as done before it ends: for overdue work a share of the estimate remains.
    """

    name: ClassVar[str] = "least-expected-completion"
    w_load: NonNegative = 0.0  # seconds per second of loading, beside the load itself

    def init(self, cluster: Cluster) -> Memory:
        """Whether there is an index of waits, and the price of loads; the index, or notes of the nodes."""
        if is_indexable(cluster) and self.w_load == 0.0:
            return wait_index(cluster)._replace(params=np.array([1.0, 0.0]))
        return memory(params=[0.0, self.w_load], floats=notes_room(cluster.n_nodes))

    @staticmethod
    @kernel
    def dispatch(view: View, plan: Plan, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        """Rank all nodes by expected completion."""
        return int(rank_by_completion(view, memory, needs_of(work), ranking))
