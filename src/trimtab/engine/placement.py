"""Placement of items by a plan: nodes load them ahead of requests. Pinned items are never evicted.

A node places the items that the plan keeps there, in the order of items, as far as they fit its memory
together. It loads missing items one after the other when a slot is free and nothing waits. Such a load holds
no slot. An item that requests evict stays evicted until the next plan. In a gateway nodes load by calls of
their own, so there the loop only pins.
"""

from __future__ import annotations

from trimtab.compiled.kernel import helper
from trimtab.domain.options import Eviction
from trimtab.domain.view import Plan
from trimtab.engine.residency import is_kept, load, make_room
from trimtab.engine.state import State
from trimtab.engine.telemetry import note_change

_PLAN_PINNED = int(Eviction.PLAN_PINNED)
_SLACK_GIB = 1e-9  # rounding of sums


@helper(inline=True)
def fits_beside_placed(s: State, r: int, j: int) -> bool:
    """Whether the items of request r fit node j beside its placed items; True if these are not pinned."""
    model, adapter = s.work.model_idx[r], s.work.adapter_idx[r]
    if s.config.eviction[0] != _PLAN_PINNED or model < 0:
        return True
    items, need_gib = s.items[j], s.hidden.placed_gib[j]
    if items.placed[model] == 0:
        need_gib += s.item_gib[model]
    if adapter >= 0 and items.placed[adapter] == 0:
        need_gib += s.item_gib[adapter]
    return need_gib <= s.hidden.memory_gib[j] + _SLACK_GIB


@helper
def take_placement(s: State, plan: Plan, now_s: float) -> None:
    """Apply a new plan's placement: nodes record their placed items, and idle nodes begin to load them."""
    for j in range(len(s.nodes.up)):
        items, placed_gib, lacks = s.items[j], 0.0, 0
        for m in range(len(s.item_gib)):
            fits = placed_gib + s.item_gib[m] <= s.hidden.memory_gib[j] + _SLACK_GIB
            items.placed[m] = 1 if fits and is_kept(plan, j, m) else 0
            if items.placed[m] == 1:
                placed_gib += s.item_gib[m]
                lacks |= 1 - s.resident[j, m]
        s.hidden.placed_gib[j] = placed_gib
        s.hidden.unplaced[j] = lacks
        if lacks == 1:
            place_if_idle(s, plan, j, now_s)
            note_change(s, j)


@helper(inline=True)
def place_if_idle(s: State, plan: Plan, j: int, now_s: float) -> None:
    """Load the missing placed items of node j if a slot is free."""
    is_idle = s.nodes.up[j] == 1 and s.nodes.running[j] < s.nodes.slots[j] and s.queues.length[j] == 0
    if s.hidden.unplaced[j] == 1 and is_idle and s.config.loads_from_outside[0] == 0:
        _place(s, plan, j, now_s)


@helper
def _place(s: State, plan: Plan, j: int, now_s: float) -> None:
    items, begin_s = s.items[j], now_s
    for m in range(len(s.item_gib)):
        if s.resident[j, m] == 1:
            begin_s = max(begin_s, items.ready_s[m])
    for m in range(len(s.item_gib)):
        if items.placed[m] == 1 and s.resident[j, m] == 0:
            if not make_room(s, plan, j, m, -1, now_s):
                return  # the other items are in use: the next end of a request tries again
            load(s, j, m, begin_s, now_s)
            begin_s = items.ready_s[m]
    s.hidden.unplaced[j] = 0
