"""Transfers of payloads to a node: first the round trip, then each link of the path, store and forward.

The transfers on a link share its bandwidth equally. `share_gib` is the amount that one transfer would have
received since the start of the run. Each transfer stores only the `share_gib` of its completion (virtual time
of processor sharing).
"""

from __future__ import annotations

import numpy as np

from trimtab.compiled.kernel import helper
from trimtab.engine.events import TRANSFER, push_event
from trimtab.engine.flows import has_network
from trimtab.engine.network_transfers import abandon_flows, begin_inputs
from trimtab.engine.queues import drop_first_of, enqueue, first_of, n_central
from trimtab.engine.state import State

ZONE_HOP, NODE_HOP, THERE = 0, 1, 2


@helper(inline=True)
def _queue_of(s: State, link: int) -> int:
    return len(s.nodes.up) + n_central(s) + link


@helper
def _bring_up_to_date(s: State, link: int, now_s: float) -> None:
    links = s.links
    if s.link_active[link] > 0:
        links.share_gib[link] += (now_s - links.since_s[link]) * links.gib_per_s[link] / s.link_active[link]
    links.since_s[link] = now_s


@helper
def _schedule(s: State, link: int, now_s: float) -> None:
    """Schedule the one event of a link, the end of its next transfer. Its earlier event becomes void."""
    links, version = s.links, s.requests.version
    if links.due[link] >= 0:
        version[links.due[link]] += 1
    head = first_of(s, _queue_of(s, link))
    links.due[link] = head
    if head >= 0:
        version[head] += 1
        left_gib = max(0.0, s.requests.key[head] - links.share_gib[link])
        left_s = left_gib * s.link_active[link] / links.gib_per_s[link]
        push_event(s, now_s + left_s, TRANSFER, head, version[head])


@helper
def _enter(s: State, link: int, r: int, amount_gib: float, now_s: float) -> None:
    _bring_up_to_date(s, link, now_s)
    s.requests.key[r] = s.links.share_gib[link] + amount_gib
    enqueue(s, _queue_of(s, link), r)
    s.link_active[link] += 1
    _schedule(s, link, now_s)


@helper
def _leave(s: State, link: int, r: int, now_s: float) -> None:
    _bring_up_to_date(s, link, now_s)
    s.links.share_gib[link] = s.requests.key[r]
    drop_first_of(s, _queue_of(s, link), r)
    s.link_active[link] -= 1
    s.links.due[link] = -1
    _schedule(s, link, now_s)


@helper
def _link_of(s: State, r: int, hop: int) -> int:
    """Link of a hop; -1 if the link is not modelled or nothing crosses it."""
    j = s.requests.node_idx[r]
    link = s.config.n_zones[0] + j
    if hop == ZONE_HOP:
        link = s.nodes.zone_idx[j] if _crosses_zones(s, r, j) else -1
    return link if link >= 0 and s.links.gib_per_s[link] < np.inf else -1


@helper(inline=True)
def moving_gib(s: State, r: int) -> float:
    """Payload of request r, or what the node of stage r lacks of its inputs."""
    return s.stages.moving_gib[r] if s.config.runs[0] == 1 else s.work.payload_gib[r]


@helper(inline=True)
def _crosses_zones(s: State, r: int, j: int) -> bool:
    if s.config.runs[0] == 1:
        return s.stages.crossing_gib[r] > 0.0
    return s.nodes.zone_idx[j] != s.work.zone_idx[r]


@helper(inline=True)
def _amount_gib(s: State, r: int, hop: int) -> float:
    """The amount that row r moves over the link of a hop."""
    is_part = s.config.runs[0] == 1 and hop == ZONE_HOP
    return s.stages.crossing_gib[r] if is_part else moving_gib(s, r)


@helper
def depart(s: State, r: int, rtt_s: float, now_s: float) -> None:
    """Start the transfer of request r to its node. Its first event is one round trip later."""
    s.requests.hop[r] = ZONE_HOP
    s.requests.version[r] += 1
    push_event(s, now_s + rtt_s, TRANSFER, r, s.requests.version[r])


@helper
def move_on(s: State, r: int, now_s: float) -> bool:
    """Request r has passed its current link. Returns True if it has reached its node."""
    hops = s.requests.hop
    if has_network(s):
        if hops[r] == THERE or not begin_inputs(s, r, now_s):
            s.counts.moved_gib[0] += moving_gib(s, r)
            return True
        hops[r] = THERE  # once its flows have ended
        return False
    current = _link_of(s, r, hops[r] - 1) if hops[r] > 0 else -1
    if current >= 0 and s.links.due[current] == r:
        _leave(s, current, r, now_s)
    while hops[r] < THERE:
        link, amount_gib = _link_of(s, r, hops[r]), _amount_gib(s, r, hops[r])
        hops[r] += 1
        if link >= 0 and amount_gib > 0.0:
            _enter(s, link, r, amount_gib, now_s)
            return False
    s.counts.moved_gib[0] += moving_gib(s, r)
    return True


@helper
def abandon(s: State, r: int, now_s: float) -> None:
    """Stop the transfer of request r, which is already marked as ended."""
    if has_network(s):
        abandon_flows(s, r, now_s)
        return
    link = _link_of(s, r, s.requests.hop[r] - 1) if s.requests.hop[r] > 0 else -1
    s.requests.version[r] += 1
    if link >= 0 and moving_gib(s, r) > 0.0:
        _bring_up_to_date(s, link, now_s)
        s.link_active[link] -= 1
        s.queues.length[_queue_of(s, link)] -= 1
        _schedule(s, link, now_s)
