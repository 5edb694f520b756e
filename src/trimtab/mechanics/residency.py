"""Which models and adapters a node holds: loading at service start, least-recently-used eviction."""

from __future__ import annotations

from trimtab.domain.kernel import helper
from trimtab.domain.view import Plan
from trimtab.mechanics.state import State


@helper
def _account_memory(s: State, j: int, change_gib: float, now_s: float) -> None:
    h = s.hidden
    h.memory_gib_s[j] += h.memory_used_gib[j] * (now_s - h.memory_since_s[j])
    h.memory_since_s[j] = now_s
    h.memory_used_gib[j] += change_gib


@helper(inline=True)
def _is_kept(plan: Plan, j: int, m: int) -> bool:
    return len(plan.placement) > j and plan.placement[j, m] == 1


@helper(inline=True)
def _may_go(s: State, plan: Plan, j: int, m: int, model: int, adapter: int) -> bool:
    """Whether item m may leave node j: not in use, not needed now, not kept by the plan.

    What is kept goes all the same, last, when nothing runs there: the request would wait for ever.
    """
    if s.resident[j, m] == 0 or s.items[j].in_use[m] > 0 or m in (model, adapter):
        return False
    return s.nodes.running[j] == 0 or not _is_kept(plan, j, m)


@helper(inline=True)
def _goes_before(s: State, plan: Plan, j: int, a: int, b: int) -> bool:
    if _is_kept(plan, j, a) != _is_kept(plan, j, b):
        return _is_kept(plan, j, b)
    return s.items[j].used_s[a] < s.items[j].used_s[b]


@helper
def _victim(s: State, plan: Plan, j: int, model: int, adapter: int) -> int:
    """Item that goes next, the least recently used; -1 if none may go."""
    best = -1
    for m in range(len(s.item_gib)):
        if _may_go(s, plan, j, m, model, adapter) and (best < 0 or _goes_before(s, plan, j, m, best)):
            best = m
    return best


@helper
def _evictable_gib(s: State, plan: Plan, j: int, model: int, adapter: int) -> float:
    total = 0.0
    for m in range(len(s.item_gib)):
        if _may_go(s, plan, j, m, model, adapter):
            total += s.item_gib[m]
    return total


@helper
def _make_room(s: State, plan: Plan, j: int, model: int, adapter: int, now_s: float) -> bool:
    need = 0.0
    if s.resident[j, model] == 0:
        need += s.item_gib[model]
    if adapter >= 0 and s.resident[j, adapter] == 0:
        need += s.item_gib[adapter]
    free = s.hidden.memory_gib[j] - s.hidden.memory_used_gib[j] + 1e-9
    if need > free and need > free + _evictable_gib(s, plan, j, model, adapter):
        return False
    while need > free:
        m = _victim(s, plan, j, model, adapter)
        s.resident[j, m] = 0
        s.counts.evictions[0] += 1
        _account_memory(s, j, -s.item_gib[m], now_s)
        free = s.hidden.memory_gib[j] - s.hidden.memory_used_gib[j] + 1e-9
    return True


@helper
def _hold(s: State, j: int, m: int, from_s: float, now_s: float) -> float:
    """Use item m from `from_s` on, loading it if need be; returns when it is ready."""
    items = s.items[j]
    if s.resident[j, m] == 0:
        s.resident[j, m] = 1
        items.ready_s[m] = from_s + s.load_s[m, s.nodes.type_idx[j]]
        _account_memory(s, j, s.item_gib[m], now_s)
        if s.item_is_adapter[m] == 1:
            s.counts.adapter_loads[0] += 1
        else:
            s.counts.model_loads[0] += 1
    items.in_use[m] += 1
    items.used_s[m] = now_s
    return max(from_s, items.ready_s[m])


@helper(inline=True)
def acquire(s: State, plan: Plan, r: int, j: int, now_s: float) -> float:
    """When request r can compute on node j if it takes a slot now; -1 where its models do not fit yet.

    One load per item and node: others that need it wait for it. The adapter is loaded after the model.
    """
    model, adapter = s.work.model_idx[r], s.work.adapter_idx[r]
    if model < 0:
        return now_s
    if not _make_room(s, plan, j, model, adapter, now_s):
        return -1.0
    ready_s = _hold(s, j, model, now_s, now_s)
    return ready_s if adapter < 0 else _hold(s, j, adapter, ready_s, now_s)


@helper(inline=True)
def release(s: State, r: int, j: int, now_s: float) -> None:
    """Request r uses its models on node j no longer."""
    model, adapter = s.work.model_idx[r], s.work.adapter_idx[r]
    if model < 0:
        return
    s.items[j].in_use[model] -= 1
    s.items[j].used_s[model] = now_s
    if adapter >= 0:
        s.items[j].in_use[adapter] -= 1
        s.items[j].used_s[adapter] = now_s


@helper
def forget_all(s: State, j: int, now_s: float) -> None:
    """A failed node holds nothing."""
    items = s.items[j]
    for m in range(len(s.item_gib)):
        s.resident[j, m] = 0
        items.in_use[m] = 0
    _account_memory(s, j, -s.hidden.memory_used_gib[j], now_s)
