"""The event loop that every host runs: take the next event, change the state, decide.

`advance` returns when it needs its host: at a given time, when a plan is due, when the event heap is full,
when the host itself decides, or after a bad decision. `State` holds everything, so the host can stop the loop
after any event and continue.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trimtab.compiled.kernel import helper, kernel
from trimtab.domain.requests import Reason, Status
from trimtab.domain.view import PINNED_RUNNING, Plan
from trimtab.engine.batches import drop_follower, forget_waiting, leave_batch
from trimtab.engine.decision_trace import note_decision
from trimtab.engine.events import (
    ARRIVAL,
    CANCELLATION,
    COMPLETION,
    FAILURE,
    FLOW,
    LOSS,
    PLAN,
    PREEMPTION,
    REPAIR,
    SERIAL_BITS,
    STEP,
    SWITCH,
    TELEMETRY,
    TRANSFER,
    VERSION_BITS,
    VERSIONS,
    WINDOW,
    drop_first_event,
    kind_of,
    push_event,
    serial_of,
    take_injected,
)
from trimtab.engine.faults import begin_faults, end, lose, on_fault, on_repair, try_again
from trimtab.engine.flows import MODEL, RESULT, has_network, is_current, share_anew, take_ended
from trimtab.engine.held_work import (
    ASKED_ABOUT_ONE,
    CALL_RAISED,
    HOST_ASKED,
    await_deadline,
    carry_out,
    consult_shadow,
    decide,
    hold,
    next_offer,
    note_unheld,
    nothing_held,
    reject,
    set_avoided,
    takes_affinity,
    unlink,
)
from trimtab.engine.layout import PRESENT
from trimtab.engine.links import abandon, move_on
from trimtab.engine.loading_ahead import load_ahead
from trimtab.engine.network_transfers import begin_result, end_model, end_result, is_all_there
from trimtab.engine.nodes import (
    anchor,
    drain,
    enter,
    fill,
    leave_slot,
    send_back,
    vacate,
    withdraw,
)
from trimtab.engine.placement import take_placement
from trimtab.engine.queue_preemption import note_short, preempt
from trimtab.engine.residency import release
from trimtab.engine.result_cache import answer, has_results, keep_result
from trimtab.engine.runs import (
    STAGE_FAILED,
    begin_run,
    end_joined,
    end_unserved,
    failed_stage,
    gather,
    give_up,
    has_error,
    has_started,
    is_dispatched,
    is_run,
    is_stage,
    note_ready,
    note_row_done,
)
from trimtab.engine.service import BEGIN, END, LEAVE, NEXT_ENDED, ask, is_engine
from trimtab.engine.shares import has_tree, is_within_limits
from trimtab.engine.slots import begin_row
from trimtab.engine.stage_inputs import note_fetched
from trimtab.engine.state import AVOIDED, State
from trimtab.engine.telemetry import (
    begin_telemetry,
    dispatcher_of,
    on_telemetry,
)
from trimtab.engine.virtual_counters import (
    lift_virtual_counter,
    settle_cost,
)

# Why `advance` returned.
DONE, PAUSED, REACHED, PLAN_DUE, PLAN_READY, FULL, BAD_DECISION, RAISED, DECIDE = range(9)

MAX_IDLE_EVENTS = 10_000  # after this many periodic events without effect, held requests stay held

_HELD, _TRANSFER, _QUEUED = int(Status.HELD), int(Status.TRANSFER), int(Status.QUEUED)
_RUNNING, _RETRYING, _FINISHED = int(Status.RUNNING), int(Status.RETRYING), int(Status.FINISHED)
_CANCELLED = int(Status.CANCELLED)
_FITS_NO_NODE = int(Reason.FITS_NO_NODE)
_DEADLINE, _ABORTED = int(Reason.DEADLINE), int(Reason.ABORTED)
_PENDING = int(Status.PENDING)

_AN_ARRIVAL = ARRIVAL << (SERIAL_BITS + VERSION_BITS)  # as `counts.now_key`

AGAIN_LATER = 3  # version of a LOSS event: the host itself says when the request is dispatched again


@kernel
def begin(s: State) -> None:
    """Schedule the first telemetry, plan and fault events."""
    begin_telemetry(s)
    begin_faults(s)
    if s.config.plan_period_s[0] > 0.0:
        push_event(s, 0.0, PLAN, 0, 0)


@helper
def _expire(s: State, plan: Plan, r: int, now_s: float) -> None:
    """A deadline is due: of request r, or of an earlier request in the same row."""
    s.counts.pending_wakeups[0] -= 1
    status = s.requests.status[r]
    if status == _PENDING or status >= _FINISHED or (s.config.cancel[0] != 2 and has_started(s, r)):
        return
    deadline_s = s.work.deadline_s[r]
    if has_tree(s) and s.preemptions.until_s[r] > 0.0:
        deadline_s = s.preemptions.until_s[r]
    if now_s >= deadline_s:
        _cancel(s, plan, r, _DEADLINE, now_s)


@helper
def _cancel(s: State, plan: Plan, r: int, reason: int, now_s: float) -> None:
    """Cancel request r, which is in flight, in whichever state it is."""
    if is_run(s, r):
        _end_run(s, plan, r, _CANCELLED, reason, now_s)
    else:
        _leave(s, plan, r, reason, now_s)


@helper
def _end_run(s: State, plan: Plan, r: int, status: int, reason: int, now_s: float) -> None:
    """End run r and all of its stages."""
    give_up(s, r)
    for g in range(s.runs.group[r], s.runs.group[r] + s.runs.n_groups[r]):
        for row in range(s.groups.row[g], s.groups.row[g] + s.groups.count[g]):
            if s.requests.status[row] == _PENDING:
                s.requests.status[row], s.requests.reason[row] = _CANCELLED, reason
                s.requests.ended_s[row] = now_s
            elif s.requests.status[row] < _FINISHED:
                _leave(s, plan, row, reason, now_s)
    gather(s, r)
    end(s, r, status, reason, now_s)


@helper
def _leave(s: State, plan: Plan, r: int, reason: int, now_s: float) -> None:
    """Cancel request r, which is no run, and remove it from its queue, transfer or slot."""
    status, j = s.requests.status[r], s.requests.node_idx[r]
    if status == _RUNNING and is_engine(s, j):
        ask(s, plan, LEAVE, r, j, now_s)
    elif status == _RUNNING and (s.hidden.down[j] == 0 or s.config.completions_from_outside[0] == 1):
        vacate(s, r, j, now_s)
    elif status == _RUNNING and not (s.config.batches[0] == 1 and leave_batch(s, r, j)):
        leave_slot(s, r, j)  # kept by a failed node: it holds no models and uses no time
    end(s, r, _CANCELLED, reason, now_s)
    if status == _HELD:
        unlink(s, r)
    elif status != _RETRYING:
        if status == _TRANSFER:
            abandon(s, r, now_s)
        elif status == _QUEUED:
            forget_waiting(s, r, j)
        withdraw(s, r, j)
        fill(s, plan, j, now_s)
    s.counts.offers_due[0] = 1


@helper(inline=True)
def _complete(s: State, plan: Plan, r: int, now_s: float) -> None:
    if is_run(s, r):
        end_joined(s, r, now_s)
        _give_result(s, r, now_s)
        return
    j = s.requests.node_idx[r]
    if s.config.batches[0] == 1:
        _finish_followers(s, r, j, now_s)
    vacate(s, r, j, now_s)
    _end_attempt(s, r, j, now_s)
    s.counts.idle_events[0] = 0
    s.counts.offers_due[0] = 1
    fill(s, plan, j, now_s)


@helper
def _step(s: State, plan: Plan, j: int, now_s: float) -> None:
    """What engine j was scheduled to do is over: requests end, others begin, and it goes on."""
    ask(s, plan, END, -1, j, now_s)
    r = ask(s, plan, NEXT_ENDED, -1, j, now_s)
    while r >= 0:
        if s.requests.status[r] == _RUNNING:  # else it was cancelled meanwhile
            s.requests.version[r] += 1
            _end_attempt(s, r, j, now_s)
            s.counts.offers_due[0] = 1
        r = ask(s, plan, NEXT_ENDED, -1, j, now_s)
    s.counts.idle_events[0] = 0
    if ask(s, plan, BEGIN, -1, j, now_s) == 1:
        anchor(s, j, now_s)


@helper(inline=True)
def _end_attempt(s: State, r: int, j: int, now_s: float) -> None:
    """The attempt of row r ends, which has left its slot of node j: it is served, or in error."""
    if s.config.runs[0] == 1 and has_error(s, r):
        try_again(s, r, j, now_s)
    else:
        _finish(s, r, j, now_s)


@helper(inline=True)
def _keep_result(s: State, r: int) -> None:
    if has_results(s):
        keep_result(s, r)


@helper(inline=True)
def _give_result(s: State, r: int, now_s: float) -> None:
    """Request r is served: its client has the result now, or when it has come over the network."""
    if not (has_network(s) and begin_result(s, r, now_s)):
        _keep_result(s, r)


@helper
def _end_flow(s: State, plan: Plan, order: Any, now_s: float) -> None:
    """The first flow that is due ends: a row's inputs or a model are at a node, or a result at its client."""
    f = take_ended(s, now_s)
    if f < 0:
        return
    kind, what, a, b = -s.flows.kind[f], s.flows.what[f], s.flows.source[f], s.flows.target[f]
    share_anew(s, now_s)
    if kind == MODEL:
        end_model(s, b, what, now_s)
        fill(s, plan, b, now_s)
    elif kind == RESULT:
        end_result(s, what, s.way_s[a, b] if s.way_s[a, b] < np.inf else 0.0, now_s)
        _keep_result(s, what)
    elif is_all_there(s, what):
        _arrive_at_node(s, plan, order, what, now_s)


