"""Virtual counters of tenants: service received, by cost or by dominant share, and held requests."""

from __future__ import annotations

import numpy as np

from trimtab.compiled.kernel import helper
from trimtab.engine.state import State


@helper
def lift_virtual_counter(s: State, t: int) -> None:
    """Raise the counter of a tenant without held requests, so that idle time gives it no advantage.

    Virtual token counter: Sheng et al., "Fairness in serving large language models", OSDI 2024, algorithm 2,
    lines 7–13. A request that is never held counts as having left the queue on arrival.
    """
    if s.held_of[t] > 0:
        return
    least, any_held = np.inf, False
    for other in range(len(s.held_of)):
        if s.held_of[other] > 0:
            least, any_held = min(least, s.virtual_counters[other]), True
    if not any_held:
        least = s.virtual_counters[s.counts.last_tenant[0]]
    s.virtual_counters[t] = max(s.virtual_counters[t], least)
    if s.config.virtual_counters[0] == 2:
        for k in range(s.share.shape[1]):
            s.served_s[t, k] = max(s.served_s[t, k], least)


@helper(inline=True)
def add_expected_cost(s: State, r: int, estimate_s: float) -> None:
    """Add the expected cost of request r, which is sent to a node with this service estimate."""
    if s.config.virtual_counters[0] == 1:
        s.virtual_counters[s.work.tenant_idx[r]] += s.work.cost[r]
    elif s.config.virtual_counters[0] == 2:
        _serve(s, r, estimate_s)


@helper(inline=True)
def settle_cost(s: State, r: int, now_s: float) -> None:
    """Replace the expected cost of served request r by its true cost."""
    if s.config.virtual_counters[0] == 1 and s.config.costs_from_outside[0] == 0:
        s.virtual_counters[s.work.tenant_idx[r]] += s.truth.units[r] - s.work.units[r]
    elif s.config.virtual_counters[0] == 2:
        _serve(s, r, now_s - s.requests.start_s[r] - s.requests.estimate_s[r])


@helper
def _serve(s: State, r: int, seconds: float) -> None:
    """Add r's share of each resource over these seconds to its tenant. The counter is the largest sum.

    Ghodsi, Sekar, Zaharia, Stoica: "Multi-resource fair queueing for packet processing", SIGCOMM 2012
    (memoryless dominant-resource fair queueing).
    """
    t, c, largest_s = s.work.tenant_idx[r], s.work.class_idx[r], 0.0
    for k in range(s.share.shape[1]):
        s.served_s[t, k] += s.share[c, k] * seconds
        largest_s = max(largest_s, s.served_s[t, k])
    s.virtual_counters[t] = largest_s


@helper(inline=True)
def note_tenant_held(s: State, r: int) -> None:
    """Request r has entered the central queues."""
    t = s.work.tenant_idx[r]
    s.held_of[t] += 1
    s.held_cost[t] += s.work.cost[r]


@helper(inline=True)
def note_tenant_unheld(s: State, r: int) -> None:
    """Request r has left the central queues."""
    t = s.work.tenant_idx[r]
    s.held_of[t] -= 1
    s.held_cost[t] = s.held_cost[t] - s.work.cost[r] if s.held_of[t] > 0 else 0.0
    s.requests.queued_cost[r] = 0.0
