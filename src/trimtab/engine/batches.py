"""Batching: requests of one class and model that wait at a node start together in one slot.

A batch holds up to `plan.batch_max[class]` requests. Its first waits for it to fill, for at most
`plan.batch_window_s[class]` after entering the node's queue. All end together, after the longest service of
any of them plus a share of the others' (`batch_marginal`). The first holds the slot, and what its class takes
of the node's resources; the others hang on it.

A node then has a queue for each group of requests that can be served together; the length of its own queue
is that of all of them.
"""

from __future__ import annotations

from trimtab.compiled.kernel import helper
from trimtab.domain.decision import Status
from trimtab.domain.view import Plan
from trimtab.engine.events import WINDOW, push_event
from trimtab.engine.prefix_cache import has_prefixes, use_prefix
from trimtab.engine.queues import comes_before, drop_first_of, enqueue, first_of
from trimtab.engine.residency import acquire
from trimtab.engine.resources import fits_beside, take
from trimtab.engine.slots import announce, occupy, service_s
from trimtab.engine.state import State

_RUNNING = int(Status.RUNNING)


@helper(inline=True)
def queue_at(s: State, j: int, group: int) -> int:
    """The queue of a group of requests at node j."""
    first = len(s.nodes.up) + s.config.dispatchers[0] * s.config.lanes[0] + len(s.links.due)
    return first + j * s.config.groups[0] + group


@helper(inline=True)
def wait_at(s: State, r: int, j: int, due_s: float) -> None:
    """Put request r, whose key is set, into its queue at node j."""
    if s.config.batches[0] == 0:
        enqueue(s, j, r)
    else:
        s.batch.due_s[r] = due_s
        enqueue(s, queue_at(s, j, s.batch.group[r]), r)
        s.queues.length[j] += 1


@helper(inline=True)
def first_waiting(s: State, j: int) -> int:
    """A request that waits at node j, the first by key where nothing is batched; -1 = none."""
    return first_of(s, j) if s.config.batches[0] == 0 else _any_waiting(s, j)


@helper
def _any_waiting(s: State, j: int) -> int:
    for group in range(s.config.groups[0]):
        r = first_of(s, queue_at(s, j, group))
        if r >= 0:
            return int(r)
    return -1


@helper(inline=True)
def stop_waiting(s: State, r: int, j: int) -> None:
    """Take out r, the first in its queue at node j."""
    if s.config.batches[0] == 0:
        drop_first_of(s, j, r)
    else:
        drop_first_of(s, queue_at(s, j, s.batch.group[r]), r)
        s.queues.length[j] -= 1


@helper(inline=True)
def forget_waiting(s: State, r: int, j: int) -> None:
    """Request r, cancelled, waits at node j no longer; its queue drops it when it comes to the front."""
    s.queues.length[j] -= 1
    if s.config.batches[0] == 1:
        s.queues.length[queue_at(s, j, s.batch.group[r])] -= 1


@helper
def batch_max(s: State, plan: Plan, r: int) -> int:
    """How many requests the plan serves together with request r, itself included."""
    c = s.work.class_idx[r]
    if c >= len(plan.batch_max) or s.batch_marginal[c] < 0.0:
        return 1
    return max(1, plan.batch_max[c])


@helper
def enter_group(s: State, plan: Plan, r: int, j: int, now_s: float) -> None:
    """Request r, which may be batched, has reached node j and waits; starts what can start."""
    c = s.work.class_idx[r]
    due_s = now_s + plan.batch_window_s[c] if c < len(plan.batch_window_s) else now_s
    wait_at(s, r, j, due_s)
    if due_s > now_s:
        push_event(s, due_s, WINDOW, r, s.requests.version[r])
    fill_batches(s, plan, j, now_s)


@helper
def fill_batches(s: State, plan: Plan, j: int, now_s: float) -> None:
    """Start batches at node j while it has free slots."""
    while s.nodes.up[j] == 1 and s.nodes.running[j] < s.nodes.slots[j]:
        r = _first_ready(s, plan, j, now_s)
        if r < 0 or not _start_batch(s, plan, r, j, now_s):
            break


@helper
def _first_ready(s: State, plan: Plan, j: int, now_s: float) -> int:
    """First by key of the groups whose batch is full or due; -1 = none."""
    best = -1
    for group in range(s.config.groups[0]):
        q = queue_at(s, j, group)
        r = first_of(s, q)
        if r < 0 or (best >= 0 and not comes_before(s, r, best)):
            continue
        if now_s >= s.batch.due_s[r] or s.queues.length[q] >= batch_max(s, plan, r):
            best = r
    return int(best)


