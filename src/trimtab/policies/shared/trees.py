"""Tournament trees: the node with the least key in each group, kept up to date from the change log.

One complete binary tree of minima per node group (nodes of one type and slot count), since a score such as
(key + own estimate) / slots orders the nodes of one group as their keys do, whatever the request. An update
walks towards the root until nothing changes any more; a query compares the roots and walks down once. Knuth,
The Art of Computer Programming, vol. 3, §5.4.1 (selection trees). O(log nodes) per change and per group.

Memory: ints = [built, groups, GROUP rows, place of each node in its group, the groups' nodes one after the
other]; floats = the trees. A tree of width w lies at `tree`: root at 1, leaves from w on.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trimtab.compiled.kernel import helper
from trimtab.domain.cluster import Cluster
from trimtab.domain.view import Memory, View, memory
from trimtab.policies.shared.selection import rank

_BUILT, _GROUPS, _ROWS = 0, 1, 2
_TREE, _WIDTH, _MEMBERS, _TYPE, _SLOTS, _ROW = range(6)
_CLOSE = 1e-15  # keys further apart than this share of the score can't have equal scores


def forest(cluster: Cluster) -> Memory:
    """Memory with one tree per node group, every key infinite; filled at the first `refresh`."""
    group_idx = cluster.group_idx
    n_groups = int(group_idx.max()) + 1
    places, members = np.zeros(cluster.n_nodes, np.int64), np.argsort(group_idx, kind="stable")
    rows = np.zeros((n_groups, _ROW), np.int64)
    tree, begin = 0, 0
    for g, size in enumerate(np.bincount(group_idx).tolist()):
        own = members[begin : begin + size]
        places[own] = np.arange(size)
        width = 1 << (size - 1).bit_length()
        first = _ROWS + rows.size + cluster.n_nodes + begin
        rows[g] = tree, width, first, cluster.type_idx[own[0]], cluster.slots[own[0]]
        tree, begin = tree + 2 * width, begin + size
    ints = np.concatenate([[0, n_groups], rows.reshape(-1), places, members])
    return memory(ints=ints, floats=np.full(tree, np.inf))


@helper(inline=True)
def _set_key(memory: Memory, g: int, j: int, key: float) -> None:
    """Give node j of group g a key."""
    row = _ROWS + _ROW * g
    tree = memory.ints[row + _TREE]
    i = memory.ints[row + _WIDTH] + memory.ints[_ROWS + _ROW * memory.ints[_GROUPS] + j]
    floats = memory.floats
    floats[tree + i] = key
    i >>= 1
    while i > 0:
        least = min(floats[tree + 2 * i], floats[tree + 2 * i + 1])
        if floats[tree + i] == least:
            break
        floats[tree + i] = least
        i >>= 1


@helper(inline=True)
def refresh(view: View, memory: Memory, column: Any) -> None:
    """Bring the keys up to date: `column[j]`, or inf where node j is down or full.

    The first call of a memory takes all nodes as changed: it may begin in the middle of a run.
    """
    nodes, first = view.nodes, memory.ints[_BUILT] == 0
    memory.ints[_BUILT] = 1
    for i in range(view.context.n_nodes if first else view.context.n_changed):
        j = i if first else view.changed[i]
        is_open = nodes.up[j] == 1 and nodes.room[j] > 0
        _set_key(memory, nodes.group_idx[j], j, float(column[j]) if is_open else np.inf)


@helper(inline=True)
def n_groups(memory: Memory) -> int:
    """Number of node groups."""
    return int(memory.ints[_GROUPS])


@helper(inline=True)
def type_of(memory: Memory, g: int) -> int:
    """Node type of group g."""
    return int(memory.ints[_ROWS + _ROW * g + _TYPE])


@helper(inline=True)
def slots_of(memory: Memory, g: int) -> int:
    """Slots of each node of group g."""
    return int(memory.ints[_ROWS + _ROW * g + _SLOTS])


@helper(inline=True)
def rank_head(memory: Memory, ranking: Any, count: int, g: int, extra: float, divisor: float) -> int:
    """Rank group g's node of least (key + extra) / divisor, ties by node; returns the number of candidates.

    Different keys may have equal scores once rounded, so the walk goes left wherever the score is as good:
    exactly what a scan over the nodes would find.
    """
    row = _ROWS + _ROW * g
    tree, width, floats = memory.ints[row + _TREE], memory.ints[row + _WIDTH], memory.floats
    least = floats[tree + 1]
    if least == np.inf:
        return count
    score = (least + extra) / divisor
    close = least + _CLOSE * (least + extra)
    i = 1
    while i < width:
        i *= 2
        left = floats[tree + i]
        if left > close or (left + extra) / divisor > score:
            i += 1
    j = memory.ints[memory.ints[row + _MEMBERS] + i - width]
    return int(rank(ranking, count, j, score))
