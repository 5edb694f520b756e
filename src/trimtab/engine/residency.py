"""Residency of models and adapters on nodes: loading at service start, and eviction.

GreedyDual-Size: Pei Cao, Sandy Irani, "Cost-aware WWW proxy caching algorithms", USITS 1997. An item's credit
is the node's inflation + load seconds ÷ GiB, set again on every use. The item with the least credit is
evicted, and its credit becomes the inflation. Ties go by last use: with equal costs and sizes this is LRU.
"""

from __future__ import annotations

import numpy as np

from trimtab.compiled.kernel import helper, plain
from trimtab.domain.engines import SLOTS
from trimtab.domain.options import Eviction
from trimtab.domain.view import Plan
from trimtab.engine.flows import MODEL, begin_flow, give_up_models, has_store, share_anew
from trimtab.engine.state import State

_GREEDY_DUAL_SIZE = int(Eviction.GREEDY_DUAL_SIZE)


@helper
def _account_memory(s: State, j: int, change_gib: float, now_s: float) -> None:
    h = s.hidden
    h.memory_gib_s[j] += h.memory_used_gib[j] * (now_s - h.memory_since_s[j])
    h.memory_since_s[j] = now_s
    h.memory_used_gib[j] += change_gib


@helper(inline=True)
def _set_resident(s: State, j: int, m: int, is_resident: int) -> None:
    s.resident[j, m] = is_resident
    s.resident_changes[j] += 1


@helper(inline=True)
def is_kept(plan: Plan, j: int, m: int) -> bool:
    """Whether the plan keeps item m on node j."""
    return len(plan.placement) > j and plan.placement[j, m] == 1


@helper(inline=True)
def _may_go(s: State, plan: Plan, j: int, m: int, model: int, adapter: int) -> bool:
    """Whether item m on node j may be evicted: it is not in use, not needed now and not kept by the plan.

    Nor may one that is on its way over the network. If nothing runs on the node, kept items may be evicted
    too, after all other items. Otherwise the request would wait for ever.
    """
    if s.items[j].in_use[m] > 0 or m in (model, adapter) or s.items[j].ready_s[m] == np.inf:
        return False
    return s.nodes.running[j] == 0 or not is_kept(plan, j, m)


@helper(inline=True)
def _goes_before(s: State, plan: Plan, j: int, a: int, b: int) -> bool:
    if is_kept(plan, j, a) != is_kept(plan, j, b):
        return is_kept(plan, j, b)
    items = s.items[j]
    if s.config.eviction[0] == _GREEDY_DUAL_SIZE and items.credit[a] != items.credit[b]:
        return items.credit[a] < items.credit[b]
    return items.used_s[a] < items.used_s[b]


@helper(inline=True)
def _note_use(s: State, j: int, m: int, now_s: float) -> None:
    items, gib = s.items[j], s.item_gib[m]
    items.used_s[m] = now_s
    if s.config.eviction[0] == _GREEDY_DUAL_SIZE:
        worth = s.load_s[m, s.nodes.type_idx[j]] / gib if gib > 0.0 else np.inf
        items.credit[m] = s.hidden.inflation[j] + worth


@helper(inline=True)
def _next_resident(s: State, j: int, m: int) -> int:
    """The first item ≥ m on node j, else the number of items. It scans by eights: few items are resident."""
    here, n, j = s.resident, len(s.item_gib), plain(j)
    while m + 8 <= n:
        i = plain(m)
        low = here[j, i] | here[j, i + 1] | here[j, i + 2] | here[j, i + 3]
        high = here[j, i + 4] | here[j, i + 5] | here[j, i + 6] | here[j, i + 7]
        if low | high != 0:
            break
        m += 8
    while m < n and here[j, plain(m)] == 0:
        m += 1
    return m


@helper
def _victim(s: State, plan: Plan, j: int, model: int, adapter: int) -> int:
    """The item to evict next; -1 = none may be evicted."""
    best, m = -1, _next_resident(s, j, 0)
    while m < len(s.item_gib):
        if _may_go(s, plan, j, m, model, adapter) and (best < 0 or _goes_before(s, plan, j, m, best)):
            best = m
        m = _next_resident(s, j, m + 1)
    return best


@helper
def _can_evict(s: State, plan: Plan, j: int, model: int, adapter: int, free: float, need: float) -> bool:
    """Whether evicting every item that may be evicted frees the needed room (GiB)."""
    evictable, m = 0.0, _next_resident(s, j, 0)
    while m < len(s.item_gib) and need > free + evictable:
        if _may_go(s, plan, j, m, model, adapter):
            evictable += s.item_gib[m]
        m = _next_resident(s, j, m + 1)
    return need <= free + evictable


