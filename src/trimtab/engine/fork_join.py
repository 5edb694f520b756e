"""Splitting and joining: parts of a request are served on their own, and it ends when its last part has.

A request is split once, on arrival, into at most `plan.split_max[class]` parts and never more than it has
(`work.parts_max`: images, tiles). A part is a request of its own for dispatchers and nodes: it takes its
share of the units and pays the fixed time of its class again. The request itself is then nowhere: it counts
in `in_system` again when its last part is done, while the parts are joined, or when one of them has failed.
"""

from __future__ import annotations

from trimtab.compiled.kernel import helper
from trimtab.domain.decision import Status
from trimtab.domain.view import Plan
from trimtab.engine.events import ARRIVAL, COMPLETION, LOSS, push_event
from trimtab.engine.slots import best_estimate_s
from trimtab.engine.state import State

PART_FAILED = 2  # version of a LOSS event: a part of the request was rejected or lost

_RUNNING, _RETRYING, _FINISHED = int(Status.RUNNING), int(Status.RETRYING), int(Status.FINISHED)
_REJECTED, _LOST = int(Status.REJECTED), int(Status.LOST)


@helper(inline=True)
def is_split(s: State, r: int) -> bool:
    """Whether request r was split into parts."""
    return s.config.splits[0] == 1 and s.parts.count[r] > 0


@helper(inline=True)
def is_part(s: State, r: int) -> bool:
    """Whether row r is a part of a request."""
    return s.config.splits[0] == 1 and s.parts.parent[r] >= 0


@helper(inline=True)
def part_of(s: State, r: int, i: int) -> int:
    """Row of the i-th part of request r."""
    return s.parts.first[r] + i * s.config.dispatchers[0]


@helper
def split(s: State, plan: Plan, r: int, now_s: float) -> bool:
    """Split request r, which has just arrived, if the plan says so; each part is then decided about."""
    c = s.work.class_idx[r]
    count = min(plan.split_max[c], s.work.parts_max[r]) if c < len(plan.split_max) else 1
    if count < 2:
        return False
    s.parts.count[r] = count
    s.parts.left[r] = count
    s.requests.status[r] = _RUNNING
    s.requests.slot[r] = -1
    s.counts.in_system[0] += count - 1
    for i in range(count):
        part = part_of(s, r, i)
        _fill_in(s, part, r, _share(s.work.parts_max[r], count, i))
        s.requests.status[part] = _RETRYING
        push_event(s, now_s, ARRIVAL, part, s.requests.version[part])
    return True


@helper
def _share(most: int, count: int, i: int) -> float:
    """Share of the i-th of `count` parts, as even as whole images allow."""
    return (most // count + (1 if i < most % count else 0)) / most


@helper
def _fill_in(s: State, part: int, r: int, share: float) -> None:
    work = s.work
    work.arrival_s[part] = work.arrival_s[r]
    work.deadline_s[part] = work.deadline_s[r]
    work.units[part] = work.units[r] * share
    work.payload_gib[part] = work.payload_gib[r] * share
    work.tokens[part] = work.tokens[r] * share
    work.cost[part] = work.cost[r] * share
    s.truth.units[part] = s.truth.units[r] * share
    work.estimate_s[part] = best_estimate_s(s, part)


@helper
def note_part_done(s: State, r: int, now_s: float) -> None:
    """Part r is finished; after the last one the parts are joined."""
    p = s.parts.parent[r]
    s.parts.left[p] -= 1
    if s.parts.left[p] == 0:
        s.requests.node_idx[p] = s.requests.node_idx[r]
        s.counts.in_system[0] += 1
        s.counts.in_nodes[0] += 1
        push_event(s, now_s + s.join_s[s.work.class_idx[p]], COMPLETION, p, s.requests.version[p])


@helper
def join(s: State, r: int, now_s: float) -> None:
    """The parts of request r are joined: it is finished."""
    gather(s, r)
    s.requests.finish_s[r] = now_s
    s.requests.status[r] = _FINISHED
    s.counts.finished[0] += 1
    s.counts.in_system[0] -= 1
    s.counts.in_nodes[0] -= 1
    s.counts.idle_events[0] = 0


@helper
def note_part_failed(s: State, r: int, now_s: float) -> None:
    """Part r will not be finished, so neither will its request: at this very time, but not in this event."""
    p = s.parts.parent[r]
    if s.parts.left[p] > 0:
        s.parts.left[p] = -1
        s.counts.in_system[0] += 1
        push_event(s, now_s, LOSS, p, PART_FAILED)


@helper
def give_up(s: State, r: int) -> None:
    """Split request r is about to end; whatever becomes of its parts changes nothing any more."""
    if s.parts.left[r] == 0:
        s.counts.in_nodes[0] -= 1
    elif s.parts.left[r] > 0:
        s.counts.in_system[0] += 1
    s.parts.left[r] = -1


@helper
def gather(s: State, r: int) -> None:
    """Record of a split request: first start of any part, and all nodes that parts have lost."""
    for i in range(s.parts.count[r]):
        part = part_of(s, r, i)
        s.requests.retries[r] += s.requests.retries[part]
        s.requests.start_s[r] = _earlier(s.requests.start_s[r], s.requests.start_s[part])
        begun_s = s.requests.service_start_s[part]
        s.requests.service_start_s[r] = _earlier(s.requests.service_start_s[r], begun_s)


@helper
def _earlier(a_s: float, b_s: float) -> float:
    """The lesser of two times, each of which may be none (nan)."""
    return b_s if a_s != a_s or b_s < a_s else a_s


@helper
def has_started(s: State, r: int) -> bool:
    """Whether request r holds a slot, or a part of it does or did."""
    if not is_split(s, r):
        return s.requests.status[r] == _RUNNING
    for i in range(s.parts.count[r]):  # noqa: SIM110 - numba compiles no generator expressions
        if s.requests.start_s[part_of(s, r, i)] >= 0.0:
            return True
    return False


@helper
def failed_part(s: State, r: int) -> int:
    """The first part of request r that was rejected or lost; -1 = none."""
    for i in range(s.parts.count[r]):
        part = part_of(s, r, i)
        if s.requests.status[part] == _REJECTED or s.requests.status[part] == _LOST:
            return int(part)
    return -1
