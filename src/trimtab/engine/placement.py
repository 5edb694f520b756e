"""What a plan places on nodes: loaded ahead of requests, and, where the host pins it, never crowded out.

A node places the items that the plan keeps there as far as they fit its memory together, in the order of
items. What it lacks of them it loads when a slot idles and nothing waits, one after the other; loading holds
no slot. What requests crowd out stays out until the next plan. Real nodes load what they are asked for, so in
a gateway a plan only pins.
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
    """Whether node j can hold the items of request r beside what it places, where that is pinned."""
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
    """Another plan is in force: nodes note what it places on them, and idle ones begin to load it."""
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
    """Node j loads what it lacks of what the plan places there, if a slot idles."""
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
                return  # others are in use: again when one of them ends
            load(s, j, m, begin_s, now_s)
            begin_s = items.ready_s[m]
    s.hidden.unplaced[j] = 0
