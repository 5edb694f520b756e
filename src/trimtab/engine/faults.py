"""Faults of nodes and links: failures, slow-downs, congestion, and their ends; and work that others send.

Background work takes an amount of one resource, so that fewer requests fit beside it, and may slow service.
Requests that run when it begins keep what they have.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from trimtab.compiled.kernel import helper
from trimtab.domain.requests import Reason, Status
from trimtab.domain.view import Plan
from trimtab.engine.draws import stream, uniform
from trimtab.engine.events import FAILURE, REPAIR, push_event
from trimtab.engine.flows import set_cable
from trimtab.engine.nodes import (
    anchor,
    change_speed,
    drain,
    pause,
    resume,
    send_back,
    stop_node,
    vacate,
    withdraw,
)
from trimtab.engine.runs import is_stage, max_retries_of, note_over, note_stage_failed
from trimtab.engine.service import CLEAR, LAST, SETTLE, TAKE_OUT, ask, is_engine
from trimtab.engine.state import State
from trimtab.engine.telemetry import note_change

_RUNNING = int(Status.RUNNING)
_LOST, _RETRIES = int(Status.LOST), int(Reason.RETRIES)
_REJECTED, _CANCELLED = int(Status.REJECTED), int(Status.CANCELLED)
_STREAM = 1 << 40  # fault processes draw from serials that no request has


@helper
def end(s: State, r: int, status: int, reason: int, now_s: float) -> None:
    """End request r unserved: rejected, cancelled or lost."""
    s.requests.status[r] = status
    s.requests.reason[r] = reason
    s.requests.finish_s[r] = np.nan  # it may have been planned
    s.requests.ended_s[r] = now_s
    s.requests.version[r] += 1
    s.counts.in_system[0] -= 1
    s.counts.idle_events[0] = 0
    note_over(s, r)
    if is_stage(s, r):
        note_stage_failed(s, r, now_s)
    elif status == _REJECTED:
        s.counts.rejected[0] += 1
    elif status == _CANCELLED:
        s.counts.cancelled[0] += 1
    else:
        s.counts.lost[0] += 1
    if s.config.rows_reused[0] == 1:
        s.ended[s.counts.ended[0]] = r
        s.counts.ended[0] += 1


@helper
def _exponential(seed: int, f: int, count: int, i: int, mean_s: float) -> float:
    u = uniform(stream(seed, _STREAM + f, count), i)
    return -mean_s * math.log(1.0 - u)


@helper
def _draw_next(s: State, f: int, after_s: float) -> None:
    faults = s.faults
    faults.count[f] += 1
    seed, count = s.config.seed[0], faults.count[f]
    faults.start_s[f] = after_s + _exponential(seed, f, count, 0, faults.mtbf_s[f])
    faults.end_s[f] = faults.start_s[f] + _exponential(seed, f, count, 1, faults.mttr_s[f])


def fault_times(faults: NDArray[np.void], seed: int, until_s: float) -> Iterator[tuple[int, float, float]]:
    """(process, start, end) of every fault that begins before a time, as a run of this seed meets them."""
    for f, fault in enumerate(faults):
        start_s, end_s, mtbf_s = float(fault["start_s"]), float(fault["end_s"]), float(fault["mtbf_s"])
        if mtbf_s == np.inf:
            if start_s < until_s:
                yield f, start_s, end_s
            continue
        for count in itertools.count(1):
            after_s = end_s if count > 1 else 0.0
            with np.errstate(over="ignore"):  # draws wrap around
                start_s = after_s + _exponential(seed, f, count, 0, mtbf_s)
                end_s = start_s + _exponential(seed, f, count, 1, float(fault["mttr_s"]))
            if start_s >= until_s:
                break
            yield f, start_s, end_s


@helper
def begin_faults(s: State) -> None:
    """Schedule the first fault of each process; recurring ones are drawn."""
    for f in range(len(s.faults.count)):
        if s.faults.mtbf_s[f] < np.inf:
            _draw_next(s, f, 0.0)
        if s.faults.start_s[f] < np.inf:
            push_event(s, s.faults.start_s[f], FAILURE, f, 0)


@helper
def _lose_batch(s: State, plan: Plan, j: int, now_s: float) -> None:
    """All rows of the batch of failed engine j are dispatched again, or lost."""
    ask(s, plan, SETTLE, -1, j, now_s)
    r = ask(s, plan, LAST, -1, j, now_s)
    while r >= 0:
        ask(s, plan, TAKE_OUT, r, j, now_s)
        if s.requests.status[r] == _RUNNING:  # else it was cancelled in the iteration that is lost
            try_again(s, r, j, now_s)
        r = ask(s, plan, LAST, -1, j, now_s)
    ask(s, plan, CLEAR, -1, j, now_s)


@helper
def _lose_running(s: State, plan: Plan, j: int, now_s: float) -> None:
    if is_engine(s, j):
        _lose_batch(s, plan, j, now_s)
        return
    first = s.hidden.first_slot[j]
    while s.nodes.running[j] > 0:
        r = s.slots.request[first + s.nodes.running[j] - 1]
        lose(s, r, j, now_s)


@helper
def lose(s: State, r: int, j: int, now_s: float) -> None:
    """Take running request r from node j: it is dispatched again, or lost if no retries are left."""
    vacate(s, r, j, now_s)
    try_again(s, r, j, now_s)


@helper
def try_again(s: State, r: int, j: int, now_s: float) -> None:
    """Request r, which has left its slot, leaves node j too: dispatched again, or lost without retries."""
    withdraw(s, r, j)
    if s.requests.retries[r] >= max_retries_of(s, r):
        end(s, r, _LOST, _RETRIES, now_s)
    else:
        s.requests.retries[r] += 1
        s.counts.retries[0] += 1
        send_back(s, r, now_s)


@helper
def _fail(s: State, plan: Plan, j: int, now_s: float) -> None:
    s.hidden.down[j] += 1
    if s.hidden.down[j] > 1:
        return
    if s.config.resume[0] == 1:
        pause(s, plan, j, now_s)
        stop_node(s, j, now_s)
    else:
        _lose_running(s, plan, j, now_s)
        stop_node(s, j, now_s)
        drain(s, j, now_s)
    anchor(s, j, now_s)


@helper
def _repair(s: State, plan: Plan, j: int, now_s: float) -> None:
    s.hidden.down[j] -= 1
    if s.hidden.down[j] > 0:
        return
    s.nodes.up[j] = 1
    s.hidden.down_s[j] += now_s - s.hidden.down_since_s[j]
    resume(s, plan, j, now_s)


@helper
def _speed_of(s: State, j: int) -> float:
    speed = 1.0
    for f in range(len(s.faults.count)):
        is_its = s.faults.node_idx[f] == j and s.faults.cable[f] == 0
        if is_its and s.faults.active[f] == 1 and s.faults.factor[f] > 0.0:
            speed = min(speed, s.faults.factor[f])
    return speed


@helper
def _strike_cable(s: State, f: int, now_s: float) -> None:
    """Give the link of process f what the processes in force leave of it: the least of their factors."""
    factor = 1.0
    for k in range(len(s.faults.count)):
        if s.faults.cable[k] == s.faults.cable[f] and s.faults.active[k] == 1:
            factor = min(factor, s.faults.factor[k])
    set_cable(s, s.faults.cable[f] - 1, factor, now_s)


@helper
def _use(s: State, f: int, sign: float) -> None:
    """Background work of process f takes its resource (+1), or gives it back (−1)."""
    if s.faults.resource[f] > 0:
        j = s.faults.node_idx[f]
        s.used[j, s.faults.resource[f] - 1] += sign * s.faults.amount[f]
        note_change(s, j)


@helper
def on_fault(s: State, plan: Plan, f: int, now_s: float) -> None:
    """A fault of process f begins."""
    s.faults.active[f] = 1
    j = s.faults.node_idx[f]
    if s.faults.cable[f] > 0:
        _strike_cable(s, f, now_s)
    elif s.faults.factor[f] == 0.0:
        _fail(s, plan, j, now_s)
    else:
        change_speed(s, plan, j, _speed_of(s, j), now_s)
    _use(s, f, 1.0)
    if s.faults.end_s[f] < np.inf:
        if s.faults.factor[f] == 0.0 or s.faults.resource[f] > 0:
            s.counts.pending_wakeups[0] += 1
        push_event(s, s.faults.end_s[f], REPAIR, f, 0)


@helper
def on_repair(s: State, plan: Plan, f: int, now_s: float) -> int:
    """A fault of process f ends. Returns its node, which may have free slots now; -1 = it was a link's."""
    s.faults.active[f] = 0
    j = s.faults.node_idx[f] if s.faults.cable[f] == 0 else -1
    _use(s, f, -1.0)
    if s.faults.factor[f] == 0.0 or s.faults.resource[f] > 0:
        s.counts.pending_wakeups[0] -= 1
    if s.faults.cable[f] > 0:
        _strike_cable(s, f, now_s)
    elif s.faults.factor[f] == 0.0:
        _repair(s, plan, j, now_s)
    else:
        change_speed(s, plan, j, _speed_of(s, j), now_s)
    if s.faults.mtbf_s[f] < np.inf:
        _draw_next(s, f, now_s)
        push_event(s, s.faults.start_s[f], FAILURE, f, 0)
    return int(j)
