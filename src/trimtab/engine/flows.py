"""Flows through the network: payloads and inputs to nodes, models to nodes, results to clients.

A flow is fluid: all of its links carry it at once, at the rate that `fair_rates` gives. Rates change only
when flows start, end or change their route, so each flow keeps its rate, what was left when it got that rate,
and the time of its end. The flows form a heap by that time. One event, that of the first end, stands for all.
"""

from __future__ import annotations

import numpy as np

from trimtab.compiled.kernel import helper
from trimtab.engine.events import FLOW, VERSIONS, push_event
from trimtab.engine.fair_rates import change_capacity, join_links, leave_links, mark_flow, share_out
from trimtab.engine.flow_routes import find_ways, lay_route
from trimtab.engine.state import State

INPUT, MODEL, RESULT = 1, 2, 3  # kinds of flows


@helper(inline=True)
def has_network(s: State) -> bool:
    """Whether what moves takes the network's graph, else the links of zones and nodes."""
    return bool(s.config.network[0] == 1)


@helper(inline=True)
def has_store(s: State) -> bool:
    """Whether models come to nodes over the network."""
    return bool(s.config.network[0] == 1 and s.config.store_vertex[0] >= 0)


@helper(inline=True)
def zone_vertex(s: State, zone_idx: int) -> int:
    """Vertex of the clients of a zone, and of what lies there."""
    return len(s.nodes.up) + zone_idx


@helper(inline=True)
def is_current(s: State, version: int) -> bool:
    """Whether the event of the first end is the one that counts."""
    return bool((s.counts.flow_version[0] & (VERSIONS - 1)) == version)


@helper
def begin_flow(s: State, kind: int, what: int, a: int, b: int, gib: float, now_s: float) -> int:
    """Start a flow from vertex a to b, other than a. `what`: its row, or the item of a model's.

    It waits where no route leads. The caller calls `share_anew` after the last change of one event.
    """
    flows = s.flows
    f = s.counts.free_flow[0] - 1
    if f >= 0:
        s.counts.free_flow[0] = flows.after[f]
    else:
        f = s.counts.n_flows[0]
        s.counts.n_flows[0] += 1
        flows.mark[f] = -1
    flows.kind[f], flows.what[f], flows.source[f], flows.target[f] = kind, what, a, b
    flows.gib[f], flows.left_gib[f], flows.since_s[f] = gib, gib, now_s
    flows.gib_per_s[f], flows.fair_gib_per_s[f], flows.end_s[f] = 0.0, 0.0, np.inf
    flows.place[f], flows.links[f], flows.before[f], flows.after[f] = 0, 0, 0, 0
    if kind != MODEL:
        first = s.flow_of_row[what]
        flows.after[f] = first
        if first > 0:
            flows.before[first - 1] = 1 + f
        s.flow_of_row[what] = 1 + f
    _find_route(s, f)
    return f


@helper
def _find_route(s: State, f: int) -> None:
    """Let flow f take a route, if one leads there. What it draws from is the same for all policies."""
    draw = s.flows.what[f]
    if s.flows.kind[f] == MODEL:
        draw = -1 - (s.flows.what[f] + s.flows.target[f] * len(s.item_gib))
    if lay_route(s, f, draw):
        join_links(s, f)


@helper
def _drop_flow(s: State, f: int) -> None:
    """Take flow f, which has ended or is given up, off its links, its row and the heap."""
    flows = s.flows
    if flows.links[f] > 0:
        leave_links(s, f)
    mark_flow(s, f)  # with a rate of 0 it leaves the heap
    _take_out(s, f)
    if flows.kind[f] != MODEL:
        before, after = flows.before[f], flows.after[f]
        if before > 0:
            flows.after[before - 1] = after
        else:
            s.flow_of_row[flows.what[f]] = after
        if after > 0:
            flows.before[after - 1] = before
    flows.kind[f] = -flows.kind[f]
    flows.gib_per_s[f] = 0.0
    flows.after[f] = s.counts.free_flow[0]
    s.counts.free_flow[0] = 1 + f


@helper
def share_anew(s: State, now_s: float) -> None:
    """Give the flows that changes have reached their new rates, and schedule the first end."""
    share_out(s)
    for k in range(s.counts.n_touched_flows[0]):
        f = s.touched_flow[k]
        if s.flows.kind[f] > 0 and s.flows.fair_gib_per_s[f] != s.flows.gib_per_s[f]:
            _change_rate(s, f, s.flows.fair_gib_per_s[f], now_s)
    s.counts.n_touched_flows[0] = s.counts.n_touched_links[0] = 0
    s.counts.shared[0] += 1
    first_s = s.flows.end_s[s.flow_heap[0]] if s.counts.n_moving[0] > 0 else np.inf
    if first_s != s.counts.flow_due_s[0]:
        s.counts.flow_due_s[0] = first_s
        s.counts.flow_version[0] += 1
        if first_s < np.inf:
            push_event(s, first_s, FLOW, 0, s.counts.flow_version[0])