@helper(inline=True)
def _finish(s: State, r: int, j: int, now_s: float) -> None:
    """Request r, or a stage, is served and leaves node j."""
    withdraw(s, r, j)
    s.requests.finish_s[r] = now_s
    s.requests.status[r] = _FINISHED
    s.counts.in_system[0] -= 1
    settle_cost(s, r, now_s)
    if s.config.runs[0] == 1 and note_row_done(s, r, now_s):
        return
    s.counts.finished[0] += 1
    _give_result(s, r, now_s)


@helper
def _finish_followers(s: State, r: int, j: int, now_s: float) -> None:
    """The followers in the batch of r end with it, each served or in error by itself."""
    m = drop_follower(s, r)
    while m >= 0:
        release(s, m, j, now_s)
        s.requests.version[m] += 1
        _end_attempt(s, m, j, now_s)
        m = drop_follower(s, r)


@helper
def _arrive_at_node(s: State, plan: Plan, order: Any, r: int, now_s: float) -> None:
    """Request r moves to its next link or reaches its node, which may have failed meanwhile."""
    if not move_on(s, r, now_s):
        return
    j = s.requests.node_idx[r]
    if s.config.runs[0] == 1:
        note_fetched(s, r, j)
    if s.nodes.up[j] == 0 and s.config.resume[0] == 0:
        withdraw(s, r, j)
        send_back(s, r, now_s)
    else:
        enter(s, plan, order, r, j, now_s)
    anchor(s, j, now_s)