@helper
def _start_batch(s: State, plan: Plan, r: int, j: int, now_s: float) -> bool:
    """Begin to serve r and what waits in its group; False where its models do not fit beside those in use."""
    if not fits_beside(s, r, j):
        return False
    ready_s = acquire(s, plan, r, j, now_s)
    if ready_s < 0.0:
        return False
    stop_waiting(s, r, j)
    longest_s = _serve(s, r, j, now_s)
    all_s, last = longest_s, r
    for _ in range(1, batch_max(s, plan, r)):
        m = first_of(s, queue_at(s, j, s.batch.group[r]))
        there_s = -1.0 if m < 0 else acquire(s, plan, m, j, now_s)
        if there_s < 0.0:
            break
        stop_waiting(s, m, j)
        its_s = _serve(s, m, j, now_s)
        _follow(s, m, last, r)
        last, ready_s = m, max(ready_s, there_s)
        all_s, longest_s = all_s + its_s, max(longest_s, its_s)
    s.requests.left_s[r] = longest_s + s.batch_marginal[s.work.class_idx[r]] * (all_s - longest_s)
    s.requests.slot[r] = s.nodes.running[j]
    s.nodes.running[j] += 1
    take(s, r, j)
    _bind_functions(s, r, j, ready_s, now_s)
    return True


@helper
def _serve(s: State, r: int, j: int, now_s: float) -> float:
    """Request r is served from now on; returns how long that took if it were alone."""
    s.requests.start_s[r] = now_s
    s.requests.status[r] = _RUNNING
    alone_s = service_s(s, r, j)
    if has_prefixes(s):
        use_prefix(s, r, j)
    return alone_s


@helper
def _follow(s: State, m: int, last: int, leader: int) -> None:
    """Request m, which has left its queue, joins a batch behind `last`."""
    s.batch.next[last] = m
    s.batch.leader[m] = leader
    s.requests.slot[m] = -1
    s.requests.version[m] += 1


@helper
def _bind_functions(s: State, r: int, j: int, ready_s: float, now_s: float) -> None:
    """The batch of r takes r's slot: `occupy`, with the estimates of all of it."""
    occupy(s, r, j, ready_s, now_s)
    longest_s, all_s = s.requests.estimate_s[r], s.requests.estimate_s[r]
    m = s.batch.next[r]
    while m >= 0:
        s.requests.service_start_s[m] = ready_s
        all_s += s.requests.estimate_s[m]
        longest_s = max(longest_s, s.requests.estimate_s[m])
        m = s.batch.next[m]
    if s.batch.next[r] >= 0:
        i = s.hidden.first_slot[j] + s.requests.slot[r]
        marginal = s.batch_marginal[s.work.class_idx[r]]
        s.slots.estimate_s[i] = all_s
        s.slots.estimate_end_s[i] = ready_s + longest_s + marginal * (all_s - longest_s)


@helper
def resume_batch(s: State, plan: Plan, r: int, j: int, now_s: float) -> None:
    """Node j is back: the batch of r loads its models again and goes on."""
    ready_s = acquire(s, plan, r, j, now_s)
    m = s.batch.next[r]
    while m >= 0:
        ready_s = max(ready_s, acquire(s, plan, m, j, now_s))
        m = s.batch.next[m]
    _bind_functions(s, r, j, ready_s, now_s)


@helper
def leave_batch(s: State, r: int, j: int) -> bool:
    """Running request r leaves its batch, which goes on as long as ever; False where it is alone."""
    batch, leader = s.batch, s.batch.leader[r]
    if leader >= 0:
        before = leader
        while batch.next[before] != r:
            before = batch.next[before]
        batch.next[before] = batch.next[r]
    elif batch.next[r] >= 0:
        leader = batch.next[r]
        _hand_on(s, r, leader, j)
    else:
        return False
    s.slots.estimate_s[s.hidden.first_slot[j] + s.requests.slot[leader]] -= s.requests.estimate_s[r]
    batch.next[r] = -1
    batch.leader[r] = -1
    return True


@helper
def _hand_on(s: State, r: int, to: int, j: int) -> None:
    """The next of its batch holds the slot in place of r."""
    rows = s.requests
    rows.slot[to] = rows.slot[r]
    rows.left_s[to] = rows.left_s[r]
    rows.finish_s[to] = rows.finish_s[r]
    s.slots.request[s.hidden.first_slot[j] + rows.slot[r]] = to
    s.batch.leader[to] = -1
    m = s.batch.next[to]
    while m >= 0:
        s.batch.leader[m] = to
        m = s.batch.next[m]
    if s.nodes.up[j] == 1 or s.config.completions_from_outside[0] == 1:  # else it is paused
        announce(s, to)


@helper
def drop_follower(s: State, r: int) -> int:
    """Take the first of those behind r out of its batch, which is done; -1 = none."""
    m = s.batch.next[r]
    if m >= 0:
        s.batch.next[r] = s.batch.next[m]
        s.batch.next[m] = -1
        s.batch.leader[m] = -1
    return int(m)
