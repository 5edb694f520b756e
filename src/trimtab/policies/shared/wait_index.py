"""Index of expected waits: the nodes of least wait without a look at every node, as a scan finds them.

Nodes of a group differ only in their wait, so each group has three trees of its nodes. *Free*: nodes with a
free slot, whose wait is 0. *Busy*: the key is the backlog's end, what is left now + slots × now. It stays
as it is while all slots work, and grows while some do not, so it is always a lower bound. *Overdue*: nodes
whose backlog should be over; the wait is a share of what they have and does not change. A busy node becomes
overdue without a change of its own, so a visit checks for it.

A visit takes every node whose key is within a limit, widened by more than rounding can change, and computes
its wait as `expected_wait_s` does. So choices, rankings and scores are those of a scan.

Only for clusters whose nodes hold no items: there a wait says everything about a node of a group.
Memory: that of `trees`, with three trees a group.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trimtab.compiled.kernel import helper
from trimtab.domain.cluster import Cluster
from trimtab.domain.view import MAX_RANKED, Memory, View
from trimtab.policies.shared.selection import rank
from trimtab.policies.shared.trees import (
    forest,
    is_new,
    least_key,
    n_trees,
    next_up_to,
    node_at,
    set_key,
    slots_of,
    type_of,
)
from trimtab.policies.shared.waits import OVERDUE_FRAC, expected_wait_s

_FREE, _BUSY, _OVERDUE = range(3)
_KINDS = 3
_WIDER = 1e-12  # share of the numbers of a limit; rounding changes less than 1e-15 of them
_LARGEST = np.finfo(np.float64).max  # keys of nodes that take nothing are infinite
FEWEST_NODES = 32  # a scan of fewer is as fast


def is_indexable(cluster: Cluster) -> bool:
    """Whether the waits of this cluster's nodes are worth an index, and say everything."""
    return cluster.n_nodes >= FEWEST_NODES and len(cluster.item_gib) == 0


def wait_index(cluster: Cluster) -> Memory:
    """Memory of the index; filled at the first refresh."""
    return forest(cluster, _KINDS)


@helper(inline=True)
def n_groups(memory: Memory) -> int:
    """Number of node groups."""
    return n_trees(memory) // _KINDS


@helper(inline=True)
def type_of_group(memory: Memory, g: int) -> int:
    """Node type of a group."""
    return type_of(memory, _KINDS * g)


@helper
def _set_keys(memory: Memory, g: int, j: int, free: float, busy: float, overdue: float) -> None:
    set_key(memory, _KINDS * g + _FREE, j, free)
    set_key(memory, _KINDS * g + _BUSY, j, busy)
    set_key(memory, _KINDS * g + _OVERDUE, j, overdue)


@helper(inline=True)
def _left_s(view: View, j: int) -> float:
    """What is left of node j's backlog; negative where it should be over."""
    nodes = view.nodes
    return float(nodes.backlog_s[j] - nodes.running[j] * (view.context.now_s - nodes.anchor_s[j]))


@helper
def _note(view: View, memory: Memory, j: int) -> None:
    """Bring the keys of node j up to date."""
    nodes, g = view.nodes, view.nodes.group_idx[j]
    left_s = _left_s(view, j)
    if nodes.up[j] != 1 or nodes.room[j] <= 0:
        _set_keys(memory, g, j, np.inf, np.inf, np.inf)
    elif nodes.in_flight[j] < nodes.slots[j]:
        _set_keys(memory, g, j, 0.0, np.inf, np.inf)
    elif left_s <= 0.0:
        _set_keys(memory, g, j, np.inf, np.inf, OVERDUE_FRAC * nodes.outstanding_s[j])
    else:
        _set_keys(memory, g, j, np.inf, left_s + nodes.slots[j] * view.context.now_s, np.inf)


@helper(inline=True)
def refresh_waits(view: View, memory: Memory) -> None:
    """Bring the index up to date. The first call of a memory takes all nodes as changed."""
    first = is_new(memory)
    for i in range(view.context.n_nodes if first else view.context.n_changed):
        _note(view, memory, i if first else view.changed[i])


@helper
def rank_free(memory: Memory, ranking: Any, count: int, g: int, score: float) -> int:
    """Rank the first nodes of a group that have a free slot, all with this score."""
    i, t = 0, _KINDS * g + _FREE
    for _ in range(MAX_RANKED):
        if count == MAX_RANKED and score > ranking.score[count - 1]:
            break
        i = next_up_to(memory, t, i, 0.0)
        if i == 0:
            break
        count = rank(ranking, count, node_at(memory, t, i), score)
    return count


@helper(inline=True)
def _limit(view: View, wait_s: float, own_s: float, slots: int, is_overdue: bool) -> float:
    """The largest key that a node may have whose wait is at most `wait_s`, or a little more."""
    now_s = 0.0 if is_overdue else view.context.now_s
    limit = slots * (now_s + wait_s) + _WIDER * slots * (now_s + abs(wait_s) + own_s)
    return min(limit, _LARGEST)


@helper
def _rank_waiting(
    view: View, memory: Memory, ranking: Any, count: int, g: int, own_s: float, is_overdue: bool
) -> int:
    t = _KINDS * g + (_OVERDUE if is_overdue else _BUSY)
    slots, i = slots_of(memory, t), 0
    while True:
        most_s = ranking.score[count - 1] - own_s if count == MAX_RANKED else np.inf
        i = next_up_to(memory, t, i, _limit(view, most_s, own_s, slots, is_overdue))
        if i == 0:
            return count
        j = node_at(memory, t, i)
        if not is_overdue and _left_s(view, j) <= 0.0:
            _note(view, memory, j)  # ranked with the overdue ones
        else:
            count = rank(ranking, count, j, expected_wait_s(view, j) + own_s)


@helper
def rank_by_completion(view: View, memory: Memory, ranking: Any, count: int, g: int, own_s: float) -> int:
    """Rank the nodes of a group by expected wait + `own_s`."""
    count = rank_free(memory, ranking, count, g, 0.0 + own_s)
    count = _rank_waiting(view, memory, ranking, count, g, own_s, False)
    return int(_rank_waiting(view, memory, ranking, count, g, own_s, True))


@helper(inline=True)
def has_free(memory: Memory, g: int) -> bool:
    """Whether a node of a group has a free slot and takes work."""
    return least_key(memory, _KINDS * g + _FREE) == 0.0


@helper
def _is_any_sooner(
    view: View, memory: Memory, g: int, rivals: float, gained_s: float, is_overdue: bool
) -> bool:
    t, i = _KINDS * g + (_OVERDUE if is_overdue else _BUSY), 0
    limit = _limit(view, gained_s / rivals, 0.0, slots_of(memory, t), is_overdue)
    while True:
        i = next_up_to(memory, t, i, limit)
        if i == 0:
            return False
        j = node_at(memory, t, i)
        if not is_overdue and _left_s(view, j) <= 0.0:
            _note(view, memory, j)
        elif rivals * expected_wait_s(view, j) < gained_s:
            return True


@helper
def is_any_sooner(view: View, memory: Memory, g: int, rivals: float, gained_s: float) -> bool:
    """Whether a node of a group that is busy is free so soon that `rivals` waits are less than `gained_s`."""
    if _is_any_sooner(view, memory, g, rivals, gained_s, False):
        return True
    return bool(_is_any_sooner(view, memory, g, rivals, gained_s, True))
