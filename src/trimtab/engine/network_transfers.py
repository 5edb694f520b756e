"""What moves over the network: inputs of rows to nodes, models from the store, results to clients.

Inputs begin to move one round trip after the decision, all at once, and the row is at its node when the last
one is there. A model is fetched when a request needs it or a plan places it; then the node takes `load_s`.
A result leaves when service ends. Its client has it after the last byte and the delay of the route.
"""

from __future__ import annotations

import numpy as np

from trimtab.compiled.kernel import helper
from trimtab.engine.flow_routes import there_and_back_s
from trimtab.engine.flows import (
    INPUT,
    RESULT,
    begin_flow,
    give_up_flows,
    share_anew,
    zone_vertex,
)
from trimtab.engine.slots import announce
from trimtab.engine.stage_inputs import note_sources, reads_outputs
from trimtab.engine.state import State


@helper
def request_round_trip_s(s: State, r: int, j: int) -> float:
    """Round trip between the clients of request r and node j; 0 where no route leads there."""
    seconds = there_and_back_s(s, zone_vertex(s, s.work.zone_idx[r]), j)
    return seconds if seconds < np.inf else 0.0


@helper
def is_cut_off(s: State, r: int, j: int) -> bool:
    """Whether no route leads from the zone of row r to node j and back."""
    return bool(there_and_back_s(s, zone_vertex(s, s.work.zone_idx[r]), j) == np.inf)


@helper
def begin_inputs(s: State, r: int, now_s: float) -> bool:
    """Start the flows of what row r's node lacks of its inputs. Returns whether there are any."""
    j = s.requests.node_idx[r]
    if not reads_outputs(s, r):
        gib = s.work.payload_gib[r]
        if gib > 0.0:
            begin_flow(s, INPUT, r, zone_vertex(s, s.work.zone_idx[r]), j, gib, now_s)
            share_anew(s, now_s)
        return bool(gib > 0.0)
    n = note_sources(s, r, j)
    s.stages.moving_gib[r] = 0.0
    for k in range(n):
        a = s.from_vertex[k]
        s.stages.moving_gib[r] += s.from_gib[a]
        begin_flow(s, INPUT, r, a, j, s.from_gib[a], now_s)
        s.from_gib[a] = 0.0
    if n > 0:
        share_anew(s, now_s)
    return n > 0


@helper
def is_all_there(s: State, r: int) -> bool:
    """Whether row r has no flow left."""
    return bool(s.flow_of_row[r] == 0)


@helper
def abandon_flows(s: State, r: int, now_s: float) -> None:
    """Stop the transfer of row r, which has ended or is dispatched again."""
    s.requests.version[r] += 1
    give_up_flows(s, r, now_s)


@helper
def begin_result(s: State, r: int, now_s: float) -> bool:
    """Send the result of served request r to its client. False if it has none: the request is over."""
    j = s.requests.node_idx[r]
    if len(s.result_gib) == 0 or j < 0 or s.result_gib[r] == 0.0:
        return False
    s.requests.finish_s[r] = np.nan
    s.counts.finished[0] -= 1
    s.counts.in_system[0] += 1
    begin_flow(s, RESULT, r, j, zone_vertex(s, s.work.zone_idx[r]), s.result_gib[r], now_s)
    share_anew(s, now_s)
    return True


@helper
def end_result(s: State, r: int, delay_s: float, now_s: float) -> None:
    """The result of request r has left its last link: its client has it one delay later."""
    s.requests.finish_s[r] = now_s + delay_s
    s.counts.returned_gib[0] += s.result_gib[r]
    s.counts.finished[0] += 1
    s.counts.in_system[0] -= 1
    s.counts.idle_events[0] = 0


@helper
def end_model(s: State, j: int, m: int, now_s: float) -> None:
    """Item m has arrived at node j, which takes its `load_s`. Requests in slots that waited for it begin."""
    s.items[j].ready_s[m] = now_s + s.load_s[m, s.nodes.type_idx[j]]
    first = s.hidden.first_slot[j]
    for i in range(first, first + (s.nodes.running[j] if s.hidden.service[j] == 0 else 0)):
        r = s.slots.request[i]
        if s.requests.service_start_s[r] == np.inf:
            ready_s = _ready_s(s, r, j)
            if ready_s < np.inf:
                _begin_service(s, r, i, j, ready_s)


@helper
def _ready_s(s: State, r: int, j: int) -> float:
    """When the items of row r and of the rest of its batch are ready; inf = some are still on the way."""
    ready_s, q = 0.0, r
    while q >= 0:
        model, adapter = s.work.model_idx[q], s.work.adapter_idx[q]
        ready_s = max(ready_s, s.items[j].ready_s[model])
        if adapter >= 0:
            ready_s = max(ready_s, s.items[j].ready_s[adapter])
        q = s.batch.next[q] if s.config.batches[0] == 1 else -1
    return ready_s


@helper
def _begin_service(s: State, r: int, i: int, j: int, ready_s: float) -> None:
    s.slots.estimate_end_s[i] += ready_s - s.slots.since_s[i]
    s.requests.finish_s[r] = ready_s + s.requests.left_s[r] / s.hidden.speed[j]
    q = r
    while q >= 0:
        s.requests.service_start_s[q] = ready_s
        q = s.batch.next[q] if s.config.batches[0] == 1 else -1
    announce(s, r)