@helper(inline=True)
def _admit(s: State, r: int, now_s: float) -> bool:
    """Request r arrives. False if it ends at once: no node can ever serve it, or its result is cached."""
    s.requests.attempt[r] = s.requests.retries[r] = 0
    s.counts.arrived[0] += 1
    s.counts.in_system[0] += 1
    s.counts.idle_events[0] = 0
    if s.config.rows_reused[0] == 1:
        begin_row(s, r)
    if s.work.estimate_s[r] == np.inf:
        note_ready(s, r)
        reject(s, r, _FITS_NO_NODE, now_s)
        return False
    if has_results(s) and answer(s, r, now_s):
        return False
    load_ahead(s, r, now_s)
    if s.config.deadlines_while_held[0] == 0:
        await_deadline(s, r, now_s)
    if s.config.virtual_counters[0] != 0:
        lift_virtual_counter(s, s.work.tenant_idx[r])
    return True


@helper(inline=True)
def _begins(s: State, plan: Plan, r: int, now_s: float) -> bool:
    """Request r arrives. False if it needs no decision: it ended at once, or its stages are served."""
    if not _admit(s, r, now_s):
        return False
    if s.config.runs[0] == 1:
        if begin_run(s, plan, r, now_s):
            return False
        note_ready(s, r)
    return True


@helper
def _is_any_running(s: State) -> bool:
    """Whether any request holds a slot. If none does, what waits at nodes may wait for good."""
    for j in range(len(s.nodes.up)):  # noqa: SIM110 - numba compiles no generator expressions
        if s.nodes.running[j] > 0:
            return True
    return False


@helper
def _note_idle(s: State, kind: int) -> None:
    """Count a periodic event, unless nodes are at work or a pending wake-up can still change something."""
    is_at_work = s.counts.in_nodes[0] > 0 and (len(s.faults.count) == 0 or _is_any_running(s))
    if is_at_work or s.counts.n_moving[0] > 0:
        s.counts.idle_events[0] = 0
    elif s.counts.pending_wakeups[0] == 0 or kind == REPAIR:
        s.counts.idle_events[0] += 1


