"""The mechanics of a node: accepting, queueing, taking a slot, finishing, failing, slowing down."""

from __future__ import annotations

from typing import Any

import numpy as np

from trimtab.compiled.kernel import helper
from trimtab.domain.requests import Status
from trimtab.domain.view import BACKGROUND, PINNED_RUNNING, Plan
from trimtab.engine.batches import (
    batch_max,
    enter_group,
    fill_batches,
    first_waiting,
    leave_batch,
    resume_batch,
    stop_waiting,
    wait_at,
)
from trimtab.engine.events import ARRIVAL, COMPLETION, push_event
from trimtab.engine.flows import has_network
from trimtab.engine.links import depart
from trimtab.engine.network_transfers import is_cut_off, request_round_trip_s
from trimtab.engine.placement import fits_beside_placed, place_if_idle
from trimtab.engine.prefix_cache import forget_prefixes, has_prefixes, use_prefix
from trimtab.engine.queues import drop_first_of, first_of
from trimtab.engine.residency import acquire, forget_all, release
from trimtab.engine.resources import can_hold, fits_beside, give_back, take
from trimtab.engine.runs import show_run
from trimtab.engine.service import (
    ENTER,
    LOOK,
    PAUSE,
    RESUME,
    SETTLE,
    SLOW,
    ask,
    fits_engine,
    is_engine,
    note_sent,
    note_withdrawn,
    show_engine,
)
from trimtab.engine.slots import expected_s, occupy, service_s
from trimtab.engine.stage_inputs import measure_transfer
from trimtab.engine.state import AVOIDED, State
from trimtab.engine.telemetry import dispatcher_of, note_change, note_own
from trimtab.engine.virtual_counters import add_expected_cost, counter_of, note_at_nodes

_TRANSFER, _QUEUED, _RUNNING = int(Status.TRANSFER), int(Status.QUEUED), int(Status.RUNNING)
_RETRYING = int(Status.RETRYING)


@helper(inline=True)
def queue_key(s: State, plan: Plan, order: Any, r: int, now_s: float) -> float:
    """Key of request r in a queue that it enters now. Raises ValueError if the order returns NaN."""
    d = dispatcher_of(s, r)
    s.contexts.now_s[d] = now_s
    s.counts.deciding[0] = r
    if s.config.virtual_counters[0] != 0:
        s.contexts.virtual_counter[d] = counter_of(s, s.work.tenant_idx[r])
        s.contexts.queued_cost[d] = s.requests.queued_cost[r]
    if s.config.runs[0] == 1:
        show_run(s, r, d)
    key = order(s.views[d], plan, s.work[r], s.order_memories[d])
    if key != key:
        raise ValueError("order is not a number")
    return key


@helper
def _accepts_live(s: State, r: int, j: int) -> bool:
    """Further conditions of real nodes: avoided nodes, pinning, background work, token bounds."""
    for i in range(AVOIDED):
        if s.avoid[r, i] == j:
            return False
    if s.work.pinned[r] == 1 and s.work.affinity_node_idx[r] != j:
        return False
    if s.work.priority[r] <= BACKGROUND and s.nodes.room[j] <= s.hidden.reserve[j]:
        return False
    fits = s.work.tokens[r] <= s.hidden.token_room[j]
    return s.config.token_caps[0] == 0 or fits or s.nodes.in_flight[j] == 0


@helper(inline=True)
def accepts(s: State, r: int, j: int) -> bool:
    """Whether node j accepts request r: the node is up, has room, and can hold and serve the request."""
    if s.config.placement_terms[0] == 1 and s.work.pinned[r] == PINNED_RUNNING:
        return s.work.affinity_node_idx[r] == j
    if s.nodes.up[j] == 0 or s.nodes.room[j] <= 0 or not can_hold(s, r, j):
        return False
    if s.config.placement_terms[0] == 1 and not _accepts_live(s, r, j):
        return False
    if has_network(s) and is_cut_off(s, r, j):
        return False
    if not fits_beside_placed(s, r, j) or (is_engine(s, j) and not fits_engine(s, r, j)):
        return False
    adapter = s.work.adapter_idx[r]
    if adapter >= 0 and s.item_gib[s.work.model_idx[r]] + s.item_gib[adapter] > s.hidden.memory_gib[j]:
        return False
    return s.fixed_s[s.work.class_idx[r], s.nodes.type_idx[j]] < np.inf


