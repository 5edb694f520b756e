"""Preemption for guarantees: queues that are short of theirs get places back from those that exceed theirs.

A queue with held work that its guarantee would take is short. Once it has been so for its notice, running
requests of other queues are taken back, youngest first. They return to their dispatcher, and start again
later. A request is taken only if its queues exceed their own guarantees, up to the one that holds the short
queue too; so no queue loses what it has a right to. Requests at engines are not taken, nor those of batches.
"""

from __future__ import annotations

import numpy as np

from trimtab.compiled.kernel import helper
from trimtab.domain.view import Plan
from trimtab.engine.events import PREEMPTION, VERSIONS, push_event
from trimtab.engine.nodes import accepts, anchor, drain, send_back, vacate, withdraw
from trimtab.engine.queues import central_queue, comes_before, first_of, n_central, take_out
from trimtab.engine.resources import fits_beside, give_back, take
from trimtab.engine.service import is_engine
from trimtab.engine.shares import (
    compare,
    exceeds_guarantee,
    is_due,
    is_earlier,
    is_within_limits,
    leaf_of,
    look_at_held,
    update_shares,
)
from trimtab.engine.state import TREE_SHARES, State
from trimtab.engine.virtual_counters import note_at_nodes

AGAIN_S = 1.0  # least time between two attempts of a queue that finds nothing to preempt


@helper
def note_short(s: State, now_s: float) -> None:
    """Note which queues have become short of their guarantee, or are no longer."""
    look_at_held(s)
    tree = s.tree
    for q in range(1, len(tree.parent)):
        was_short = tree.short_since_s[q] < np.inf
        if tree.is_short[q] == 1 and not was_short:
            tree.short_since_s[q] = now_s
            if tree.notice_s[q] < np.inf:
                push_event(s, now_s + tree.notice_s[q], PREEMPTION, q, tree.version[q])
        elif tree.is_short[q] == 0 and was_short:
            tree.short_s[q] += now_s - tree.short_since_s[q]
            tree.short_since_s[q] = np.inf
            tree.version[q] += 1


@helper
def _first_due(s: State, q: int) -> int:
    """The held request of queue q that goes first within its guarantee; −1 = none."""
    by_tree = s.config.virtual_counters[0] == TREE_SHARES
    look_at_held(s)
    if by_tree:
        update_shares(s)
    best, first = -1, len(s.nodes.up)
    for i in range(first, first + n_central(s)):
        r = first_of(s, i)
        if r < 0 or not q <= leaf_of(s, r) < s.tree.end[q] or not is_due(s, r, q):
            continue
        if not is_within_limits(s, r):
            continue
        if best < 0:
            best = r
        elif by_tree:
            order = compare(s, r, best)
            if order < 0 or (order == 0 and is_earlier(s, r, best)):
                best = r
        elif comes_before(s, r, best):
            best = r
    return best


@helper
def _may_lose(s: State, r: int, q: int, now_s: float) -> bool:
    """Whether running request r may be taken back for queue q."""
    rows = s.preemptions
    if rows.is_firm[r] == 1 or rows.is_chosen[r] == 1 or s.class_is_firm[s.work.class_idx[r]] == 1:
        return False
    if s.requests.start_s[r] >= now_s:  # what has just begun is no younger than what it would make way for
        return False
    if s.config.batches[0] == 1 and (s.batch.next[r] >= 0 or s.batch.leader[r] >= 0):
        return False
    above = leaf_of(s, r)
    if s.tree.preemptible[above] == 0:
        return False
    if above <= q < s.tree.end[above] or q <= above < s.tree.end[q]:
        return False
    while not above <= q < s.tree.end[above]:
        if not exceeds_guarantee(s, r, above):
            return False
        above = s.tree.parent[above]
    return True


@helper
def _youngest(s: State, q: int, j: int, now_s: float) -> int:
    """The request of node j that started last, of those that may be taken back for queue q; −1 = none."""
    best, first = -1, s.hidden.first_slot[j]
    for i in range(first, first + s.nodes.running[j]):
        r = s.slots.request[i]
        if not _may_lose(s, r, q, now_s):
            continue
        later_s = np.inf if best < 0 else s.requests.start_s[r] - s.requests.start_s[best]
        if later_s > 0.0 or (later_s == 0.0 and s.work.serial[r] > s.work.serial[best]):
            best = r
    return best