@helper
def _happen(s: State, plan: Plan, order: Any, key: int, now_s: float) -> int:
    """Handle all events but completions, arrivals and plans. Returns a request to decide about, or -1."""
    kind, i = kind_of(key), serial_of(key)
    _note_idle(s, kind)
    if kind == TRANSFER:
        _arrive_at_node(s, plan, order, i, now_s)
    elif kind == FLOW:
        _end_flow(s, plan, order, now_s)
    elif kind == FAILURE:
        on_fault(s, plan, i, now_s)
    elif kind == REPAIR:
        j = on_repair(s, plan, i, now_s)
        if j >= 0:
            fill(s, plan, j, now_s)
        s.counts.offers_due[0] = 1
    elif kind == TELEMETRY:
        on_telemetry(s, i, key & (VERSIONS - 1))
    elif kind == CANCELLATION:
        _expire(s, plan, i, now_s)
    elif kind == WINDOW:
        fill(s, plan, s.requests.node_idx[i], now_s)
    elif kind == LOSS:
        _on_loss(s, plan, i, key & (VERSIONS - 1), now_s)
    elif kind == SWITCH:
        _on_switch(s, i, now_s)
    elif kind == PREEMPTION:
        return int(preempt(s, plan, i, key & (VERSIONS - 1), now_s))
    elif s.requests.status[i] == _RETRYING or (
        s.requests.status[i] == _PENDING and _begins(s, plan, i, now_s)
    ):
        return int(i)
    return -1


@helper
def _on_loss(s: State, plan: Plan, r: int, is_over: int, now_s: float) -> None:
    """Handle a LOSS event of request r.

    From outside: the request has lost its node and is dispatched again, without this node (0) or when its
    host says so (AGAIN_LATER), or (1) no client waits; or a held stage was answered meanwhile. From inside: a
    stage of the run has failed (STAGE_FAILED).
    """
    status, j = s.requests.status[r], s.requests.node_idx[r]
    if status == _PENDING or status >= _FINISHED:
        return
    if is_over == STAGE_FAILED:
        row = failed_stage(s, r)
        _end_run(s, plan, r, s.requests.status[row], s.requests.reason[row], now_s)
        return
    if is_over == 1:
        _cancel(s, plan, r, _ABORTED, now_s)
        return
    if status == _RUNNING:
        if is_over != AGAIN_LATER:
            for i in range(AVOIDED - 1, 0, -1):
                s.avoid[r, i] = s.avoid[r, i - 1]
            s.avoid[r, 0] = j
        lose(s, r, j, now_s)
        if is_over == AGAIN_LATER:
            s.requests.version[r] += 1  # its event is void; the host makes another
        fill(s, plan, j, now_s)
        s.counts.offers_due[0] = 1
    elif status == _HELD and s.config.runs[0] == 1 and s.stages.answered[r] == 1:
        unlink(s, r)
        end_unserved(s, r, PRESENT, now_s)


@helper
def _on_switch(s: State, j: int, now_s: float) -> None:
    """Handle a SWITCH event from outside: node j was switched on or off, or its room changed.

    What waits at a node that is off is dispatched anew; what runs there goes on.
    """
    if s.nodes.up[j] == 0 and s.hidden.down[j] == 0:
        drain(s, j, now_s)
    anchor(s, j, now_s)
    s.counts.offers_due[0] = 1


@helper
def _is_dispatched(s: State, r: int, now_s: float) -> bool:
    """Whether row r needs its decision: it is not skipped, and its inputs are still there."""
    is_held = s.requests.status[r] == _HELD
    if is_dispatched(s, r, now_s):
        return True
    if is_held:
        note_unheld(s, r)
    s.counts.bound[0] = 0
    return False


@helper
def _may_be_sent(s: State, plan: Plan, order: Any, r: int, now_s: float) -> bool:
    """Whether the queues of request r are within their limits. If not, it is held."""
    if s.work.pinned[r] == PINNED_RUNNING or is_within_limits(s, r):
        return True
    s.counts.bound[0] = 0
    hold(s, plan, order, r, now_s)
    if s.config.guarantees[0] == 1 and s.counts.offers_due[0] == 0:
        note_short(s, now_s)
    return False


