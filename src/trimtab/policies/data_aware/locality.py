"""Locality: prefer nodes near the model, the adapter and the client, and wait a bounded time for one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from trimtab.compiled.kernel import helper, kernel, plain
from trimtab.compiled.numba_extras import lowest_bit
from trimtab.domain.cluster import Cluster
from trimtab.domain.needs import Need
from trimtab.domain.parameters import NonNegative
from trimtab.domain.policy import Policy
from trimtab.domain.view import (
    Memory,
    Plan,
    View,
    can_take,
    memory,
    missing_load_s,
    needs_of,
    service_s,
)
from trimtab.policies.shared.delivery import round_trip_s
from trimtab.policies.shared.node_words import FULL_BUSY, FULL_OVERDUE, n_groups, refresh_nodes
from trimtab.policies.shared.selection import AT_ONCE, NOTES, notes_room, rank_noted, up_to
from trimtab.policies.shared.unmet_needs import NO_LOADS, NO_ROUND_TRIPS
from trimtab.policies.shared.wait_index import (
    Cost,
    has_free,
    is_indexable,
    is_near,
    n_kinds,
    own_of_kind_s,
    rank_busy,
    rank_free_by_own,
    rank_waiting,
    wait_index,
)
from trimtab.policies.shared.waits import expected_wait_s

_BUSY_OR_FREE_S = np.array([np.inf, 0.0])  # added to a node's seconds: a branch would be mispredicted


@helper(inline=True)
def _distance_s(view: View, work: Any, j: int) -> float:
    """Distance of node j in seconds: the round trip, and the loads of missing models and adapters."""
    rtt_s = round_trip_s(view, work, j)
    return float(rtt_s + missing_load_s(view, work, j))


@helper(inline=True)
def _own_s(view: View, work: Any, j: int) -> float:
    return _distance_s(view, work, j) + service_s(view, work, j)


@helper(inline=True)
def _note_own_s(view: View, work: Any, floats: Any, own_at: int) -> float:
    """Distance and service of each node from `own_at` on, and as notes where a slot is free, else inf.

    Returns the least note, inf where no slot is free.
    """
    best_s = np.inf
    for j in range(view.context.n_nodes):
        own_s = _own_s(view, work, j)
        is_free = (view.nodes.in_flight[j] < view.nodes.slots[j]) & can_take(view, work, j)
        free_s = own_s + _BUSY_OR_FREE_S[1 if is_free else 0]
        floats[plain(own_at + j)] = own_s
        floats[NOTES + j] = free_s
        best_s = min(best_s, free_s)
    return best_s


@helper(inline=True)
def _promises_at(view: View, memory: Memory) -> int:
    """Where in `ints` the promises are: how many nodes are promised, these, and to whom each node is."""
    return len(memory.ints) - 1 - 2 * view.context.n_nodes


@helper(inline=True)
def _forget_promise(view: View, memory: Memory, work: Any) -> None:
    """Drop the promise to this work, because it is offered again."""
    ints, at = memory.ints, _promises_at(view, memory)
    for i in range(at + 1, at + 1 + ints[at]):
        whose_at = at + 1 + view.context.n_nodes + ints[i]
        if ints[whose_at] == work.serial + 1:
            ints[whose_at] = 0
            ints[i] = ints[at + ints[at]]
            ints[at] -= 1
            return


@helper(inline=True)
def _promise(view: View, memory: Memory, work: Any, j: int) -> bool:
    """Whether the work may be held for node j, which has no room.

    A node is promised to one request at a time, until the node should be free.
    """
    ints, at = memory.ints, _promises_at(view, memory)
    whose_at = at + 1 + view.context.n_nodes + j
    until_at = len(memory.floats) - view.context.n_nodes + j
    if ints[whose_at] == 0:
        ints[at] += 1
        ints[at + ints[at]] = j
    elif memory.floats[until_at] >= view.context.now_s:
        return False
    ints[whose_at] = work.serial + 1
    memory.floats[until_at] = view.context.now_s + expected_wait_s(view, j)
    return True


@helper(inline=True)
def _best_free_s(view: View, memory: Memory, work: Any) -> float:
    """The least distance + service of free nodes, by the index; inf where no slot is free."""
    best_s = np.inf
    for g in range(n_groups(memory)):
        for kind in range(n_kinds(work)):
            own_s = own_of_kind_s(view, memory, work, g, kind)
            if own_s < best_s and has_free(memory, work, g, kind):
                best_s = own_s
    return best_s


@helper(inline=True)
def _cost_of(
    view: View, memory: Memory, own_s: float, free_s: float, patience: float, waited_s: float
) -> Cost:
    """Wait + distance + service of busy nodes; they are waited for as long as they gain enough."""
    most_s = patience * (free_s - own_s) if free_s < np.inf else np.inf
    return Cost(own_s, 0.0, 0.0, 0.0, 0.0, waited_s, most_s)


@helper
def _rank_full(view: View, memory: Memory, work: Any, ranking: Any, free_s: float, waited_s: float) -> int:
    """Rank the nodes without room that are worth waiting for, by the index; none where no slot is free."""
    count = 0
    for g in range(n_groups(memory)):
        for kind in range(n_kinds(work)):
            own_s = own_of_kind_s(view, memory, work, g, kind)
            if own_s < free_s < np.inf:
                cost = _cost_of(view, memory, own_s, free_s, memory.params[1], waited_s)
                count = rank_busy(view, memory, work, ranking, count, g, kind, FULL_BUSY, cost)
                count = rank_busy(view, memory, work, ranking, count, g, kind, FULL_OVERDUE, cost)
    return count


@helper
def _rank_indexed(view: View, memory: Memory, work: Any, ranking: Any, free_s: float, waited_s: float) -> int:
    """Rank the nodes with room that are free, or worth waiting for, by the index."""
    count = rank_free_by_own(view, memory, work, ranking)
    for g in range(n_groups(memory)):
        for kind in range(n_kinds(work)):
            own_s = own_of_kind_s(view, memory, work, g, kind)
            if own_s < free_s:
                cost = _cost_of(view, memory, own_s, free_s, memory.params[0], waited_s)
                count = rank_waiting(view, memory, work, ranking, count, g, kind, cost)
    return int(count)


@helper
def _decide_indexed(view: View, memory: Memory, work: Any, needs: Any, ranking: Any) -> int:
    """As the scan, by the index."""
    refresh_nodes(view, memory)
    _forget_promise(view, memory, work)
    free_s, waited_s = _best_free_s(view, memory, needs), view.context.now_s - work.arrival_s
    n_full = _rank_full(view, memory, needs, ranking, free_s, waited_s)
    full, full_s = ranking.node_idx[0], ranking.score[0]
    count = _rank_indexed(view, memory, needs, ranking, free_s, waited_s)
    if n_full > 0 and full_s < ranking.score[0] and _promise(view, memory, work, full):
        return 0
    return count


@dataclass(frozen=True)
class Locality(Policy):
    """Send each request to a free node near its model and client, or wait a little for a nearer busy one.

    Idea
        Distance of a node: round trip from the request's zone, and the loads of the model and adapter that it
        lacks. The best free node is the one of least distance + service. A busy node is waited for only where
        it gains over that one, and is expected free before the request has waited a share of what it gains:
        `patience` for a place in the node's queue; `hold` where that is full and the request is held, one for
        each such node. Among these nodes (all, where none is free), least wait + distance + service first,
        ties by node.
    Source
        Matei Zaharia, Dhruba Borthakur, Joydeep Sen Sarma, Khaled Elmeleegy, Scott Shenker, Ion Stoica:
        "Delay scheduling: a simple technique for achieving locality and fairness in cluster scheduling",
        EuroSys 2010, §3.4 (algorithm 2: skip a job at most D times) and §3.6 (levels). Read in excerpts.
    Reads
        Resident models and load times, zones and round trips; backlog and its time, running and in-flight
        requests, slots; estimated service of this request per node type; its arrival; which nodes are up,
        have room and serve the class.
    Cost
        O(nodes) in small clusters and with several zones; else as `least-expected-completion`, by an index.
    When it wins / loses
        Wins where loads or round trips are as long as service, also over `least-expected-completion`, which
        queues at a near node for any gain. Loses where the awaited node becomes free late, because
        completions are estimates. A held request is offered again only when other work ends. With a host's
        `lookahead` of 1 it blocks the requests behind it: set `hold` to 0 there.
    Deviations from the source
        Locality is measured in seconds, not in the levels node, rack and any. The gain sets the patience, not
        a number of skips or a fixed time. No request waits for a node that is not expected in time. A place
        in a node's queue is taken at once. The order, not a fair share, decides which request gets a slot.
    """

    name: ClassVar[str] = "locality"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.RESIDENCY, Need.ZONES, Need.HOLDING})
    degrades: ClassVar[Mapping[Need, str]] = {
        Need.RESIDENCY: NO_LOADS,
        Need.ZONES: NO_ROUND_TRIPS,
    }
    patience: NonNegative = 0.25  # seconds of waiting in a node's queue for each second gained
    hold: NonNegative = 1.0  # the same in the central queue, from which the request can still go elsewhere

    def init(self, cluster: Cluster) -> Memory:
        """The patiences, whether there is an index of waits; promises.

        Notes and each node's own seconds, or the index. Then until when promises hold.
        """
        n, is_indexed = cluster.n_nodes, is_indexable(cluster) and is_near(cluster)
        params, promises = [self.patience, self.hold, float(is_indexed)], np.zeros(1 + 2 * n, np.int64)
        if not is_indexed:
            return memory(params, promises, notes_room(n) + 2 * n)
        index = wait_index(cluster, with_full=True)
        ints, floats = np.append(index.ints, promises), np.append(index.floats, np.zeros(n))
        return memory(params, ints, floats)

    @staticmethod
    @kernel
    def dispatch(view: View, plan: Plan, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        """Rank the nodes that are free, or near enough to wait for, by expected completion."""
        nodes, needs, floats = view.nodes, needs_of(work), memory.floats
        if memory.params[2] == 1.0:
            return int(_decide_indexed(view, memory, work, needs, ranking))
        own_at = NOTES + view.context.n_nodes
        free_s, waited_s = _note_own_s(view, needs, floats, own_at), view.context.now_s - work.arrival_s
        full, full_s = -1, np.inf
        _forget_promise(view, memory, work)
        for first in range(0, view.context.n_nodes, AT_ONCE):
            near = up_to(free_s, floats, own_at + first, min(view.context.n_nodes - first, AT_ONCE))
            while near != 0:
                j = plain(first + lowest_bit(near))
                near &= near - 1
                own_s, is_busy = floats[plain(own_at + j)], nodes.in_flight[j] >= nodes.slots[j]
                if not (is_busy & (own_s < free_s)):
                    continue
                wait_s = expected_wait_s(view, j)
                if free_s < np.inf:
                    # The patience is counted from the arrival: it is spent once, however often it is offered.
                    patience = memory.params[0 if nodes.room[j] > 0 else 1]
                    if waited_s + wait_s > patience * (free_s - own_s):
                        continue
                if can_take(view, needs, j):
                    floats[NOTES + j] = wait_s + own_s
                elif nodes.up[j] == 1 and wait_s + own_s < full_s:
                    full, full_s = j, wait_s + own_s
        count = int(rank_noted(floats, ranking, view.context.n_nodes))
        if free_s < np.inf and full_s < ranking.score[0] and _promise(view, memory, work, full):
            return 0
        return count