@helper
def _set_aside(s: State, r: int, j: int, by: int) -> None:
    """Count request r of node j as gone (−1), or as back (1)."""
    note_at_nodes(s, r, by)
    s.preemptions.is_chosen[r] = 1 if by < 0 else 0
    s.nodes.room[j] -= by
    s.nodes.in_flight[j] += by
    s.hidden.token_room[j] -= by * s.work.tokens[r]
    if by < 0:
        give_back(s, r, j)
    else:
        take(s, r, j)


@helper
def _starts(s: State, r: int, j: int, gone: int) -> bool:
    """Whether request r would start on node j, which so many requests have left."""
    has_slot = s.nodes.running[j] - gone < s.nodes.slots[j]
    fits = s.config.use_from_outside[0] == 1 or fits_beside(s, r, j)
    return bool(has_slot and fits and accepts(s, r, j))


@helper
def _choose(s: State, r: int, q: int, j: int, now_s: float) -> int:
    """Set requests of node j aside until r would start there; their number, or 0 if it would not."""
    gone, count = -1, 0
    while not _starts(s, r, j, count):
        gone = _youngest(s, q, j, now_s)
        if gone < 0:
            break
        _set_aside(s, gone, j, -1)
        count += 1
    if count > 0 and gone < 0:
        _bring_back(s, j)
        return 0
    return count


@helper
def _bring_back(s: State, j: int) -> float:
    """Undo `_set_aside` of all requests of node j; returns the time that they have held slots since."""
    held_s, first = 0.0, s.hidden.first_slot[j]
    for i in range(first, first + s.nodes.running[j]):
        r = s.slots.request[i]
        if s.preemptions.is_chosen[r] == 1:
            _set_aside(s, r, j, 1)
            held_s -= s.requests.start_s[r]
    return held_s


@helper
def _best_node(s: State, r: int, q: int, now_s: float) -> int:
    """The node where r would start once the fewest, then the youngest, are taken back; −1 = none."""
    best, fewest, least_s = -1, 0, 0.0
    for j in range(len(s.nodes.up)):
        if s.nodes.up[j] != 1 or s.hidden.down[j] > 0 or is_engine(s, j):
            continue
        count = _choose(s, r, q, j, now_s)
        if count > 0:
            held_s = _bring_back(s, j)
            if best < 0 or count < fewest or (count == fewest and held_s < least_s):
                best, fewest, least_s = j, count, held_s
    return best


@helper
def _take_back(s: State, r: int, j: int, now_s: float) -> None:
    """Running request r leaves node j and is dispatched again later. It is no retry."""
    lost_s, q = now_s - s.requests.start_s[r], leaf_of(s, r)
    s.preemptions.times[r] += 1
    s.preemptions.lost_s[r] += lost_s
    while q >= 0:
        s.tree.preempted[q] += 1
        s.tree.lost_s[q] += lost_s
        q = s.tree.parent[q]
    s.counts.preempted[0] += 1
    vacate(s, r, j, now_s)
    withdraw(s, r, j)
    send_back(s, r, now_s)
    if s.config.deadlines_while_held[0] == 1:
        s.preemptions.until_s[r] = np.inf  # until the host says how long
    if s.config.rows_reused[0] == 1:
        s.taken_back[s.counts.taken_back[0]] = r
        s.counts.taken_back[0] += 1


@helper
def preempt(s: State, plan: Plan, q: int, version: int, now_s: float) -> int:
    """Handle a PREEMPTION event of queue q: make room for its first request.

    Returns that request, out of its queue and bound to the node that has room; −1 = there is none.
    """
    if (s.tree.version[q] & (VERSIONS - 1)) != version:
        return -1
    r = _first_due(s, q)
    j = -1 if r < 0 else _best_node(s, r, q, now_s)
    if j < 0:
        push_event(s, now_s + max(AGAIN_S, s.tree.notice_s[q]), PREEMPTION, q, version)
        return -1
    push_event(s, now_s, PREEMPTION, q, version)  # it may still be short then
    take_out(s, central_queue(s, r), r)
    _choose(s, r, q, j, now_s)
    i = s.hidden.first_slot[j]
    while i < s.hidden.first_slot[j] + s.nodes.running[j]:
        gone = s.slots.request[i]
        if s.preemptions.is_chosen[gone] == 1:  # the last request moves to its slot
            _set_aside(s, gone, j, 1)
            _take_back(s, gone, j, now_s)
        else:
            i += 1
    drain(s, j, now_s)  # what waits there would take the place
    anchor(s, j, now_s)
    s.counts.offers_due[0] = 1
    s.counts.bound[0] = j + 1
    return r
