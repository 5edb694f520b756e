"""A plan of all held work, made anew at each comparison, so that work waits for the node that suits it.

Held requests are compared in the order of their queue. Each in turn claims the node where it is expected to
finish first behind the claims before it, whether that node is free or busy. Work that claims a slot that is
free now starts; other work waits. So a slow node gets work only if the faster ones are claimed for longer.

Memory: `memory.floats` from `first` on: seconds claimed of each node, the number of claims on each, and the
answer of the comparison: serial, node, time.
"""

from __future__ import annotations

from typing import Any

from trimtab.compiled.kernel import helper
from trimtab.domain.cluster import Cluster
from trimtab.domain.view import View
from trimtab.policies.shared.waits import OVERDUE_FRAC

_SERIAL, _NODE, _AT = range(3)
_NOBODY = -1.0  # a serial


def room_for_claims(cluster: Cluster) -> int:
    """Numbers of `memory.floats` that this takes."""
    return 2 * cluster.n_nodes + 3


@helper(inline=True)
def _answer(view: View, first: int) -> int:
    return int(first + 2 * view.context.n_nodes)


@helper(inline=True)
def forget_claims(view: View, floats: Any, first: int) -> None:
    """Begin a comparison."""
    for i in range(_answer(view, first) - first):
        floats[first + i] = 0.0
    floats[_answer(view, first) + _SERIAL] = _NOBODY


@helper(inline=True)
def claim(view: View, floats: Any, first: int, j: int, seconds: float) -> None:
    """Work that takes a slot of node j for so long is expected to run there."""
    floats[first + j] += seconds
    floats[first + view.context.n_nodes + j] += 1.0


@helper(inline=True)
def is_unclaimed(view: View, floats: Any, first: int, j: int) -> bool:
    """Whether node j has a slot that is neither taken nor claimed."""
    taken = view.nodes.in_flight[j] + floats[first + view.context.n_nodes + j]
    return bool(taken < view.nodes.slots[j])


@helper(inline=True)
def wait_behind_s(view: View, floats: Any, first: int, j: int) -> float:
    """Expected seconds until node j has a slot for one more request behind all claims."""
    if is_unclaimed(view, floats, first, j):
        return 0.0
    nodes = view.nodes
    left_s = nodes.backlog_s[j] - nodes.running[j] * (view.context.now_s - nodes.anchor_s[j])
    if left_s <= 0.0:
        left_s = OVERDUE_FRAC * nodes.outstanding_s[j]
    return float((left_s + floats[first + j]) / nodes.slots[j])


@helper(inline=True)
def note_answer(view: View, work: Any, floats: Any, first: int, j: int) -> None:
    """The work starts on node j; the host asks again about the first one that does, and no other."""
    at = _answer(view, first)
    if floats[at + _SERIAL] == _NOBODY:
        floats[at + _SERIAL], floats[at + _NODE], floats[at + _AT] = work.serial, j, view.context.now_s


@helper(inline=True)
def noted_answer(view: View, work: Any, floats: Any, first: int) -> int:
    """The node of the work that won the comparison which has just ended; -1 for other work."""
    at = _answer(view, first)
    is_winner = floats[at + _SERIAL] == work.serial and floats[at + _AT] == view.context.now_s
    return int(floats[at + _NODE]) if is_winner and view.context.n_changed == 0 else -1
