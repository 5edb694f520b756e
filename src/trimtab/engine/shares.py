"""What tenants and hierarchical queues hold at nodes, limits of queues, and which held request goes first.

A tenant belongs to a leaf. A request counts in its leaf, and in all queues above, from when it is sent to a
node until it has left it. Rows of `tree` are in preorder, so that children come after their parent.
"""

from __future__ import annotations

import numpy as np

from trimtab.compiled.kernel import helper
from trimtab.domain.queue_tree import QueueOrder
from trimtab.domain.view import BACKGROUND
from trimtab.engine.queues import first_of, n_central
from trimtab.engine.state import TREE_SHARES, State

_FAIR, _PRIORITY = int(QueueOrder.FAIR), int(QueueOrder.PRIORITY)
_LAST = 1 << 62  # a serial that no request has
_ROUNDING = 1e-9  # relative, of amounts


@helper(inline=True)
def has_tree(s: State) -> bool:
    """Whether the tenants of this run belong to hierarchical queues."""
    return len(s.tree.parent) > 0


@helper(inline=True)
def leaf_of(s: State, r: int) -> int:
    """The row of the leaf that request r belongs to."""
    return s.leaf_of[s.work.tenant_idx[r]]


@helper
def _held_of(s: State, t: int, k: int) -> float:
    """What tenant t has at nodes of resource k; the last resource is slots."""
    held, is_resource = 0.0, k < s.demand.shape[1]
    for c in range(s.demand.shape[0]):
        held += s.at_nodes[t, c] * (s.demand[c, k] if is_resource else 1.0)
    return held


@helper
def share_of(s: State, t: int) -> float:
    """The dominant share of tenant t, by its weight."""
    slots = len(s.pooled) - 1
    requests = _held_of(s, t, slots)
    largest = requests / s.pooled[slots]
    for k in range(slots if requests > 0.0 else 0):
        largest = max(largest, _held_of(s, t, k) / s.pooled[k])
    return float(largest / s.tenant_weight[t])


@helper(inline=True)
def _demand(s: State, r: int, k: int) -> float:
    """What request r takes of resource k; the last resource is slots."""
    return s.demand[s.work.class_idx[r], k] if k < s.demand.shape[1] else 1.0


@helper
def _recount(s: State, q: int) -> None:
    """Bring what queue q holds up to date with the requests that it has at nodes."""
    tree, now_s, largest = s.tree, s.counts.now_s[0], 0.0
    slots, classes = len(s.pooled) - 1, s.demand.shape[0]
    for k in range(slots + 1):
        held = 0.0
        for c in range(classes):
            held += s.tree_at_nodes[q, c] * (s.demand[c, k] if k < slots else 1.0)
        s.tree_held[q, k] = held
        largest = max(largest, held / s.pooled[k])
    tree.share_s[q] += tree.share[q] * (now_s - tree.since_s[q])
    tree.since_s[q], tree.share[q] = now_s, largest


@helper
def count_at_nodes(s: State, r: int, change: int) -> None:
    """Request r is sent to a node (`change` 1), or has left it (−1): count it in all of its queues."""
    q, c = leaf_of(s, r), s.work.class_idx[r]
    while q >= 0:
        s.tree_at_nodes[q, c] += change
        s.tree.running[q] += change
        _recount(s, q)
        q = s.tree.parent[q]


@helper
def recount_all(s: State) -> None:
    """Count anew after what nodes have, or what requests take, has changed."""
    for q in range(len(s.tree.parent)):
        _recount(s, q)


@helper
def count_held(s: State, r: int, change: int) -> None:
    """Request r waits in the central queues (`change` 1), or no longer (−1)."""
    q = leaf_of(s, r)
    while q >= 0:
        s.tree.held[q] += change
        q = s.tree.parent[q]


@helper
def _is_tenant_within(s: State, r: int, leaf: int) -> bool:
    """Whether the tenant of request r stays within its part of the limit of the leaf."""
    part, t, slots = s.tree.user_limit[leaf], s.work.tenant_idx[r], len(s.pooled) - 1
    if part >= 1.0 or _held_of(s, t, slots) == 0.0:
        return True
    for k in range(slots + 1):
        most = part * min(s.tree_limit[leaf, k], s.pooled[k])
        if _held_of(s, t, k) + _demand(s, r, k) > most * (1.0 + _ROUNDING):
            return False
    return True


@helper
def is_within_limits(s: State, r: int) -> bool:
    """Whether all queues of request r, and its tenant, stay within their limits if it is sent to a node.

    A queue, or a tenant, that has nothing at nodes may send one request, however large: none waits for good.
    """
    tree, q = s.tree, leaf_of(s, r)
    if not _is_tenant_within(s, r, q):
        return False
    while q >= 0:
        if tree.running[q] >= tree.max_running[q]:
            return False
        for k in range(len(s.pooled) if tree.running[q] > 0 else 0):
            if s.tree_held[q, k] + _demand(s, r, k) > s.tree_limit[q, k] * (1.0 + _ROUNDING):
                return False
        q = tree.parent[q]
    return True


@helper
def is_due(s: State, r: int, q: int) -> bool:
    """Whether queue q stays within its guarantee if it sends request r to a node."""
    if s.work.priority[r] <= BACKGROUND:
        return False
    for k in range(len(s.pooled)):
        if s.tree_held[q, k] + _demand(s, r, k) > s.tree_guarantee[q, k] * (1.0 + _ROUNDING):
            return False
    return True