@helper(inline=True)
def _is_void(s: State, key: int) -> bool:
    """Whether an event is outdated: its request has a newer version."""
    kind = kind_of(key)
    if kind == FLOW:
        return not is_current(s, key & (VERSIONS - 1))
    if kind == STEP:
        return (s.engines.version[serial_of(key)] & (VERSIONS - 1)) != (key & (VERSIONS - 1))
    if kind != COMPLETION and kind != TRANSFER and kind != WINDOW and kind != ARRIVAL:
        return False
    return (s.requests.version[serial_of(key)] & (VERSIONS - 1)) != (key & (VERSIONS - 1))


@helper(inline=True)
def _is_more_ready(s: State) -> bool:
    """Whether a stage becomes ready at this very time, and then competes with the held ones.

    Void events are dropped first: live hosts, whose completions come from outside, do not have all of them.
    """
    if s.config.runs[0] == 0:
        return False
    while s.counts.events[0] > 0 and s.events.time_s[0] <= s.counts.now_s[0]:
        if not _is_void(s, s.events.key[0]):
            return kind_of(s.events.key[0]) == ARRIVAL
        drop_first_event(s)
    return False


@helper
def _joins_held(s: State, plan: Plan, order: Any, r: int, now_s: float) -> bool:
    """Put stage r, just ready, among held requests that are offered now, so that the order decides."""
    if s.requests.status[r] != _RETRYING or not is_stage(s, r):
        return False
    n_held = s.contexts.n_held[dispatcher_of(s, r)]
    is_alone = n_held == 0 and s.counts.offers_due[0] == 0 and not _is_more_ready(s)
    if is_alone or n_held >= s.config.held_max[0]:
        return False
    hold(s, plan, order, r, now_s)
    s.counts.offers_due[0] = 1
    return True


@helper
def _is_decided_now(s: State, plan: Plan, order: Any, r: int, now_s: float) -> bool:
    """Whether row r needs its decision and does not wait for other stages first."""
    return _is_dispatched(s, r, now_s) and not _joins_held(s, plan, order, r, now_s)


@helper(inline=True)
def _has_room(s: State, key: int) -> bool:
    """Whether the event heap has room for all events that one event can cause."""
    free = len(s.events.key) - s.counts.events[0] - s.config.margin[0]
    if kind_of(key) == FAILURE:
        in_flight = s.nodes.in_flight[s.faults.node_idx[serial_of(key)]]
        free -= (2 + s.config.run_margin[0]) * in_flight  # a batch may pass its slot on
    elif kind_of(key) == PREEMPTION:
        most = 0
        for j in range(len(s.nodes.up)):
            most = max(most, s.nodes.in_flight[j])
        free -= (2 + s.config.run_margin[0]) * most
    elif kind_of(key) == STEP and s.config.engines[0] == 1:
        free -= (2 + s.config.run_margin[0]) * s.nodes.running[serial_of(key)]
    elif kind_of(key) == COMPLETION and s.config.batches[0] == 1 and s.config.runs[0] == 1:
        m = s.batch.next[serial_of(key)]
        while m >= 0:  # a batch ends stages of several runs
            free -= s.config.run_margin[0]
            m = s.batch.next[m]
    if has_network(s):
        return free >= 0 and len(s.flow_heap) - s.counts.n_flows[0] >= s.config.flow_margin[0]
    return free >= 0


@helper(inline=True)
def _is_over(s: State) -> bool:
    """Whether no event can change any request."""
    if s.config.completions_from_outside[0] == 1 or s.counts.arrived[0] < s.counts.work[0]:
        return False
    return s.counts.in_system[0] == 0 or s.counts.idle_events[0] > MAX_IDLE_EVENTS


