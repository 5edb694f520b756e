"""The batch of an engine: which rows it serves now, and which of them ends next.

`batch_rows` of a node holds its decoding rows first, a heap by `sequences.ends_at` with ties by row, then the
rows whose prompts are read, in the order of their admission.
"""

from __future__ import annotations

from trimtab.compiled.kernel import helper
from trimtab.domain.view import Plan
from trimtab.engine.queues import drop_first_of
from trimtab.engine.residency import acquire, release
from trimtab.engine.resources import give_back, take
from trimtab.engine.state import State


@helper(inline=True)
def put(s: State, j: int, i: int, r: int) -> None:
    """Row r takes place i of the batch of node j."""
    s.batch_rows[s.engines.place[j] + i] = r
    s.sequences.place[r] = i


@helper(inline=True)
def row_at(s: State, j: int, i: int) -> int:
    """The row at place i of the batch of node j."""
    return int(s.batch_rows[s.engines.place[j] + i])


@helper
def last_of(s: State, j: int) -> int:
    """The row at the last place of the batch of node j; -1 = none."""
    return row_at(s, j, s.nodes.running[j] - 1) if s.nodes.running[j] > 0 else -1


@helper(inline=True)
def _ends_before(s: State, a: int, b: int) -> bool:
    ends_at = s.sequences.ends_at
    return ends_at[a] < ends_at[b] or (ends_at[a] == ends_at[b] and a < b)


@helper
def move_up(s: State, j: int, i: int) -> None:
    """Restore the heap after the row at place i ends sooner."""
    r = row_at(s, j, i)
    while i > 0:
        above = (i - 1) >> 1
        q = row_at(s, j, above)
        if not _ends_before(s, r, q):
            break
        put(s, j, i, q)
        i = above
    put(s, j, i, r)


@helper
def _move_down(s: State, j: int, i: int, n: int) -> None:
    r = row_at(s, j, i)
    while 2 * i + 1 < n:
        c = 2 * i + 1
        if c + 1 < n and _ends_before(s, row_at(s, j, c + 1), row_at(s, j, c)):
            c += 1
        q = row_at(s, j, c)
        if not _ends_before(s, q, r):
            break
        put(s, j, i, q)
        i = c
    put(s, j, i, r)


@helper
def add_decoding(s: State, j: int, r: int) -> None:
    """Row r, whose end is set, decodes from now on. No prompt is read meanwhile."""
    n = s.engines.decoding[j]
    s.engines.decoding[j] = n + 1
    put(s, j, n, r)
    move_up(s, j, n)


@helper
def drop_decoding(s: State, j: int, i: int) -> None:
    """Take the row at place i out of the heap. Rows whose prompts are read move up by one place."""
    e = s.engines
    n = e.decoding[j] - 1
    last = row_at(s, j, n)
    e.decoding[j] = n
    s.nodes.running[j] -= 1
    if i != n:
        put(s, j, i, last)
        move_up(s, j, i)
        _move_down(s, j, s.sequences.place[last], n)
    for k in range(n, n + e.prefilling[j]):
        put(s, j, k, row_at(s, j, k + 1))


@helper
def drop_prefilling(s: State, j: int, i: int) -> None:
    """Take the row at place i out, whose prompt is being read."""
    e = s.engines
    e.prefilling[j] -= 1
    s.nodes.running[j] -= 1
    for k in range(i, e.decoding[j] + e.prefilling[j]):
        put(s, j, k, row_at(s, j, k + 1))


@helper
def enter_batch(s: State, r: int, j: int) -> None:
    """Row r, first in the queue of node j, takes what it holds there; its model is loaded or being loaded."""
    drop_first_of(s, j, r)
    take(s, r, j)
    adapter = s.work.adapter_idx[r]
    if adapter >= 0 and s.items[j].in_use[adapter] == 1:
        s.engines.adapters[j] += 1


@helper
def reload_models(s: State, plan: Plan, j: int, now_s: float) -> float:
    """The rows of repaired node j load their models again; returns when all are ready."""
    ready_s = now_s
    for i in range(s.nodes.running[j]):
        ready_s = max(ready_s, acquire(s, plan, row_at(s, j, i), j, now_s))
    return ready_s


@helper
def leave_batch(s: State, r: int, j: int, now_s: float) -> None:
    """Row r, taken out of the batch, gives back what it held on node j."""
    release(s, r, j, now_s)
    adapter = s.work.adapter_idx[r]
    if adapter >= 0 and s.items[j].in_use[adapter] == 0:
        s.engines.adapters[j] -= 1
    give_back(s, r, j)
    held_s = now_s - s.sequences.joined_s[r]
    for k in range(s.demand.shape[1]):
        s.used_s[j, k] += s.demand[s.work.class_idx[r], k] * held_s
    s.sequences.place[r] = -1


@helper
def account_busy(s: State, j: int, now_s: float) -> None:
    """Count the time since the engine was last looked at for all its slots: a batch takes the whole node."""
    slot_s = max(0.0, now_s - s.engines.begun_s[j]) * s.nodes.slots[j]
    s.hidden.allocated_slot_s[j] += slot_s
    s.hidden.busy_slot_s[j] += slot_s