@helper
def make_room(s: State, plan: Plan, j: int, model: int, adapter: int, now_s: float) -> bool:
    """Evict until node j has room for a model and an adapter (-1 = none); False if that is impossible."""
    need = 0.0
    if s.resident[j, model] == 0:
        need += s.item_gib[model]
    if adapter >= 0 and s.resident[j, adapter] == 0:
        need += s.item_gib[adapter]
    free = s.hidden.memory_gib[j] - s.hidden.memory_used_gib[j] + 1e-9
    if need > free and not _can_evict(s, plan, j, model, adapter, free, need):
        return False
    while need > free:
        m = _victim(s, plan, j, model, adapter)
        _set_resident(s, j, m, 0)
        s.counts.evictions[0] += 1
        s.hidden.inflation[j] = max(s.hidden.inflation[j], s.items[j].credit[m])
        _account_memory(s, j, -s.item_gib[m], now_s)
        free = s.hidden.memory_gib[j] - s.hidden.memory_used_gib[j] + 1e-9
    return True


@helper
def load(s: State, j: int, m: int, from_s: float, now_s: float) -> None:
    """Load item m on node j, which has room, from `from_s` on; from a store, at once over the network."""
    _set_resident(s, j, m, 1)
    s.items[j].ready_s[m] = from_s + s.load_s[m, s.nodes.type_idx[j]]
    if has_store(s) and s.item_gib[m] > 0.0:
        s.items[j].ready_s[m] = np.inf
        begin_flow(s, MODEL, m, s.config.store_vertex[0], j, s.item_gib[m], now_s)
        share_anew(s, now_s)
    _account_memory(s, j, s.item_gib[m], now_s)
    _note_use(s, j, m, now_s)
    if s.item_is_adapter[m] == 1:
        s.counts.adapter_loads[0] += 1
    else:
        s.counts.model_loads[0] += 1


@helper
def _hold(s: State, j: int, m: int, from_s: float, now_s: float) -> float:
    """Use item m from `from_s` on and load it if it is missing; returns the time at which it is ready."""
    items = s.items[j]
    if s.resident[j, m] == 0:
        load(s, j, m, from_s, now_s)
    else:
        _note_use(s, j, m, now_s)
    items.in_use[m] += 1
    return max(from_s, items.ready_s[m])


@helper
def _fetch(s: State, j: int, model: int, adapter: int, now_s: float) -> bool:
    """Fetch what node j lacks of a model and an adapter (-1 = none). Returns whether some is on its way."""
    if s.resident[j, model] == 0:
        load(s, j, model, now_s, now_s)
    if adapter >= 0 and s.resident[j, adapter] == 0:
        load(s, j, adapter, now_s, now_s)
    return bool(
        s.items[j].ready_s[model] == np.inf or (adapter >= 0 and s.items[j].ready_s[adapter] == np.inf)
    )


@helper(inline=True)
def acquire(s: State, plan: Plan, r: int, j: int, now_s: float) -> float:
    """Time at which request r can compute on node j if it takes a slot now; -1 = its models do not fit yet.

    An item is loaded once per node: other requests that need it wait for the same load. The adapter is loaded
    after the model. inf = an item is on its way over the network; on an engine the request waits, −1, for it.
    """
    model, adapter = s.work.model_idx[r], s.work.adapter_idx[r]
    if model < 0:
        return now_s
    if not make_room(s, plan, j, model, adapter, now_s):
        return -1.0
    if has_store(s) and s.hidden.service[j] != SLOTS and _fetch(s, j, model, adapter, now_s):
        return -1.0
    ready_s = _hold(s, j, model, now_s, now_s)
    return ready_s if adapter < 0 else _hold(s, j, adapter, ready_s, now_s)


@helper(inline=True)
def release(s: State, r: int, j: int, now_s: float) -> None:
    """Request r stops using its models on node j."""
    model, adapter = s.work.model_idx[r], s.work.adapter_idx[r]
    if model < 0:
        return
    s.items[j].in_use[model] -= 1
    _note_use(s, j, model, now_s)
    if adapter >= 0:
        s.items[j].in_use[adapter] -= 1
        _note_use(s, j, adapter, now_s)


@helper
def forget_all(s: State, j: int, now_s: float) -> None:
    """Remove all items from failed node j."""
    items = s.items[j]
    if has_store(s):
        give_up_models(s, j, now_s)
    for m in range(len(s.item_gib)):
        _set_resident(s, j, m, 0)
        items.in_use[m] = 0
    s.hidden.unplaced[j] = 1 if s.hidden.placed_gib[j] > 0.0 else 0
    _account_memory(s, j, -s.hidden.memory_used_gib[j], now_s)