@helper
def _show_reported(s: State, j: int, now_s: float) -> None:
    """Bring what real node j reported of its engine up to now, with the requests that are there now."""
    loads, nodes = s.engine_load, s.nodes
    loads.kv_used[j] += loads.kv_per_s[j] * (now_s - nodes.anchor_s[j])
    if s.usual_step_s[j] > 0.0:
        more = min(nodes.in_flight[j] + 1, loads.batch_max[j]) - max(1, loads.decoding[j])
        step_s = max(loads.row_s[j], loads.step_s[j] + loads.row_s[j] * more)
        loads.load_factor[j] = step_s / s.usual_step_s[j]


@helper(inline=True)
def anchor(s: State, j: int, now_s: float) -> None:
    """Update node j's backlog estimate and mark the node as changed for all dispatchers."""
    nodes, slots = s.nodes, s.slots
    if is_engine(s, j):
        show_engine(s, j, now_s)
        return
    first = s.hidden.first_slot[j]
    queued_s, left_s = nodes.outstanding_s[j], 0.0
    for i in range(first, first + nodes.running[j]):
        queued_s -= slots.estimate_s[i]
        left_s += max(0.0, slots.estimate_end_s[i] - now_s)
    nodes.backlog_s[j] = left_s + (queued_s if nodes.in_flight[j] > nodes.running[j] else 0.0)
    if len(s.usual_step_s) > 0:
        _show_reported(s, j, now_s)
    nodes.anchor_s[j] = now_s
    note_change(s, j)


@helper(inline=True)
def _start(s: State, plan: Plan, r: int, j: int, now_s: float) -> bool:
    """Start request r on node j. False if r or its models do not fit beside the running requests."""
    if s.config.use_from_outside[0] == 0 and not fits_beside(s, r, j):
        return False
    ready_s = acquire(s, plan, r, j, now_s)
    if ready_s < 0.0:
        return False
    rows = s.requests
    rows.start_s[r] = now_s
    rows.status[r] = _RUNNING
    rows.left_s[r] = service_s(s, r, j)
    if has_prefixes(s):
        use_prefix(s, r, j)
    rows.slot[r] = s.nodes.running[j]
    s.nodes.running[j] += 1
    take(s, r, j)
    occupy(s, r, j, ready_s, now_s)
    return True


@helper(inline=True)
def fill(s: State, plan: Plan, j: int, now_s: float) -> None:
    """Start waiting requests of node j while it has free slots."""
    nodes = s.nodes
    if is_engine(s, j):
        ask(s, plan, LOOK, -1, j, now_s)
        anchor(s, j, now_s)
        return
    if s.config.batches[0] == 1:
        fill_batches(s, plan, j, now_s)
    while s.config.batches[0] == 0 and nodes.up[j] == 1 and nodes.running[j] < nodes.slots[j]:
        r = first_of(s, j)
        if r < 0 or not _start(s, plan, r, j, now_s):
            break
        drop_first_of(s, j, r)
    place_if_idle(s, plan, j, now_s)
    anchor(s, j, now_s)


@helper(inline=True)
def enter(s: State, plan: Plan, order: Any, r: int, j: int, now_s: float) -> None:
    """Request r has reached node j: it starts at once or waits there."""
    nodes, rows = s.nodes, s.requests
    if is_engine(s, j):
        rows.status[r] = _QUEUED
        rows.key[r] = queue_key(s, plan, order, r, now_s)
        ask(s, plan, ENTER, r, j, now_s)
        return
    free = nodes.up[j] == 1 and nodes.running[j] < nodes.slots[j]
    is_batched = s.config.batches[0] == 1 and batch_max(s, plan, r) > 1
    if is_batched or not (free and s.queues.length[j] == 0 and _start(s, plan, r, j, now_s)):
        rows.status[r] = _QUEUED
        rows.key[r] = queue_key(s, plan, order, r, now_s)
        if is_batched:
            enter_group(s, plan, r, j, now_s)
        else:
            wait_at(s, r, j, now_s)