@helper
def _bring_up_to_date(s: State, f: int, now_s: float) -> None:
    flows = s.flows
    moved_gib = flows.gib_per_s[f] * (now_s - flows.since_s[f])
    flows.left_gib[f] = max(0.0, flows.left_gib[f] - moved_gib)
    flows.since_s[f] = now_s


@helper
def _change_rate(s: State, f: int, gib_per_s: float, now_s: float) -> None:
    flows = s.flows
    _bring_up_to_date(s, f, now_s)
    flows.gib_per_s[f] = gib_per_s
    if gib_per_s == 0.0:
        flows.end_s[f] = np.inf
        _take_out(s, f)
        return
    flows.end_s[f] = now_s + flows.left_gib[f] / gib_per_s
    if flows.place[f] == 0:
        s.flow_heap[s.counts.n_moving[0]] = f
        s.counts.n_moving[0] += 1
        flows.place[f] = s.counts.n_moving[0]
    _restore(s, flows.place[f] - 1)


@helper
def take_ended(s: State, now_s: float) -> int:
    """The flow whose end is due, off the network; -1 = none. It stays readable until another one begins."""
    s.counts.flow_due_s[0] = -1.0  # its event is over
    f = s.flow_heap[0] if s.counts.n_moving[0] > 0 else -1
    if f < 0 or s.flows.end_s[f] > now_s:
        return -1
    s.flows.left_gib[f] = 0.0
    if s.flows.kind[f] == MODEL:
        s.counts.loaded_gib[0] += s.item_gib[s.flows.what[f]]
    _drop_flow(s, f)
    return int(f)


@helper
def give_up_flows(s: State, r: int, now_s: float) -> None:
    """Stop all flows of row r."""
    while s.flow_of_row[r] > 0:
        f = s.flow_of_row[r] - 1
        _bring_up_to_date(s, f, now_s)
        _drop_flow(s, f)
    share_anew(s, now_s)


@helper
def give_up_models(s: State, j: int, now_s: float) -> None:
    """Stop the flows of models to node j, which has failed."""
    for f in range(s.counts.n_flows[0]):
        if s.flows.kind[f] == MODEL and s.flows.target[f] == j:
            _bring_up_to_date(s, f, now_s)
            _drop_flow(s, f)
    share_anew(s, now_s)


@helper
def set_cable(s: State, cable: int, factor: float, now_s: float) -> None:
    """Give both directions of a link this share of their capacity; 0 = it has failed.

    Flows of a failed link take another route, or wait for one. A repair changes no route that a flow has.
    """
    is_rerouted = False
    for link in range(len(s.link_target)):
        if s.net_links.cable[link] == cable:
            now_gib_per_s = s.net_links.whole_gib_per_s[link] * factor
            is_rerouted |= (s.net_links.gib_per_s[link] == 0.0) != (factor == 0.0)
            if factor == 0.0:
                _stop_on(s, link, now_s)
            change_capacity(s, link, now_gib_per_s)
    if is_rerouted:
        find_ways(s)
        for f in range(s.counts.n_flows[0]):
            if s.flows.kind[f] > 0 and s.flows.links[f] == 0:
                _find_route(s, f)
    share_anew(s, now_s)


@helper
def _stop_on(s: State, link: int, now_s: float) -> None:
    """Take all flows off a link that fails."""
    while s.net_links.first[link] >= 0:
        f = s.net_links.first[link] // s.config.route_max[0]
        _bring_up_to_date(s, f, now_s)
        leave_links(s, f)
        mark_flow(s, f)


@helper(inline=True)
def _ends_before(s: State, f: int, g: int) -> bool:
    end_s = s.flows.end_s
    return bool(end_s[f] < end_s[g] or (end_s[f] == end_s[g] and f < g))


@helper(inline=True)
def _put(s: State, k: int, f: int) -> None:
    s.flow_heap[k] = f
    s.flows.place[f] = k + 1


@helper
def _restore(s: State, k: int) -> None:
    """Restore the heap after the end of the flow at place k has changed."""
    f, n = s.flow_heap[k], s.counts.n_moving[0]
    while k > 0 and _ends_before(s, f, s.flow_heap[(k - 1) >> 1]):
        _put(s, k, s.flow_heap[(k - 1) >> 1])
        k = (k - 1) >> 1
    while 2 * k + 1 < n:
        c = 2 * k + 1
        if c + 1 < n and _ends_before(s, s.flow_heap[c + 1], s.flow_heap[c]):
            c += 1
        if not _ends_before(s, s.flow_heap[c], f):
            break
        _put(s, k, s.flow_heap[c])
        k = c
    _put(s, k, f)


@helper
def _take_out(s: State, f: int) -> None:
    k = s.flows.place[f] - 1
    if k < 0:
        return
    s.flows.place[f] = 0
    s.counts.n_moving[0] -= 1
    last = s.flow_heap[s.counts.n_moving[0]]
    if last != f:
        _put(s, k, last)
        _restore(s, k)