@helper
def exceeds_guarantee(s: State, r: int, q: int) -> bool:
    """Whether queue q holds more than its guarantee of a resource that its request r takes."""
    for k in range(len(s.pooled)):
        is_above = s.tree_held[q, k] > s.tree_guarantee[q, k] * (1.0 + _ROUNDING)
        if is_above and _demand(s, r, k) > 0.0:
            return True
    return False


@helper
def is_owed(s: State, r: int) -> bool:
    """Whether some queue of request r, below the root, stays within its guarantee if it sends r to a node."""
    q = leaf_of(s, r)
    while q > 0:
        if is_due(s, r, q):
            return True
        q = s.tree.parent[q]
    return False


@helper
def look_at_held(s: State) -> None:
    """Note of each queue the earliest request that it holds and may send, and whether one is due.

    Of tenants that have several requests only the first of each central queue counts.
    """
    tree = s.tree
    for q in range(len(tree.parent)):
        tree.first_serial[q], tree.is_short[q] = _LAST, 0
    first = len(s.nodes.up)
    for i in range(first, first + n_central(s)):
        r = first_of(s, i)
        if r >= 0 and is_within_limits(s, r):
            q = leaf_of(s, r)
            while q >= 0:
                tree.first_serial[q] = min(tree.first_serial[q], s.work.serial[r])
                if is_due(s, r, q):
                    tree.is_short[q] = 1
                q = tree.parent[q]


@helper
def update_shares(s: State) -> None:
    """Compute the share by which each queue is compared with its siblings, from the leaves up.

    Dynamic hierarchical dominant-resource fairness: what a queue holds is the sum over its children, where
    those that are not blocked are scaled down to the least share by weight among them. A blocked queue holds
    no request that may be sent, as `look_at_held` has found.
    """
    tree, resources = s.tree, len(s.pooled)
    for q in range(len(tree.parent) - 1, -1, -1):
        least, child = np.inf, q + 1
        while child < tree.end[q]:
            if tree.first_serial[child] < _LAST:
                least = min(least, tree.compared[child])
            child = tree.end[child]
        largest = 0.0
        for k in range(resources):
            total, child = s.tree_held[q, k] if tree.end[q] == q + 1 else 0.0, q + 1
            while child < tree.end[q]:
                is_scaled = tree.first_serial[child] < _LAST and tree.compared[child] > least
                scale = least / tree.compared[child] if is_scaled else 1.0
                total += scale * s.tree_scaled[child, k]
                child = tree.end[child]
            s.tree_scaled[q, k] = total
            largest = max(largest, total / s.pooled[k])
        tree.compared[q] = largest / tree.weight[q]


@helper
def goes_by_priority(s: State, r: int) -> bool:
    """Whether the leaf of request r orders its requests by priority."""
    return bool(s.config.virtual_counters[0] == TREE_SHARES and s.tree.order[leaf_of(s, r)] == _PRIORITY)


@helper
def _compare_in_leaf(s: State, a: int, b: int) -> int:
    """As `compare`, of requests of one leaf."""
    if goes_by_priority(s, a) and s.work.priority[a] != s.work.priority[b]:
        return -1 if s.work.priority[a] > s.work.priority[b] else 1
    if s.tree.order[leaf_of(s, a)] == _FAIR:
        x, y = share_of(s, s.work.tenant_idx[a]), share_of(s, s.work.tenant_idx[b])
        if x != y:
            return -1 if x < y else 1
    return 0


@helper
def _parting(s: State, leaf: int, other: int) -> int:
    """The row above `leaf`, or itself, that is a sibling of one above `other`."""
    tree, above = s.tree, s.tree.parent[leaf]
    while other < above or other >= tree.end[above]:
        leaf, above = above, tree.parent[above]
    return leaf


@helper
def compare(s: State, a: int, b: int) -> int:
    """Order of held requests a and b in the tree: −1 = a goes first, 1 = b does, 0 = arrival decides.

    Where their paths part, the queue below its guarantee goes first, then the one of the lesser share.
    """
    tree, leaf, other = s.tree, leaf_of(s, a), leaf_of(s, b)
    if leaf == other:
        return _compare_in_leaf(s, a, b)
    x, y = _parting(s, leaf, other), _parting(s, other, leaf)
    if tree.is_short[x] != tree.is_short[y]:
        return -1 if tree.is_short[x] == 1 else 1
    if tree.compared[x] != tree.compared[y]:
        return -1 if tree.compared[x] < tree.compared[y] else 1
    return 0


@helper
def is_earlier(s: State, a: int, b: int) -> bool:
    """Whether a goes before b by arrival: of the first requests of the queues where their paths part."""
    leaf, other = leaf_of(s, a), leaf_of(s, b)
    if leaf == other:
        return bool(s.work.serial[a] < s.work.serial[b])
    x, y = _parting(s, leaf, other), _parting(s, other, leaf)
    return bool(s.tree.first_serial[x] < s.tree.first_serial[y])


@helper
def top_share(s: State, t: int) -> float:
    """The dominant share, by weight, of the queue below the root that tenant t belongs to."""
    q = s.leaf_of[t]
    while s.tree.parent[q] > 0:
        q = s.tree.parent[q]
    return float(s.tree.share[q] / s.tree.weight[q])