@helper(inline=True)
def _round_trip_s(s: State, r: int, j: int) -> float:
    """Seconds until the transfer of row r to node j begins; -1 = nothing moves, r is there at once."""
    if s.config.runs[0] == 1:
        rtt_s, gib = measure_transfer(s, r, j), s.stages.moving_gib[r]
    elif has_network(s):
        rtt_s, gib = request_round_trip_s(s, r, j), s.work.payload_gib[r]
    else:
        rtt_s, gib = s.rtt_s[s.work.zone_idx[r], s.nodes.zone_idx[j]], s.work.payload_gib[r]
    return -1.0 if rtt_s == 0.0 and gib == 0.0 else rtt_s


@helper(inline=True)
def send(s: State, plan: Plan, order: Any, r: int, j: int, now_s: float) -> None:
    """Send request r to node j, which accepts it."""
    nodes, estimate_s = s.nodes, expected_s(s, r, j)
    s.requests.estimate_s[r] = estimate_s
    s.requests.node_idx[r] = j
    nodes.in_flight[j] += 1
    nodes.room[j] -= 1
    nodes.outstanding_s[j] += estimate_s
    s.counts.in_nodes[0] += 1
    s.counts.idle_events[0] = 0
    if s.config.token_caps[0] == 1:
        s.hidden.token_room[j] -= s.work.tokens[r]
    add_expected_cost(s, r, estimate_s)
    note_at_nodes(s, r, 1)
    if is_engine(s, j):
        note_sent(s, r, j)
    elif len(s.engine_load.waiting_tokens) > 0:  # of a real node; the host tells what it has read
        s.engine_load.waiting_tokens[j] += s.work.input_tokens[r]
    rtt_s = _round_trip_s(s, r, j)
    if s.config.transfers_from_outside[0] == 1 or rtt_s < 0.0:
        enter(s, plan, order, r, j, now_s)
    else:
        s.requests.status[r] = _TRANSFER
        depart(s, r, rtt_s, now_s)
    note_own(s, r, j, 1, estimate_s)
    anchor(s, j, now_s)


@helper(inline=True)
def withdraw(s: State, r: int, j: int) -> None:
    """Remove request r from the counts of node j."""
    nodes, estimate_s = s.nodes, s.requests.estimate_s[r]
    nodes.in_flight[j] -= 1
    nodes.room[j] += 1
    nodes.outstanding_s[j] -= estimate_s
    if nodes.in_flight[j] == 0:
        nodes.outstanding_s[j] = 0.0
    s.counts.in_nodes[0] -= 1
    if s.config.token_caps[0] == 1:
        s.hidden.token_room[j] += s.work.tokens[r]
    note_at_nodes(s, r, -1)
    if is_engine(s, j):
        note_withdrawn(s, r, j)
    elif len(s.engine_load.waiting_tokens) > 0:
        s.engine_load.waiting_tokens[j] -= s.work.input_tokens[r] - s.truth.given_tokens[r]
        s.truth.given_tokens[r] = 0
    note_own(s, r, j, -1, -estimate_s)


@helper(inline=True)
def account_slot(s: State, r: int, j: int, now_s: float) -> None:
    """Add the time that request r has held a slot and resources of node j so far to the node's totals."""
    since_s = s.slots.since_s[s.hidden.first_slot[j] + s.requests.slot[r]]
    s.hidden.allocated_slot_s[j] += now_s - since_s
    s.hidden.busy_slot_s[j] += max(0.0, now_s - max(since_s, s.requests.service_start_s[r]))
    for k in range(s.demand.shape[1]):
        s.used_s[j, k] += s.demand[s.work.class_idx[r], k] * (now_s - since_s)


@helper(inline=True)
def vacate(s: State, r: int, j: int, now_s: float) -> None:
    """Request r releases its models on node j, and its slot unless the rest of its batch keeps it."""
    goes_on = s.config.batches[0] == 1 and leave_batch(s, r, j)
    if not goes_on:
        account_slot(s, r, j, now_s)
    release(s, r, j, now_s)
    s.requests.version[r] += 1
    if not goes_on:
        leave_slot(s, r, j)


