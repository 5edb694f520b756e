"""A request's demand of nodes' resources and the remainder, for policies that weigh several resources.

Where a cluster models no resources, slots are the only one, and every request takes one.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from trimtab.compiled.kernel import helper
from trimtab.domain.cluster import Cluster, Floats
from trimtab.domain.view import View, can_take

NEARLY_ALL_FRAC: Final = 0.98  # of a resource in use: such a node comes last to work of unknown demand
LAST: Final = 1e6  # added to the score of such a node


def largest(cluster: Cluster) -> Floats:
    """The most that any node has of each resource, [resources]; slots where none is modelled."""
    if not cluster.resource_names:
        return np.array([cluster.slots.max()], np.float64)
    most: Floats = cluster.capacity.max(axis=0)
    return most


@helper(inline=True)
def n_resources(view: View) -> int:
    """How many resources there are, at least one."""
    many = view.demand.shape[1]
    return many if many > 0 else 1


@helper(inline=True)
def has_of(view: View, j: int, k: int) -> float:
    """Capacity of node j in resource k."""
    return view.capacity[j, k] if view.demand.shape[1] > 0 else float(view.nodes.slots[j])


@helper(inline=True)
def left_of(view: View, work: Any, j: int, k: int) -> float:
    """The rest of resource k of node j with this work on it; below 0 the work does not fit.

    Requests that were sent there and do not run yet (waiting or in transfer) are assumed to need as much as
    this work.
    """
    nodes = view.nodes
    if view.demand.shape[1] == 0:
        return float(nodes.slots[j] - nodes.in_flight[j] - 1)
    coming = 1 + max(0, nodes.in_flight[j] - nodes.running[j])
    return float(view.capacity[j, k] - view.used[j, k] - coming * view.demand[work.class_idx, k])


@helper(inline=True)
def share_of(view: View, work: Any, j: int, k: int) -> float:
    """Share of resource k of node j that would be in use with this work on it; 0 where the node has none."""
    has = has_of(view, j, k)
    return (has - left_of(view, work, j, k)) / has if has > 0.0 else 0.0


@helper(inline=True)
def has_room(view: View, work: Any, j: int) -> bool:
    """Whether node j has room for this work's demand beside all that is there."""
    for k in range(n_resources(view)):  # noqa: SIM110 - numba compiles no generator expressions
        if left_of(view, work, j, k) < 0.0:
            return False
    return True


@helper(inline=True)
def starts_now(view: View, work: Any, j: int) -> bool:
    """Whether node j has a slot free for this work, and room for its demand beside all that is there."""
    return is_slot_free(view, work, j) and (view.demand.shape[1] == 0 or has_room(view, work, j))


@helper
def last_if_full(view: View, work: Any, j: int) -> float:
    """`LAST` where node j has nearly all of a resource in use, and nothing is known of what this work takes.

    Without a demand all work fits beside all that is there. So the node is no candidate to hold back for: it
    comes after all others.
    """
    many, c = view.demand.shape[1], work.class_idx
    for k in range(many):
        if view.demand[c, k] > 0.0:
            return 0.0
    for k in range(many):
        if view.capacity[j, k] > 0.0 and view.used[j, k] >= NEARLY_ALL_FRAC * view.capacity[j, k]:
            return LAST
    return 0.0


@helper(inline=True)
def is_slot_free(view: View, work: Any, j: int) -> bool:
    """Whether node j can take this work and has a slot free."""
    return bool((view.nodes.in_flight[j] < view.nodes.slots[j]) & can_take(view, work, j))


@helper(inline=True)
def room_left(view: View, work: Any, j: int, largest: Any) -> float:
    """The rest on node j with this work on it: the sum of its resources, each relative to the largest."""
    left = 0.0
    for k in range(n_resources(view)):
        if largest[k] > 0.0:
            left += left_of(view, work, j, k) / largest[k]
    return left
