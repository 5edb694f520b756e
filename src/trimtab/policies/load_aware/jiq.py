"""Join the idle queue: nodes queue up when they become idle; without an idle node chance decides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from trimtab.compiled.kernel import helper, kernel
from trimtab.domain.cluster import Cluster
from trimtab.domain.policy import Policy
from trimtab.domain.view import Memory, Plan, View, can_take, memory
from trimtab.policies.shared.selection import rank_from, uniform_able

_BUILT, _HEAD, _TAIL, _LINKS = range(
    4
)  # ints: [header, for each node: next in the queue, for each: previous]
_END, _OUT = -1, -2  # instead of a node: no further one; this node isn't in the queue


@helper(inline=True)
def _leave(ints: Any, n: int, j: int) -> None:
    """Node j leaves the idle queue."""
    after, before = ints[_LINKS + j], ints[_LINKS + n + j]
    if before == _END:
        ints[_HEAD] = after
    else:
        ints[_LINKS + before] = after
    if after == _END:
        ints[_TAIL] = before
    else:
        ints[_LINKS + n + after] = before
    ints[_LINKS + j] = _OUT


@helper(inline=True)
def _join(ints: Any, n: int, j: int) -> None:
    """Node j joins the idle queue at its end."""
    last = ints[_TAIL]
    ints[_LINKS + j], ints[_LINKS + n + j] = _END, last
    if last == _END:
        ints[_HEAD] = j
    else:
        ints[_LINKS + last] = j
    ints[_TAIL] = j


@helper(inline=True)
def _update(view: View, ints: Any) -> None:
    """Let nodes that became idle join the queue, and nodes that did not stay idle leave it."""
    nodes, n, first = view.nodes, view.context.n_nodes, ints[_BUILT] == 0
    ints[_BUILT] = 1
    for i in range(n if first else view.context.n_changed):
        j = i if first else view.changed[i]
        is_idle = nodes.up[j] == 1 and nodes.in_flight[j] < nodes.slots[j]
        is_in = ints[_LINKS + j] != _OUT
        if is_idle and not is_in:
            _join(ints, n, j)
        elif is_in and not is_idle:
            _leave(ints, n, j)


@helper(inline=True)
def _first_idle(view: View, work: Any, ints: Any, j: int) -> int:
    """From queue entry j on, the first node that can take the work; -1 if none can."""
    while j != _END and not can_take(view, work, j):
        j = ints[_LINKS + j]
    return int(j)


@dataclass(frozen=True)
class Jiq(Policy):
    """Send each request to the node that has been idle longest; without an idle node, to a random one.

    Idea
        Nodes report when they become idle, and join a queue at the dispatcher; a request takes the first one.
        So a decision needs no question to nodes, one message per request at most, and as nodes grow in number
        the share of requests that wait goes to 0 at any load below 1. Second candidate: the next idle node,
        or a further able one.
    Source
        Yi Lu, Qiaomin Xie, Gabriel Kliot, Alan Geller, James Larus, Albert Greenberg: "Join-Idle-Queue: a
        novel load balancing algorithm for dynamically scalable web services", Performance Evaluation 68(11),
        2011, §2 (primary load balancing by I-queues; a random processor where the I-queue is empty).
    Reads
        Requests in flight and slots of nodes that changed; which nodes are up, have room and serve the class.
    Cost
        O(1) per change and decision; O(idle nodes) where the first idle ones cannot take the request.
    When it wins / loses
        Wins where many nodes are rarely all busy, with the least communication. At high loads on few nodes
        most requests go to random nodes. Blind to speed and size.
    Deviations from the source
        A dispatcher sees all nodes that its view shows as idle, where there each idle node chooses one
        dispatcher's queue (secondary load balancing); with one dispatcher that is the same. A node is idle
        while it has a slot free, and goes to the end of the queue with each request. Idle nodes that cannot
        take the request keep their place.
    """

    name: ClassVar[str] = "jiq"
    draws = 1

    def init(self, cluster: Cluster) -> Memory:
        """An empty queue."""
        links = np.full(2 * cluster.n_nodes, _OUT)
        return memory(ints=np.concatenate([[0, _END, _END], links]))

    @staticmethod
    @kernel
    def dispatch(view: View, plan: Plan, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        """Take the first idle node of the queue, or draw a node."""
        ints, n = memory.ints, view.context.n_nodes
        _update(view, ints)
        j = _first_idle(view, work, ints, ints[_HEAD])
        if j == _END:
            return rank_from(view, work, ranking, uniform_able(view, work, draws[0]))
        following = _first_idle(view, work, ints, ints[_LINKS + j])
        _leave(ints, n, j)
        _join(ints, n, j)  # at the end; it leaves when its last slot is seen taken
        ranking[0] = j
        ranking[1] = following
        return 1 if following == _END else 2
