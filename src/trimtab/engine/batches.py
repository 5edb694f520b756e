"""Batching: requests of one class, model and shape that wait at a node start together in one slot.

A batch holds up to `plan.batch_max[class]` requests. Its first request, the leader, waits for the batch to
fill, for at most `plan.batch_window_s[class]` after entering the node's queue. All requests of a batch end
together, after the longest service among them plus a share of the other services (`batch_marginal`); where a
batch takes its fixed seconds once (`batch_once`), these are no part of the share. The leader holds the slot
and the resources of its class. The other requests are its followers.

With batching a node has one queue for each group of requests that can be served together. The length of the
node's own queue is the sum over these groups.
"""

from __future__ import annotations

import numpy as np

from trimtab.compiled.kernel import helper
from trimtab.domain.requests import Status
from trimtab.domain.view import Plan
from trimtab.engine.events import WINDOW, push_event
from trimtab.engine.prefix_cache import has_prefixes, use_prefix
from trimtab.engine.queues import comes_before, drop_first_of, enqueue, first_of, n_central
from trimtab.engine.residency import acquire
from trimtab.engine.resources import fits_beside, take
from trimtab.engine.slots import announce, occupy, service_s
from trimtab.engine.state import State

_RUNNING = int(Status.RUNNING)


@helper(inline=True)
def queue_at(s: State, j: int, group: int) -> int:
    """The queue of a group of requests at node j."""
    first = len(s.nodes.up) + n_central(s) + len(s.links.due)
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
    """A request that waits at node j: without batching the first by key, else any; -1 = none."""
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
    """Take r, the first in its queue at node j, out of that queue."""
    if s.config.batches[0] == 0:
        drop_first_of(s, j, r)
    else:
        drop_first_of(s, queue_at(s, j, s.batch.group[r]), r)
        s.queues.length[j] -= 1


@helper(inline=True)
def forget_waiting(s: State, r: int, j: int) -> None:
    """Count cancelled request r as gone from node j. Its queue drops the row when it reaches the front."""
    s.queues.length[j] -= 1
    if s.config.batches[0] == 1:
        s.queues.length[queue_at(s, j, s.batch.group[r])] -= 1


@helper
def batch_max(s: State, plan: Plan, r: int) -> int:
    """Largest batch of the plan for request r, including r."""
    c = s.work.class_idx[r]
    if c >= len(plan.batch_max) or s.batch_marginal[c] < 0.0:
        return 1
    return max(1, plan.batch_max[c])


@helper
def enter_group(s: State, plan: Plan, r: int, j: int, now_s: float) -> None:
    """Queue request r, which may be batched, at node j, then start all batches that can start."""
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
    """The first request by key among the groups with a full or due batch; -1 = none."""
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
    """Start a batch with r and its waiting group. False if r's models do not fit beside those in use."""
    if not fits_beside(s, r, j):
        return False
    ready_s = acquire(s, plan, r, j, now_s)
    if ready_s < 0.0:
        return False
    stop_waiting(s, r, j)
    once_s = _once_s(s, r, j)
    longest_s = _serve(s, r, j, now_s) - once_s * s.truth.factor[r]
    all_s, last = longest_s, r
    for _ in range(1, batch_max(s, plan, r)):
        m = first_of(s, queue_at(s, j, s.batch.group[r]))
        there_s = -1.0 if m < 0 else acquire(s, plan, m, j, now_s)
        if there_s < 0.0:
            break
        stop_waiting(s, m, j)
        its_s = _serve(s, m, j, now_s) - once_s * s.truth.factor[m]
        _follow(s, m, last, r)
        last, ready_s = m, max(ready_s, there_s)
        all_s, longest_s = all_s + its_s, max(longest_s, its_s)
    more_s = s.batch_marginal[s.work.class_idx[r]] * (all_s - longest_s)
    s.requests.left_s[r] = once_s * s.truth.factor[r] + (longest_s + more_s)
    s.requests.slot[r] = s.nodes.running[j]
    s.nodes.running[j] += 1
    take(s, r, j)
    _bind_functions(s, r, j, ready_s, now_s)
    return True


@helper(inline=True)
def _once_s(s: State, r: int, j: int) -> float:
    """Seconds that the batch of request r takes once on node j, however many requests it has."""
    c = s.work.class_idx[r]
    return float(s.batch_once[c] * s.fixed_s[c, s.nodes.type_idx[j]])


@helper
def _serve(s: State, r: int, j: int, now_s: float) -> float:
    """Mark request r as running; returns its service seconds without a batch."""
    s.requests.start_s[r] = now_s
    s.requests.status[r] = _RUNNING
    alone_s = service_s(s, r, j)
    if has_prefixes(s):
        use_prefix(s, r, j)
    return alone_s


@helper
def _follow(s: State, m: int, last: int, leader: int) -> None:
    """Append request m, which has left its queue, to a batch behind `last`."""
    s.batch.next[last] = m
    s.batch.leader[m] = leader
    s.requests.slot[m] = -1
    s.requests.version[m] += 1


@helper
def _bind_functions(s: State, r: int, j: int, ready_s: float, now_s: float) -> None:
    """`occupy` the slot of r for its batch, with the estimates of the whole batch."""
    occupy(s, r, j, ready_s, now_s)
    longest_s, all_s, shared_s = s.requests.estimate_s[r], s.requests.estimate_s[r], 0.0
    m = s.batch.next[r]
    while m >= 0:
        s.requests.service_start_s[m] = ready_s
        all_s += s.requests.estimate_s[m]
        longest_s = max(longest_s, s.requests.estimate_s[m])
        shared_s += _once_s(s, m, j)
        m = s.batch.next[m]
    if s.batch.next[r] >= 0:
        i = s.hidden.first_slot[j] + s.requests.slot[r]
        marginal = s.batch_marginal[s.work.class_idx[r]]
        s.slots.estimate_s[i] = all_s
        begins_s = ready_s if ready_s < np.inf else now_s
        s.slots.estimate_end_s[i] = begins_s + longest_s + marginal * (all_s - longest_s - shared_s)


@helper
def resume_batch(s: State, plan: Plan, r: int, j: int, now_s: float) -> None:
    """Node j is repaired: the batch of r loads its models again and continues."""
    ready_s = acquire(s, plan, r, j, now_s)
    m = s.batch.next[r]
    while m >= 0:
        ready_s = max(ready_s, acquire(s, plan, m, j, now_s))
        m = s.batch.next[m]
    _bind_functions(s, r, j, ready_s, now_s)


@helper
def leave_batch(s: State, r: int, j: int) -> bool:
    """Take running request r out of its batch, whose duration stays. False if r has no batch."""
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
    """Make `to`, the next request of the batch, its leader and holder of the slot in place of r."""
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
    if s.hidden.down[j] == 0 or s.config.completions_from_outside[0] == 1:  # else it is paused
        announce(s, to)


@helper
def drop_follower(s: State, r: int) -> int:
    """Take the first follower of r out of its finished batch; -1 = none."""
    m = s.batch.next[r]
    if m >= 0:
        s.batch.next[r] = s.batch.next[m]
        s.batch.next[m] = -1
        s.batch.leader[m] = -1
    return int(m)
