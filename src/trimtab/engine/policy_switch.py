"""Switches a run to another policy: waiting requests get new keys, and all nodes count as changed."""

from __future__ import annotations

from typing import Any

from trimtab.compiled.kernel import helper, kernel
from trimtab.domain.view import Plan
from trimtab.engine.batches import queue_at
from trimtab.engine.held_work import central_key
from trimtab.engine.nodes import queue_key
from trimtab.engine.queues import drop_first_of, enqueue, first_of, n_central
from trimtab.engine.state import State
from trimtab.engine.telemetry import note_all_changed


@helper
def _rekey(s: State, plan: Plan, order: Any, q: int, now_s: float) -> None:
    """Compute new keys for all of queue q. Requests taken out are linked by `next` until they return."""
    links = s.requests.next
    first, last = -1, -1
    r = first_of(s, q)
    while r >= 0:
        drop_first_of(s, q, r)
        links[r] = -1
        if last >= 0:
            links[last] = r
        else:
            first = r
        last = r
        r = first_of(s, q)
    central = len(s.nodes.up) <= q < len(s.nodes.up) + n_central(s)
    while first >= 0:
        r, first = first, links[first]
        key = central_key(s, plan, order, r, now_s) if central else queue_key(s, plan, order, r, now_s)
        s.requests.key[r] = key
        enqueue(s, q, r)


@kernel
def activate(s: State, plan: Plan, order: Any, is_new_order: int, now_s: float) -> None:
    """Activate a new policy: log every node as changed, and compute new keys if the order changes."""
    note_all_changed(s)
    if is_new_order == 1:
        for q in range(len(s.nodes.up) + n_central(s)):
            _rekey(s, plan, order, q, now_s)
        for group in range(s.config.groups[0]):
            for j in range(len(s.nodes.up)):
                _rekey(s, plan, order, queue_at(s, j, group), now_s)
