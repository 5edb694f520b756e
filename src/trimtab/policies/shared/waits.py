"""Expected waits for a slot, from the backlogs that nodes report.

Nodes with a free slot, kept up to date from the change log, for policies that use only such nodes.

Memory: ints = [built, number of idle nodes, the idle nodes in ascending order (as many places as nodes), and
a flag per node that is 1 if the node is idle]. The order is ascending because the first of equal candidates
is the best. A later candidate then never moves a ranked one, so the processor predicts the branch.
"""

from __future__ import annotations

from typing import Any

from trimtab.compiled.kernel import helper
from trimtab.domain.cluster import Cluster
from trimtab.domain.view import View

OVERDUE_FRAC = 0.3  # about the mean excess over the mean of lognormal services with cv 0.36


@helper(inline=True)
def expected_wait_s(view: View, j: int) -> float:
    """Expected seconds until node j has a slot for one more request: 0 while one is free.

    Otherwise the wait is the backlog of the last report (estimates of queued work, and the rest of running
    work), minus the work of its busy slots since then, divided by its slots. For overdue work, a share
    `OVERDUE_FRAC` of its estimate is assumed to remain.
    """
    nodes, slots = view.nodes, view.nodes.slots[j]
    if nodes.in_flight[j] < slots:
        return 0.0
    left_s = nodes.backlog_s[j] - nodes.running[j] * (view.context.now_s - nodes.anchor_s[j])
    overdue_s = OVERDUE_FRAC * nodes.outstanding_s[j]
    left_s = overdue_s if left_s <= 0.0 else left_s
    return float(left_s if slots <= 1 else left_s / slots)  # a division is slower than the test


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
def n_listed(ints: Any) -> int:
    """How many nodes `n_idle` has found."""
    return int(ints[_COUNT])


@helper(inline=True)
def idle_at(ints: Any, i: int) -> int:
    """The i-th of the idle nodes."""
    return int(ints[_IDLE + i])
