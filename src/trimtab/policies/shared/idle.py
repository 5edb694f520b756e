"""Nodes with a free slot, kept up to date from the change log, for policies that use only such nodes.

Memory: ints = [built, number of idle nodes, the idle nodes in ascending order (as many places as nodes), and
a flag per node that is 1 if the node is idle]. The order is ascending because the first of equal candidates
is the best. A later candidate then never moves a ranked one, so the processor predicts the branch.
"""

from __future__ import annotations

from typing import Any

from trimtab.compiled.kernel import helper
from trimtab.domain.cluster import Cluster
from trimtab.domain.view import View

_BUILT, _COUNT, _IDLE = range(3)


def room_for_idle(cluster: Cluster) -> int:
    """Numbers of `memory.ints` that this takes, from its begin on."""
    return _IDLE + 2 * cluster.n_nodes


@helper(inline=True)
def _place_of(ints: Any, j: int) -> int:
    """The place of node j in the list of idle nodes, whether or not the node is in it."""
    low, high = _IDLE, _IDLE + ints[_COUNT]
    while low < high:
        middle = (low + high) >> 1
        if ints[middle] < j:
            low = middle + 1
        else:
            high = middle
    return low


@helper
def _set_idle(ints: Any, n_nodes: int, j: int, is_idle: bool) -> None:
    """Node j is among the idle ones, or is not."""
    flag = _IDLE + n_nodes + j
    if is_idle == (ints[flag] == 1):
        return
    ints[flag] = 1 if is_idle else 0
    place, end = _place_of(ints, j), _IDLE + ints[_COUNT]
    if is_idle:
        for i in range(end, place, -1):
            ints[i] = ints[i - 1]
        ints[place] = j
        ints[_COUNT] += 1
    else:
        for i in range(place + 1, end):
            ints[i - 1] = ints[i]
        ints[_COUNT] -= 1


@helper(inline=True)
def n_idle(view: View, ints: Any) -> int:
    """How many nodes are up and have a slot free.

    The first call of a memory takes all nodes as changed: it may begin in the middle of a run.
    """
    nodes, first = view.nodes, ints[_BUILT] == 0
    ints[_BUILT] = 1
    for i in range(view.context.n_nodes if first else view.context.n_changed):
        j = i if first else view.changed[i]
        is_idle = nodes.up[j] == 1 and nodes.in_flight[j] < nodes.slots[j]
        _set_idle(ints, view.context.n_nodes, j, is_idle)
    return int(ints[_COUNT])


@helper(inline=True)
def idle_at(ints: Any, i: int) -> int:
    """The i-th of the idle nodes."""
    return int(ints[_IDLE + i])
