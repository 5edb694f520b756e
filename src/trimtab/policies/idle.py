"""Nodes with a slot free, kept up to date from the change log: policies that fill these look at no others.

Memory: ints = [built, how many are idle, the idle nodes in any order (as many places as nodes), and of each
node 1 + its place among them, 0 where it is not idle].
"""

from __future__ import annotations

from typing import Any

from trimtab.domain.cluster import Cluster
from trimtab.domain.kernel import helper
from trimtab.domain.view import View

_BUILT, _COUNT, _IDLE = range(3)


def room_for_idle(cluster: Cluster) -> int:
    """Numbers of `memory.ints` that this takes, from its begin on."""
    return _IDLE + 2 * cluster.n_nodes


@helper(inline=True)
def _set_idle(ints: Any, n_nodes: int, j: int, is_idle: bool) -> None:
    """Node j is among the idle ones, or is not."""
    places = _IDLE + n_nodes
    place = ints[places + j]
    if is_idle and place == 0:
        ints[_IDLE + ints[_COUNT]] = j
        ints[_COUNT] += 1
        ints[places + j] = ints[_COUNT]
    elif not is_idle and place > 0:
        last = ints[_IDLE + ints[_COUNT] - 1]
        ints[_IDLE + place - 1] = last
        ints[places + last] = place
        ints[places + j] = 0
        ints[_COUNT] -= 1


@helper(inline=True)
def n_idle(view: View, ints: Any) -> int:
    """How many nodes are up and have a slot free.

    The first call of a memory takes all nodes as changed: it may begin in the middle of a run.
    """
    nodes, first = view.nodes, ints[_BUILT] == 0
    ints[_BUILT] = 1
    for i in range(view.host.n_nodes if first else view.host.n_changed):
        j = i if first else view.changed[i]
        is_idle = nodes.up[j] == 1 and nodes.in_flight[j] < nodes.slots[j]
        _set_idle(ints, view.host.n_nodes, j, is_idle)
    return int(ints[_COUNT])


@helper(inline=True)
def idle_at(ints: Any, i: int) -> int:
    """The i-th of the idle nodes, whose order tells nothing."""
    return int(ints[_IDLE + i])
