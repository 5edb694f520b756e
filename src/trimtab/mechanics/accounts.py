"""Tenants' accounts, what each has been served by weight, and what each of them has waiting centrally."""

from __future__ import annotations

import numpy as np

from trimtab.domain.kernel import helper
from trimtab.mechanics.state import State


@helper
def lift_account(s: State, t: int) -> None:
    """A tenant with nothing waiting gains nothing by having been idle.

    Virtual token counter: Sheng et al., "Fairness in serving large language models", OSDI 2024, algorithm 2,
    lines 7–13. What is not held counts as having left the queue when it arrived.
    """
    if s.held_of[t] > 0:
        return
    least, any_held = np.inf, False
    for other in range(len(s.held_of)):
        if s.held_of[other] > 0:
            least, any_held = min(least, s.accounts[other]), True
    if not any_held:
        least = s.accounts[s.counts.last_tenant[0]]
    s.accounts[t] = max(s.accounts[t], least)


@helper(inline=True)
def note_tenant_held(s: State, r: int) -> None:
    """Request r has entered the central queues."""
    t = s.work.tenant_idx[r]
    s.held_of[t] += 1
    s.held_charge[t] += s.work.charge[r]


@helper(inline=True)
def note_tenant_unheld(s: State, r: int) -> None:
    """Request r has left the central queues."""
    t = s.work.tenant_idx[r]
    s.held_of[t] -= 1
    s.held_charge[t] = s.held_charge[t] - s.work.charge[r] if s.held_of[t] > 0 else 0.0
    s.work.ahead[r] = 0.0
