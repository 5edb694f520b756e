"""Priority queues over the requests: node queues, central queues, transfers on a link.

A queue is a sorted run plus a pairing heap (Fredman, Sedgewick, Sleator, Tarjan: "The pairing heap",
Algorithmica 1986), both linked through the requests' own rows. An arrival whose key is not below the run's
last key goes to the end of the run. So first come, first served costs as little as a linked list, and any
other order costs O(log n) amortised. A cancelled request stays in its queue until it reaches the front.
"""

from __future__ import annotations

from trimtab.compiled.kernel import helper
from trimtab.domain.requests import Status
from trimtab.engine.state import State
from trimtab.engine.telemetry import dispatcher_of

_ENDED = int(Status.FINISHED)


@helper(inline=True)
def n_central(s: State) -> int:
    """Number of central queues. They follow the queues of the nodes."""
    return s.config.dispatchers[0] * s.config.lanes[0] * s.config.sublanes[0]


@helper(inline=True)
def central_queue(s: State, r: int) -> int:
    """The central queue of request r: its lane's, or of its class or tenant in this lane."""
    part = s.work.class_idx[r] if s.config.class_lanes[0] > 1 else 0
    if s.config.tenant_lanes[0] > 1:
        part = part * s.config.tenant_lanes[0] + s.work.tenant_idx[r]
    return len(s.nodes.up) + lane_of(s, r) * s.config.sublanes[0] + part


@helper(inline=True)
def lane_of(s: State, r: int) -> int:
    """The central lane of request r: there is one lane per dispatcher, or one per dispatcher and class."""
    lanes = s.config.lanes[0]
    return dispatcher_of(s, r) * lanes + (s.work.class_idx[r] if lanes > 1 else 0)


@helper(inline=True)
def comes_before(s: State, a: int, b: int) -> bool:
    """Whether request a comes before b: by key, ties by arrival."""
    key = s.requests.key
    return key[a] < key[b] or (key[a] == key[b] and s.work.serial[a] < s.work.serial[b])


@helper(inline=True)
def _meld(s: State, a: int, b: int) -> int:
    if comes_before(s, b, a):
        a, b = b, a
    s.requests.next[b] = s.requests.child[a]
    s.requests.child[a] = b
    s.requests.next[a] = -1
    return a


@helper
def _merge_children(s: State, first: int) -> int:
    after = s.requests.next
    pairs = -1
    while first >= 0:  # meld neighbours in pairs, last pair on top
        a, b = first, after[first]
        first = -1
        if b >= 0:
            first = after[b]
            a = _meld(s, a, b)
        after[a] = pairs
        pairs = a
    root = -1
    while pairs >= 0:
        rest = after[pairs]
        after[pairs] = -1
        root = pairs if root < 0 else _meld(s, root, pairs)
        pairs = rest
    return root


@helper(inline=True)
def enqueue(s: State, q: int, r: int) -> None:
    """Put request r, whose key is set, into queue q."""
    queues, after = s.queues, s.requests.next
    queues.length[q] += 1
    after[r] = -1
    s.requests.child[r] = -1
    tail = queues.tail[q]
    if queues.head[q] < 0:
        queues.head[q] = r
        queues.tail[q] = r
    elif not comes_before(s, r, tail):
        after[tail] = r
        queues.tail[q] = r
    else:
        root = queues.root[q]
        queues.root[q] = r if root < 0 else _meld(s, root, r)


@helper(inline=True)
def put_back(s: State, q: int, r: int) -> None:
    """Put request r, which comes before all requests of queue q, back at the front of q."""
    queues, after = s.queues, s.requests.next
    queues.length[q] += 1
    if queues.head[q] < 0:
        queues.tail[q] = r
    after[r] = queues.head[q]
    queues.head[q] = r


@helper
def _drop_ended(s: State, q: int) -> None:
    queues, status = s.queues, s.requests.status
    while queues.head[q] >= 0 and status[queues.head[q]] >= _ENDED:
        ended = queues.head[q]
        queues.head[q] = s.requests.next[ended]
        _let_go(s, ended)
    while queues.root[q] >= 0 and status[queues.root[q]] >= _ENDED:
        ended = queues.root[q]
        queues.root[q] = _merge_children(s, s.requests.child[ended])
        _let_go(s, ended)


@helper(inline=True)
def _let_go(s: State, r: int) -> None:
    """Mark row r as reusable: no queue links to it any more."""
    if s.config.rows_reused[0] == 1:
        s.requests.stale_link[r] = 0


@helper(inline=True)
def first_of(s: State, q: int) -> int:
    """The request with the least key, ties by serial; -1 = the queue is empty."""
    queues = s.queues
    if queues.length[q] == 0:
        if s.config.rows_reused[0] == 1:
            _drop_ended(s, q)
        queues.head[q] = -1
        queues.root[q] = -1
        return -1
    if s.config.cancel[0] != 0 or s.config.runs[0] != 0:
        _drop_ended(s, q)
    head, root = queues.head[q], queues.root[q]
    if head < 0 or (root >= 0 and comes_before(s, root, head)):
        return root
    return head


@helper(inline=True)
def drop_first_of(s: State, q: int, r: int) -> None:
    """Take out request r, which `first_of` has just returned."""
    queues = s.queues
    queues.length[q] -= 1
    if queues.head[q] == r:
        queues.head[q] = s.requests.next[r]
    else:
        queues.root[q] = _merge_children(s, s.requests.child[r])


@helper
def take_out(s: State, q: int, r: int) -> None:
    """Take out request r from any position of queue q: by a walk along the run or through the heap."""
    queues, after = s.queues, s.requests.next
    queues.length[q] -= 1
    before, at = -1, queues.head[q]
    while at >= 0 and at != r:
        before, at = at, after[at]
    if at < 0:
        _take_out_of_heap(s, q, r)
    elif before < 0:
        queues.head[q] = after[r]
    else:
        after[before] = after[r]
        if queues.tail[q] == r:
            queues.tail[q] = before


@helper
def _take_out_of_heap(s: State, q: int, r: int) -> None:
    """Remove roots of the heap until r is the root and removed, then put the other ones back."""
    queues, after, aside = s.queues, s.requests.next, -1
    root = queues.root[q]
    while root >= 0:
        queues.root[q] = _merge_children(s, s.requests.child[root])
        if root == r:
            break
        after[root] = aside
        aside, root = root, queues.root[q]
    while aside >= 0:
        rest = after[aside]
        after[aside] = -1
        s.requests.child[aside] = -1
        queues.root[q] = aside if queues.root[q] < 0 else _meld(s, queues.root[q], aside)
        aside = rest
