"""Tournament trees: the node with the least key in each group, kept up to date from the change log.

One complete binary tree of minima per node group (nodes of one type and slot count), since a score such as
(key + own estimate) / slots orders the nodes of one group as their keys do, whatever the request. An update
walks towards the root until nothing changes any more; a query compares the roots and walks down once. Knuth,
The Art of Computer Programming, vol. 3, §5.4.1 (selection trees). O(log nodes) per change and per group.
Where the kind of a node decides what its key means, each group has a tree of each kind (`work_trees`).

Memory: ints = [built, number of trees, their rows, place of each node in its group, the groups' nodes one
after the other]; floats = the trees. A tree of width w lies at `tree`: root at 1, leaves
from w on.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trimtab.compiled.kernel import helper
from trimtab.domain.cluster import Cluster
from trimtab.domain.view import Memory, View, memory
from trimtab.policies.shared.selection import rank

_BUILT, _TREES, _ROWS = 0, 1, 2
_TREE, _WIDTH, _MEMBERS, _TYPE, _SLOTS, _ROW = range(6)
_CLOSE = 1e-15  # keys further apart than this share of the score can't have equal scores


def forest(cluster: Cluster, kinds: int = 1) -> Memory:
    """Memory with `kinds` trees per node group, every key infinite; filled at the first refresh.

    The trees of group g are numbers kinds × g and on.
    """
    group_idx = cluster.group_idx
    sizes = np.bincount(group_idx).tolist()
    places, members = np.zeros(cluster.n_nodes, np.int64), np.argsort(group_idx, kind="stable")
    rows = np.zeros((kinds * len(sizes), _ROW), np.int64)
    tree, begin = 0, 0
    for g, size in enumerate(sizes):
        own = members[begin : begin + size]
        places[own] = np.arange(size)
        width = 1 << (size - 1).bit_length()
        first = _ROWS + rows.size + cluster.n_nodes + begin
        for row in rows[kinds * g : kinds * (g + 1)]:
            row[:] = tree, width, first, cluster.type_idx[own[0]], cluster.slots[own[0]]
            tree += 2 * width
        begin += size
    ints = np.concatenate([[0, len(rows)], rows.reshape(-1), places, members])
    return memory(ints=ints, floats=np.full(tree, np.inf))


@helper(inline=True)
def set_key(memory: Memory, t: int, j: int, key: float) -> None:
    """Give node j a key in tree t of its group."""
    row = _ROWS + _ROW * t
    tree = memory.ints[row + _TREE]
    i = memory.ints[row + _WIDTH] + memory.ints[_ROWS + _ROW * memory.ints[_TREES] + j]
    floats = memory.floats
    if floats[tree + i] == key:
        return
    floats[tree + i] = key
    i >>= 1
    while i > 0:
        least = min(floats[tree + 2 * i], floats[tree + 2 * i + 1])
        if floats[tree + i] == least:
            break
        floats[tree + i] = least
        i >>= 1


@helper(inline=True)
def is_new(memory: Memory) -> bool:
    """Whether this memory has seen no node yet; it has from now on."""
    first = memory.ints[_BUILT] == 0
    memory.ints[_BUILT] = 1
    return bool(first)


@helper(inline=True)
def refresh(view: View, memory: Memory, column: Any) -> None:
    """Bring the keys up to date: `column[j]`, or inf where node j is down or full.

    The first call of a memory takes all nodes as changed: it may begin in the middle of a run.
    """
    nodes, first = view.nodes, is_new(memory)
    for i in range(view.context.n_nodes if first else view.context.n_changed):
        j = i if first else view.changed[i]
        is_open = nodes.up[j] == 1 and nodes.room[j] > 0
        set_key(memory, nodes.group_idx[j], j, float(column[j]) if is_open else np.inf)


@helper(inline=True)
def n_trees(memory: Memory) -> int:
    """Number of trees: node groups × kinds."""
    return int(memory.ints[_TREES])


@helper(inline=True)
def type_of(memory: Memory, t: int) -> int:
    """Node type of the group of tree t."""
    return int(memory.ints[_ROWS + _ROW * t + _TYPE])


@helper(inline=True)
def slots_of(memory: Memory, t: int) -> int:
    """Slots of each node of the group of tree t."""
    return int(memory.ints[_ROWS + _ROW * t + _SLOTS])


@helper(inline=True)
def least_key(memory: Memory, t: int) -> float:
    """The least key of tree t."""
    return float(memory.floats[memory.ints[_ROWS + _ROW * t + _TREE] + 1])


@helper(inline=True)
def first_up_to(memory: Memory, t: int, limit: float) -> int:
    """The first node of tree t whose key is at most the limit; -1 if none is."""
    row = _ROWS + _ROW * t
    tree, width, floats = memory.ints[row + _TREE], memory.ints[row + _WIDTH], memory.floats
    if not floats[tree + 1] <= limit:
        return -1
    i = 1
    while i < width:
        i *= 2
        if floats[tree + i] > limit:
            i += 1
    return int(memory.ints[memory.ints[row + _MEMBERS] + i - width])


@helper(inline=True)
def rank_head(memory: Memory, ranking: Any, count: int, t: int, extra: float, divisor: float) -> int:
    """Rank tree t's node of least (key + extra) / divisor, ties by node; returns the number of candidates."""
    return int(rank_head_since(memory, ranking, count, t, 0.0, -np.inf, extra, divisor))


@helper(inline=True)
def rank_head_since(
    memory: Memory,
    ranking: Any,
    count: int,
    t: int,
    since: float,
    least: float,
    extra: float,
    divisor: float,
) -> int:
    """As `rank_head`, for the score (max(key − since, least) + extra) / divisor.

    Different keys may have equal scores, so the walk goes left wherever the score is as good: exactly what a
    scan over the nodes would find.
    """
    row = _ROWS + _ROW * t
    tree, width, floats = memory.ints[row + _TREE], memory.ints[row + _WIDTH], memory.floats
    head = floats[tree + 1]
    if head == np.inf:
        return count
    score = (max(head - since, least) + extra) / divisor
    bound = max(head, since + least)
    close = bound + _CLOSE * (bound + extra)
    i = 1
    while i < width:
        i *= 2
        left = floats[tree + i]
        if left > close or (max(left - since, least) + extra) / divisor > score:
            i += 1
    j = memory.ints[memory.ints[row + _MEMBERS] + i - width]
    return int(rank(ranking, count, j, score))