@helper(inline=True)
def leave_slot(s: State, r: int, j: int) -> None:
    """Remove request r from the running requests of node j. The last of them moves to its slot."""
    slots, rows = s.slots, s.requests
    s.nodes.running[j] -= 1
    give_back(s, r, j)
    first = s.hidden.first_slot[j]
    i, last = first + rows.slot[r], first + s.nodes.running[j]
    if i != last:
        moved = slots.request[last]
        slots.since_s[i] = slots.since_s[last]
        slots.estimate_s[i] = slots.estimate_s[last]
        slots.estimate_end_s[i] = slots.estimate_end_s[last]
        slots.request[i] = moved
        rows.slot[moved] = i - first


@helper
def send_back(s: State, r: int, now_s: float) -> None:
    """Request r lost its node: its dispatcher decides again, after all other events of this time."""
    s.requests.status[r] = _RETRYING
    s.requests.start_s[r] = np.nan  # the times of the lost attempt are void
    s.requests.service_start_s[r] = np.nan
    s.requests.version[r] += 1
    push_event(s, now_s, ARRIVAL, r, s.requests.version[r])


@helper
def drain(s: State, j: int, now_s: float) -> None:
    """Send back all requests that wait at node j."""
    r = first_waiting(s, j)
    while r >= 0:
        stop_waiting(s, r, j)
        withdraw(s, r, j)
        send_back(s, r, now_s)
        r = first_waiting(s, j)


@helper
def pause(s: State, plan: Plan, j: int, now_s: float) -> None:
    """Pause node j: its running requests keep their slots and their remaining service."""
    if is_engine(s, j):
        ask(s, plan, PAUSE, -1, j, now_s)
        return
    rows, speed = s.requests, s.hidden.speed[j]
    for i in range(s.hidden.first_slot[j], s.hidden.first_slot[j] + s.nodes.running[j]):
        r = s.slots.request[i]
        account_slot(s, r, j, now_s)
        if rows.finish_s[r] < np.inf:  # else a model of it is still on the way
            rows.left_s[r] = max(0.0, rows.finish_s[r] - max(now_s, rows.service_start_s[r])) * speed
        rows.version[r] += 1


@helper
def resume(s: State, plan: Plan, j: int, now_s: float) -> None:
    """Resume node j after a repair: its paused requests load their models again and continue."""
    if is_engine(s, j):
        ask(s, plan, RESUME, -1, j, now_s)
        return
    for k in range(s.nodes.running[j]):
        r = s.slots.request[s.hidden.first_slot[j] + k]
        if s.config.batches[0] == 1:
            resume_batch(s, plan, r, j, now_s)
        else:
            occupy(s, r, j, acquire(s, plan, r, j, now_s), now_s)


@helper
def change_speed(s: State, plan: Plan, j: int, speed: float, now_s: float) -> None:
    """Change the speed of node j. The remaining service of running requests is rescaled, loading is not."""
    rows, before = s.requests, s.hidden.speed[j]
    if speed == before:
        return
    is_up = s.hidden.down[j] == 0
    if is_engine(s, j) and is_up:
        ask(s, plan, SETTLE, -1, j, now_s)
    s.hidden.speed[j] = speed
    if is_engine(s, j):
        if is_up:
            ask(s, plan, SLOW, -1, j, now_s)
        anchor(s, j, now_s)
        return
    if not is_up:
        return
    for i in range(s.hidden.first_slot[j], s.hidden.first_slot[j] + s.nodes.running[j]):
        r = s.slots.request[i]
        if rows.finish_s[r] == np.inf:  # a model of it is still on the way
            continue
        begun_s = max(now_s, rows.service_start_s[r])
        left_s = max(0.0, rows.finish_s[r] - begun_s) * before
        rows.finish_s[r] = begun_s + left_s / speed
        rows.version[r] += 1
        push_event(s, rows.finish_s[r], COMPLETION, r, rows.version[r])


@helper
def stop_node(s: State, j: int, now_s: float) -> None:
    """Node j fails: it refuses requests and loses its models and prefixes."""
    s.nodes.up[j] = 0
    s.hidden.epoch[j] += 1
    s.counts.node_failures[0] += 1
    s.hidden.down_since_s[j] = now_s
    forget_all(s, j, now_s)
    if has_prefixes(s):
        forget_prefixes(s, j)
