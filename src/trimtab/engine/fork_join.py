"""Splitting and joining: the parts of a request are served separately. The request ends after its last part.

A request is split once, on arrival, into at most `plan.split_max[class]` parts and at most `work.parts_max`
(images, tiles). Dispatchers and nodes treat a part as a separate request: it takes its share of the units and
pays the fixed time of its class again. The split request itself is at no node. It counts in `in_system` again
after its last part, while the parts are joined, or after a part has failed.
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
    """Split request r, which has just arrived, if the plan requires it. Each part then gets a decision."""
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
    """Finish request r, whose parts are joined."""
    gather(s, r)
    s.requests.finish_s[r] = now_s
    s.requests.status[r] = _FINISHED
    s.counts.finished[0] += 1
    s.counts.in_system[0] -= 1
    s.counts.in_nodes[0] -= 1
    s.counts.idle_events[0] = 0


@helper
def note_part_failed(s: State, r: int, now_s: float) -> None:
    """Part r has failed, so its request fails too: at the same time, but in a separate event."""
    p = s.parts.parent[r]
    if s.parts.left[p] > 0:
        s.parts.left[p] = -1
        s.counts.in_system[0] += 1
        push_event(s, now_s, LOSS, p, PART_FAILED)


@helper
def give_up(s: State, r: int) -> None:
    """Prepare split request r for its end. Later events of its parts have no effect on it."""
    if s.parts.left[r] == 0:
        s.counts.in_nodes[0] -= 1
    elif s.parts.left[r] > 0:
        s.counts.in_system[0] += 1
    s.parts.left[r] = -1


@helper
def gather(s: State, r: int) -> None:
    """Fill the record of a split request: the first start of any part, and the retries of all parts."""
    for i in range(s.parts.count[r]):
        part = part_of(s, r, i)
        s.requests.retries[r] += s.requests.retries[part]
        s.requests.start_s[r] = _earlier(s.requests.start_s[r], s.requests.start_s[part])
        begun_s = s.requests.service_start_s[part]
        s.requests.service_start_s[r] = _earlier(s.requests.service_start_s[r], begun_s)


@helper
def _earlier(a_s: float, b_s: float) -> float:
    """The earlier of two times; nan = no time."""
    return b_s if a_s != a_s or b_s < a_s else a_s


@helper
def has_started(s: State, r: int) -> bool:
    """Whether request r holds a slot, or any of its parts holds or held one."""
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
