"""Slots of a node: service times of requests, and the notice to the host when service begins."""

from __future__ import annotations

from typing import Final

import numpy as np

from trimtab.compiled.kernel import helper
from trimtab.engine.events import COMPLETION, push_event
from trimtab.engine.prefix_cache import cached_units, has_prefixes
from trimtab.engine.state import State

UNESTIMATED: Final = -1.0  # written by a host that leaves the estimate of a request to the loop
SOME_S: Final = 1.0  # the estimate if no node can serve the request yet


@helper(inline=True)
def service_s(s: State, r: int, j: int) -> float:
    """True service seconds of request r on node j, at full speed and with its cached part of the prompt."""
    c, g, units = s.work.class_idx[r], s.nodes.type_idx[j], s.truth.units[r]
    if has_prefixes(s):
        units = max(0.0, units - cached_units(s, r, j))
    return (s.fixed_s[c, g] + s.unit_s[c, g] * units) * s.truth.factor[r]


@helper(inline=True)
def expected_s(s: State, r: int, j: int) -> float:
    """Estimated service seconds of request r on node j, as policies may compute them."""
    c, g, units = s.work.class_idx[r], s.nodes.type_idx[j], s.work.units[r]
    if has_prefixes(s):
        units = max(0.0, units - cached_units(s, r, j))
    return s.fixed_s[c, g] + s.unit_s[c, g] * units


@helper
def best_estimate_s(s: State, r: int) -> float:
    """Estimated service seconds of request r on the best node, without cached prompt; inf = no node."""
    c, best_s = s.work.class_idx[r], np.inf
    for j in range(len(s.nodes.up)):
        g = s.nodes.type_idx[j]
        best_s = min(best_s, s.fixed_s[c, g] + s.unit_s[c, g] * s.work.units[r])
    return best_s


@helper(inline=True)
def begin_row(s: State, r: int) -> None:
    """Reset a reused row for new request r, and fill in the values that its host leaves to the loop."""
    s.requests.reason[r] = 0
    s.requests.node_idx[r] = -1
    s.truth.units[r] = s.work.units[r]
    if len(s.preemptions.times) > 0:
        s.preemptions.is_firm[r] = s.preemptions.times[r] = 0
        s.preemptions.until_s[r] = 0.0
    if s.work.estimate_s[r] == UNESTIMATED:
        best_s = best_estimate_s(s, r)
        s.work.estimate_s[r] = best_s if best_s < np.inf else SOME_S
        s.work.rank_s[r] = s.work.estimate_s[r]


@helper(inline=True)
def occupy(s: State, r: int, j: int, ready_s: float, now_s: float) -> None:
    """Request r takes a slot of node j. Its remaining service is in `left_s`.

    `ready_s` is inf while a model is on its way over the network: then its arrival sets the end.
    """
    rows, slots = s.requests, s.slots
    i = s.hidden.first_slot[j] + rows.slot[r]
    slots.since_s[i] = now_s
    slots.estimate_s[i] = rows.estimate_s[r]
    slots.estimate_end_s[i] = (ready_s if ready_s < np.inf else now_s) + rows.estimate_s[r]
    slots.request[i] = r
    rows.service_start_s[r] = ready_s
    rows.finish_s[r] = ready_s + rows.left_s[r] / s.hidden.speed[j]
    announce(s, r)


@helper(inline=True)
def announce(s: State, r: int) -> None:
    """Schedule the end of request r, which holds a slot, at `finish_s`. In live runs the host serves it."""
    rows = s.requests
    rows.version[r] += 1
    if s.config.completions_from_outside[0] == 1:
        s.started[s.counts.started[0]] = r
        s.counts.started[0] += 1
    elif rows.finish_s[r] < np.inf:
        push_event(s, rows.finish_s[r], COMPLETION, r, rows.version[r])
