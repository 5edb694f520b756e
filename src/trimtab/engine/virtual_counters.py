"""Virtual counters of tenants: service received, by cost or dominant share; resources and requests held."""

from __future__ import annotations

import numpy as np

from trimtab.compiled.kernel import helper
from trimtab.engine.shares import count_at_nodes, count_held, has_tree, share_of, top_share
from trimtab.engine.state import COSTS, SHARES_HELD, SHARES_SERVED, TREE_SHARES, State


@helper
def lift_virtual_counter(s: State, t: int) -> None:
    """Raise the counter of a tenant without held requests, so that idle time gives it no advantage.

    Virtual token counter: Sheng et al., "Fairness in serving large language models", OSDI 2024, algorithm 2,
    lines 7–13. A request that is never held counts as having left the queue on arrival.
    """
    if s.held_of[t] > 0 or s.config.virtual_counters[0] >= SHARES_HELD:
        return
    least, any_held = np.inf, False
    for other in range(len(s.held_of)):
        if s.held_of[other] > 0:
            least, any_held = min(least, s.virtual_counters[other]), True
    if not any_held:
        least = s.virtual_counters[s.counts.last_tenant[0]]
    s.virtual_counters[t] = max(s.virtual_counters[t], least)


@helper(inline=True)
def counter_of(s: State, t: int) -> float:
    """The virtual counter of tenant t, as an order reads it."""
    kind = s.config.virtual_counters[0]
    if kind < SHARES_HELD:
        return float(s.virtual_counters[t])
    if kind == TREE_SHARES:
        return top_share(s, t)
    return share_of(s, t)


@helper(inline=True)
def note_at_nodes(s: State, r: int, change: int) -> None:
    """Request r is sent to a node (`change` 1), or has left it (−1)."""
    if s.config.virtual_counters[0] >= SHARES_HELD or has_tree(s):
        s.at_nodes[s.work.tenant_idx[r], s.work.class_idx[r]] += change
        if has_tree(s):
            count_at_nodes(s, r, change)


@helper(inline=True)
def add_expected_cost(s: State, r: int, estimate_s: float) -> None:
    """Add the expected cost of request r, which is sent to a node with this service estimate."""
    if s.config.virtual_counters[0] == COSTS:
        s.virtual_counters[s.work.tenant_idx[r]] += s.work.cost[r]
    elif s.config.virtual_counters[0] == SHARES_SERVED:
        _serve(s, r, estimate_s)


@helper(inline=True)
def settle_cost(s: State, r: int, now_s: float) -> None:
    """Replace the expected cost of served request r by its true cost."""
    if s.config.virtual_counters[0] == COSTS and s.config.costs_from_outside[0] == 0:
        t = s.work.tenant_idx[r]
        s.virtual_counters[t] += (s.truth.units[r] - s.work.units[r]) / s.tenant_weight[t]
    elif s.config.virtual_counters[0] == SHARES_SERVED:
        _serve(s, r, now_s - s.requests.start_s[r] - s.requests.estimate_s[r])


@helper
def _serve(s: State, r: int, seconds: float) -> None:
    """Add r's dominant share over these seconds to the counter of its tenant, by the tenant's weight.

    Ghodsi, Sekar, Zaharia, Stoica: "Multi-resource fair queueing for packet processing", SIGCOMM 2012
    (memoryless dominant-resource fair queueing).
    """
    t, c, slots = s.work.tenant_idx[r], s.work.class_idx[r], len(s.pooled) - 1
    largest = 1.0 / s.pooled[slots]
    for k in range(slots):
        largest = max(largest, s.demand[c, k] / s.pooled[k])
    s.virtual_counters[t] += largest * seconds / s.tenant_weight[t]


@helper(inline=True)
def note_tenant_held(s: State, r: int) -> None:
    """Request r has entered the central queues."""
    t = s.work.tenant_idx[r]
    s.held_of[t] += 1
    s.held_cost[t] += s.work.cost[r]
    if has_tree(s):
        count_held(s, r, 1)


@helper(inline=True)
def note_tenant_unheld(s: State, r: int) -> None:
    """Request r has left the central queues."""
    t = s.work.tenant_idx[r]
    s.held_of[t] -= 1
    s.held_cost[t] = s.held_cost[t] - s.work.cost[r] if s.held_of[t] > 0 else 0.0
    s.requests.queued_cost[r] = 0.0
    if has_tree(s):
        count_held(s, r, -1)
