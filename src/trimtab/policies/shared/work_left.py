"""Estimated seconds of work left per slot of each node, as it stands now, and the node with the least.

Left at node j = max(0, end − now) while a slot is free, where end = time of the report + reported backlog /
slots; all slots of a busy node run, so there left = end − now until the end has passed. Work that is then
overdue is expected to take a share `OVERDUE_FRAC` of all estimates in flight there.

The end of a node changes only with its report, so each node group has three trees (`trees`): of the ends of
nodes with a free slot, of the ends of busy nodes, and of what is left of overdue ones. A busy node whose end
has passed moves to the last one when a decision meets it.

Memory: as in `trees`; the last of the ints are each node's tree, `_NONE` while it is down or full.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trimtab.compiled.kernel import helper
from trimtab.domain.cluster import Cluster
from trimtab.domain.view import Memory, View
from trimtab.policies.shared.trees import (
    first_up_to,
    forest,
    is_new,
    least_key,
    n_trees,
    rank_head,
    rank_head_since,
    set_key,
)
from trimtab.policies.shared.waits import OVERDUE_FRAC

_FREE, _BUSY, _OVERDUE, _KINDS = range(4)
_NONE = -1


def work_trees(cluster: Cluster) -> Memory:
    """Memory with the three trees of each node group; filled at the first `refresh_work`."""
    trees = forest(cluster, _KINDS)
    return trees._replace(ints=np.append(trees.ints, np.full(cluster.n_nodes, _NONE)))


@helper(inline=True)
def _move(view: View, memory: Memory, j: int, kind: int, key: float) -> None:
    """Put node j into the tree of this kind, or into none."""
    t, at = _KINDS * view.nodes.group_idx[j], len(memory.ints) - view.context.n_nodes + j
    before = memory.ints[at]
    if before != kind and before != _NONE:
        set_key(memory, t + before, j, np.inf)
    if kind != _NONE:
        set_key(memory, t + kind, j, key)
    memory.ints[at] = kind


@helper(inline=True)
def refresh_work(view: View, memory: Memory) -> None:
    """Bring the trees up to date with the change log.

    The first call of a memory takes all nodes as changed: it may begin in the middle of a run.
    """
    nodes, first = view.nodes, is_new(memory)
    for i in range(view.context.n_nodes if first else view.context.n_changed):
        j = i if first else view.changed[i]
        is_open = nodes.up[j] == 1 and nodes.room[j] > 0
        kind = _FREE if nodes.in_flight[j] < nodes.slots[j] else _BUSY
        end_s = nodes.anchor_s[j] + nodes.backlog_s[j] / nodes.slots[j]
        _move(view, memory, j, kind if is_open else _NONE, end_s)


@helper(inline=True)
def n_groups(memory: Memory) -> int:
    """Number of node groups."""
    return n_trees(memory) // _KINDS


@helper(inline=True)
def first_tree(g: int) -> int:
    """A tree of group g, for its type and slots."""
    return _KINDS * g


@helper(inline=True)
def rank_least_work(view: View, memory: Memory, ranking: Any, count: int, g: int, extra_s: float) -> int:
    """Rank group g's node of least work left + `extra_s`, ties by node; returns the number of candidates."""
    t, now_s = _KINDS * g, view.context.now_s
    j = first_up_to(memory, t + _BUSY, now_s)
    while j >= 0:
        left_s = OVERDUE_FRAC * view.nodes.outstanding_s[j] / view.nodes.slots[j]
        _move(view, memory, j, _OVERDUE, left_s)
        j = first_up_to(memory, t + _BUSY, now_s)
    free_s = max(0.0, least_key(memory, t + _FREE) - now_s) + extra_s
    busy_s = least_key(memory, t + _BUSY) - now_s + extra_s
    overdue_s = least_key(memory, t + _OVERDUE) + extra_s
    if free_s <= busy_s and free_s <= overdue_s:
        count = rank_head_since(memory, ranking, count, t + _FREE, now_s, 0.0, extra_s, 1.0)
    if busy_s <= free_s and busy_s <= overdue_s:
        count = rank_head_since(memory, ranking, count, t + _BUSY, now_s, 0.0, extra_s, 1.0)
    if overdue_s <= free_s and overdue_s <= busy_s:
        count = rank_head(memory, ranking, count, t + _OVERDUE, extra_s, 1.0)
    return count