@helper
def advance(
    s: State,
    plan: Plan,
    dispatch: Any,
    order: Any,
    shadow_plan: Plan,
    shadow: Any,
    until_s: float,
    max_steps: int,
) -> int:
    """Process all events up to `until_s` (inclusive), at most `max_steps`.

    `shadow` is a policy whose answers are only recorded. Without a shadow (`config.shadows` = 0) any function
    of the type will do.

    Returns the reason for stopping: DONE, PAUSED (`max_steps`), REACHED (`until_s`), PLAN_DUE, PLAN_READY,
    FULL (enlarge `events`, call again), BAD_DECISION or RAISED (`counts.deciding` is the request).

    DECIDE, where the policy has no `dispatch`: the host answers and calls again. About request `deciding`
    (`awaited` = ASKED_ABOUT_ONE) by `answer` and `ranking`, as a policy. About the held requests
    `passed_over` (ASKED_ABOUT_HELD) by `best`, 1 + the request, and `bound`, 1 + its node; 0, 0 = none.
    """
    counts = s.counts
    last = counts.steps[0] + max_steps
    take_injected(s)
    while True:
        is_answered = counts.awaited[0] == ASKED_ABOUT_ONE
        if is_answered:
            r, now_s = counts.deciding[0], counts.now_s[0]
        elif counts.offers_due[0] == 1 and (counts.n_passed_over[0] > 0 or not _is_more_ready(s)):
            if not _has_room(s, 0):
                return FULL
            now_s = counts.now_s[0]
            if counts.replanned[0] == 1:
                counts.replanned[0] = 0
                take_placement(s, plan, now_s)
            r = -1
            if not nothing_held(s) or counts.n_passed_over[0] > 0:
                r = next_offer(s, plan, dispatch, order, now_s)
            if r == HOST_ASKED:
                return DECIDE
            if r < 0:
                counts.offers_due[0] = 0
                counts.offering[0] = 0
                if s.config.guarantees[0] == 1:
                    note_short(s, now_s)
                continue
        else:
            if _is_over(s):
                return DONE
            if counts.steps[0] >= last:
                return PAUSED
            key = -1
            next_s = np.inf
            if counts.events[0] > 0:
                next_s = s.events.time_s[0]
                key = s.events.key[0]
            r = -1
            if counts.arrived[0] < counts.work[0] and s.work.arrival_s[counts.arrived[0]] < next_s:
                r = counts.arrived[0]
                next_s = max(counts.now_s[0], s.work.arrival_s[r])  # what waits in a rollout came before it
                key = 0
            if key < 0:
                return REACHED if s.config.completions_from_outside[0] == 1 else DONE
            if next_s > until_s:
                return REACHED
            if not _has_room(s, key):
                return FULL
            now_s = next_s
            counts.in_system_s[0] += counts.in_system[0] * max(0.0, now_s - counts.now_s[0])
            counts.now_s[0] = now_s
            counts.now_key[0] = key if r < 0 else _AN_ARRIVAL
            counts.steps[0] += 1
            if r >= 0:
                if not _begins(s, plan, r, now_s):
                    continue
            else:
                drop_first_event(s)
                if _is_void(s, key):
                    continue
                kind = kind_of(key)
                if kind == STEP:
                    _step(s, plan, serial_of(key), now_s)
                    continue
                if kind == COMPLETION:
                    _complete(s, plan, serial_of(key), now_s)
                    continue
                if kind == PLAN:
                    k = serial_of(key)
                    if key & (VERSIONS - 1) == 1:
                        counts.offers_due[0] = 1
                        return PLAN_READY
                    push_event(s, (k + 1) * s.config.plan_period_s[0], PLAN, k + 1, 0)
                    _note_idle(s, PLAN)
                    return PLAN_DUE
                r = _happen(s, plan, order, key, now_s)
                if r < 0:
                    continue
        if is_answered:
            counts.awaited[0] = 0
            count = counts.answer[0]
        else:
            if s.config.runs[0] == 1 and not _is_decided_now(s, plan, order, r, now_s):
                continue
            if has_tree(s) and not _may_be_sent(s, plan, order, r, now_s):
                continue
            if s.config.placement_terms[0] == 1:
                set_avoided(s, r, -1)
            if s.config.shadows[0] == 1 and s.requests.attempt[r] == 0:
                consult_shadow(s, shadow_plan, shadow, r, now_s)
            if takes_affinity(s, r):
                s.ranking[0] = s.work.affinity_node_idx[r]
                count = 1
            elif counts.bound[0] > 0:
                s.ranking[0] = counts.bound[0] - 1
                count = 1
            else:
                count = decide(s, plan, dispatch, r, now_s)
                if count == HOST_ASKED:
                    counts.awaited[0] = ASKED_ABOUT_ONE
                    return DECIDE
        counts.bound[0] = 0
        if s.config.records_decision_trace[0] == 1:
            note_decision(s, r, count)
        is_decision = carry_out(s, plan, order, r, count, now_s)
        if s.config.placement_terms[0] == 1:
            set_avoided(s, r, 1)
        if s.config.records_decision_trace[0] == 1:
            s.decision_trace.estimate_s[r] = s.requests.estimate_s[r]
        if not is_decision:
            counts.answer[0] = count
            return RAISED if count == CALL_RAISED else BAD_DECISION
        if s.config.guarantees[0] == 1 and counts.offers_due[0] == 0:
            note_short(s, now_s)
