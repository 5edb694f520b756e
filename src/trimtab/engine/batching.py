"""Nodes that serve language models: iteration-level continuous batching with chunked prefill.

An engine works in iterations. Each gives one token to every row that decodes, and spends the rest of its
token budget on prompts (`domain.engines` has the sources and the seconds). The rules are those of vLLM's
scheduler (vllm/v1/core/sched/scheduler.py): running rows come first, waiting ones only if none was preempted;
a row joins if the tokens of its whole prompt fit the KV memory; where a token more does not fit, the row that
was admitted last is preempted and computes all it had again.

Between two changes of the batch only the context grows, so iteration k of a run ends at
begun_s + k · first_s + growth_s · k (k − 1) / 2. With `config.fast_forward` one event ends all iterations up
to the next change, else each has its own. Both give the same bits:
1. All times come from that expression. Its start moves only when the batch changes.
2. What happens meanwhile cuts the run at the first end that is still to come in the order of events.
3. If a preemption kept waiting rows out, they are looked at again after one iteration.
4. What policies see is written only when the batch or the queue changes.
A cancelled row stays until the iteration under way ends, and a new speed holds from the next one.

Left out: asynchronous scheduling, the padding of batches to sizes of captured graphs, the imbalance of
experts, and ranks of one model that wait for each other. They are in the measured seconds or not at all.
"""

from __future__ import annotations

import numpy as np

from trimtab.compiled.kernel import helper
from trimtab.domain.requests import Status
from trimtab.domain.view import Plan
from trimtab.engine.engine_batch import (
    account_busy,
    add_decoding,
    drop_decoding,
    drop_prefilling,
    enter_batch,
    leave_batch,
    move_up,
    put,
    reload_models,
    row_at,
)
from trimtab.engine.events import STEP, kind_of, push_event, serial_of
from trimtab.engine.kv_pool import added_tokens, cached_tokens, forget_blocks, hold, let_go
from trimtab.engine.queues import enqueue, first_of
from trimtab.engine.residency import acquire
from trimtab.engine.resources import fits_beside
from trimtab.engine.state import State

IDLE, DECODING, MIXED, PAUSED_DECODING, PAUSED_MIXED = range(5)  # ENGINE.phase
_RUNNING, _QUEUED = int(Status.RUNNING), int(Status.QUEUED)


@helper(inline=True)
def _end_s(s: State, j: int, k: int) -> float:
    """When iteration k of the present run ends."""
    e = s.engines
    return float(e.begun_s[j] + (k * e.first_s[j] + 0.5 * e.growth_s[j] * k * (k - 1)))


@helper
def _bin_of(s: State, seconds: float) -> int:
    """The bin of `itl_count` for a distance of so many seconds."""
    low, high = 0, len(s.itl_edge_s)
    while low < high:
        middle = (low + high) >> 1
        if seconds < s.itl_edge_s[middle]:
            high = middle
        else:
            low = middle + 1
    return low


@helper
def _count_distances(s: State, j: int, done: int, k: int) -> None:
    """Count the seconds of iterations done + 1 to k of the present run, once for each decoding row."""
    e, g = s.engines, s.nodes.type_idx[j]
    first, growth, i = e.first_s[j], e.growth_s[j], done
    while i < k:
        at = _bin_of(s, first + growth * i)
        last = k
        if growth > 0.0 and at < len(s.itl_edge_s):
            edge = s.itl_edge_s[at]
            last = min(k, max(i + 1, int(min((edge - first) / growth, 1e15))))
            while last > i + 1 and first + growth * (last - 1) >= edge:
                last -= 1
            while last < k and first + growth * last < edge:
                last += 1
        s.itl_count[g, at] += (last - i) * e.decoding[j]
        i = last


@helper
def _settle(s: State, j: int, k: int) -> None:
    """Count the iterations of the present run up to the k-th as done."""
    e = s.engines
    more = k - e.done[j]
    if more > 0 and e.decoding[j] > 0:
        _count_distances(s, j, e.done[j], k)
    e.done[j] = k
    e.iteration[j] += more
    e.context[j] += more * e.decoding[j]
    e.used[j] += more * e.decoding[j]
    e.peak[j] = max(e.peak[j], e.used[j])
    s.counts.iterations[0] += more


@helper
def _next_end(s: State, j: int, now_s: float) -> int:
    """The first iteration of the present run whose end is still to come, in the order of events.

    An end at this very time is still to come if the present event is the end of an earlier node's iteration.
    """
    e = s.engines
    is_later = kind_of(s.counts.now_key[0]) == STEP and serial_of(s.counts.now_key[0]) < j
    first, growth, gone_s = e.first_s[j], e.growth_s[j], max(0.0, now_s - e.begun_s[j])
    if growth > 0.0:
        half = first - 0.5 * growth
        k = int((-half + np.sqrt(half * half + 2.0 * growth * gone_s)) / growth)
    else:
        k = int(gone_s / first)
    k = max(k, e.done[j] + 1)
    while k > e.done[j] + 1:
        before_s = _end_s(s, j, k - 1)
        if not (before_s > now_s or (is_later and before_s == now_s)):
            break
        k -= 1
    while _end_s(s, j, k) < now_s or (_end_s(s, j, k) == now_s and not is_later):
        k += 1
    return k


@helper
def _schedule(s: State, j: int, k: int) -> None:
    """The present run is next looked at when its k-th iteration ends."""
    e = s.engines
    e.planned[j] = k
    e.version[j] += 1
    push_event(s, _end_s(s, j, k), STEP, j, e.version[j])


@helper
def _cut(s: State, j: int, now_s: float) -> int:
    """Look at the present run again when the iteration under way ends; returns its number in the run."""
    k = _next_end(s, j, now_s)
    if k < s.engines.planned[j]:
        _schedule(s, j, k)
    return int(s.engines.planned[j])


@helper
def look(s: State, plan: Plan, j: int, now_s: float) -> None:
    """The queue of engine j, or what may run there, has changed: an idle one begins, another may be cut."""
    e, g = s.engines, s.nodes.type_idx[j]
    if s.nodes.up[j] == 0 or s.hidden.down[j] > 0:
        return
    if e.phase[j] == IDLE:
        begin_iteration(s, plan, j, now_s)
        return
    if e.phase[j] != DECODING or e.planned[j] - e.done[j] <= 1:
        return
    r = first_of(s, j)
    is_full = s.nodes.running[j] >= s.engine_types.batch_max[g]
    if r < 0 or is_full or e.decoding[j] >= s.engine_types.token_budget[g]:
        return
    k = _next_end(s, j, now_s)
    grown = e.decoding[j] * (k - e.done[j] + 1)
    if k < e.planned[j] and _fits(s, r, j, grown):
        _schedule(s, j, k)


@helper
def _fits(s: State, r: int, j: int, grown: int) -> bool:
    """Whether row r may join, once the batch has grown by so many tokens."""
    kind = s.engine_types[s.nodes.type_idx[j]]
    kept = kind.kv_kept if s.nodes.running[j] > 0 else 0
    if s.engines.used[j] + grown + added_tokens(s, r, j) + kept > kind.kv_tokens:
        return False
    adapter = s.work.adapter_idx[r]
    is_one_more = adapter >= 0 and s.items[j].in_use[adapter] == 0
    return not (is_one_more and kind.adapters_max > 0 and s.engines.adapters[j] >= kind.adapters_max)


@helper
def leave(s: State, r: int, j: int, now_s: float) -> None:
    """Running row r is cancelled: its place is free after the iteration under way."""
    e, rows = s.engines, s.sequences
    if rows.place[r] < e.decoding[j]:
        ends_at = e.iteration[j] + 1
        if e.phase[j] == DECODING:
            ends_at = e.iteration[j] + _cut(s, j, now_s) - e.done[j]
        rows.ends_at[r] = min(float(ends_at), rows.ends_at[r])
        move_up(s, j, rows.place[r])
    rows.left[r] = 0  # a row whose prompt is read leaves when its iteration ends


@helper
def slow_down(s: State, j: int, now_s: float) -> None:
    """The speed of engine j has changed."""
    if s.engines.phase[j] == DECODING:
        _cut(s, j, now_s)
    s.engines.is_changed[j] = 1


@helper
def pause_engine(s: State, j: int, now_s: float) -> None:
    """Node j fails and keeps its rows: the iteration under way is lost."""
    e = s.engines
    settle(s, j, now_s)
    if e.phase[j] == DECODING:
        e.phase[j] = PAUSED_DECODING
    elif e.phase[j] == MIXED:
        e.phase[j] = PAUSED_MIXED
    account_busy(s, j, now_s)
    e.version[j] += 1


@helper
def resume_engine(s: State, plan: Plan, j: int, now_s: float) -> None:
    """Node j is repaired: its rows load their models again, and the lost iteration begins anew."""
    e, ready_s = s.engines, reload_models(s, plan, j, now_s)
    if e.phase[j] == PAUSED_MIXED:
        e.phase[j], e.begun_s[j], e.done[j] = MIXED, ready_s, 0
        _schedule(s, j, 1)
    elif s.nodes.running[j] > 0:
        e.phase[j], e.begun_s[j], e.done[j] = DECODING, ready_s, 0
        _set_seconds(s, j)
        _schedule(s, j, 1)
    else:
        e.phase[j] = IDLE
        begin_iteration(s, plan, j, now_s)


@helper
def clear_engine(s: State, j: int, now_s: float) -> None:
    """Node j, whose rows were taken out, has failed: what it computed is lost."""
    e = s.engines
    if e.phase[j] != IDLE:
        account_busy(s, j, now_s)
    e.phase[j] = IDLE
    e.used[j] = e.context[j] = e.adapters[j] = 0
    e.planned[j] = e.done[j] = 0
    e.version[j] += 1
    forget_blocks(s, j)


@helper
def settle(s: State, j: int, now_s: float) -> None:
    """Count the iterations of engine j that are over."""
    if s.engines.phase[j] == DECODING:
        _settle(s, j, _next_end(s, j, now_s) - 1)


@helper
def take_out(s: State, r: int, j: int, now_s: float) -> None:
    """Take running row r out of the batch of failed engine j."""
    let_go(s, r, j, _held(s, r, j))
    if s.sequences.place[r] < s.engines.decoding[j]:
        drop_decoding(s, j, s.sequences.place[r])
    else:
        drop_prefilling(s, j, s.sequences.place[r])


@helper
def _held(s: State, r: int, j: int) -> int:
    """KV tokens that row r holds: its prompt, and one for each iteration since it was read."""
    have = s.sequences.prompt[r] + 1
    if s.sequences.place[r] < s.engines.decoding[j]:
        have += s.engines.iteration[j] - s.sequences.since[r]
    return int(have)


@helper
def end_iteration(s: State, j: int, now_s: float) -> None:
    """The planned iteration of engine j ends: prompts that are read decode from now on."""
    e, rows = s.engines, s.sequences
    _settle(s, j, e.planned[j])
    if e.phase[j] != MIXED:
        return
    many, first, unread = e.prefilling[j], e.decoding[j], -1
    e.prefilling[j] = 0
    for q in range(many):
        r = row_at(s, j, first + q)
        if rows.read[r] < rows.prompt[r] and rows.left[r] > 0:
            unread = r
            continue
        if rows.left[r] > 0 and rows.first_token_s[r] != rows.first_token_s[r]:
            rows.first_token_s[r] = now_s
        rows.since[r] = e.iteration[j]
        rows.ends_at[r] = e.iteration[j] + max(0, rows.left[r] - 1)
        e.context[j] += rows.prompt[r] + 1
        add_decoding(s, j, r)
    if unread >= 0:
        put(s, j, e.decoding[j], unread)
        e.prefilling[j] = 1


@helper
def next_ended(s: State, j: int) -> int:
    """Take a row whose last token is made out of the batch; -1 = none."""
    e = s.engines
    if e.decoding[j] == 0:
        return -1
    r = row_at(s, j, 0)
    if s.sequences.ends_at[r] > e.iteration[j]:
        return -1
    have = _held(s, r, j)
    e.context[j] -= have
    let_go(s, r, j, have)
    drop_decoding(s, j, 0)
    e.is_changed[j] = 1
    return r


@helper
def _victim(s: State, j: int) -> int:
    """The row that is preempted next: admitted last; where priorities count, the least urgent, then last."""
    by_priority = s.engine_types.by_priority[s.nodes.type_idx[j]] == 1
    v = row_at(s, j, 0)
    for i in range(1, s.nodes.running[j]):
        r = row_at(s, j, i)
        if by_priority and s.work.priority[r] != s.work.priority[v]:
            if s.work.priority[r] < s.work.priority[v]:
                v = r
        elif by_priority and s.work.arrival_s[r] != s.work.arrival_s[v]:
            if s.work.arrival_s[r] > s.work.arrival_s[v]:
                v = r
        elif s.sequences.joined[r] > s.sequences.joined[v]:
            v = r
    return v


@helper
def _preempt(s: State, j: int, now_s: float) -> None:
    """A running row waits again. It will compute all that it had once more."""
    e, rows = s.engines, s.sequences
    r = _victim(s, j)
    have = _held(s, r, j)
    let_go(s, r, j, have)
    if rows.place[r] < e.decoding[j]:
        e.context[j] -= have
        rows.left[r] = int(rows.ends_at[r]) - e.iteration[j]
        rows.prompt[r] = have
        drop_decoding(s, j, rows.place[r])
    else:
        drop_prefilling(s, j, rows.place[r])
        e.waiting[j] -= rows.prompt[r] - rows.read[r]
    e.waiting[j] += rows.prompt[r]
    rows.read[r] = 0
    rows.preempted[r] += 1
    s.counts.preemptions[0] += 1
    leave_batch(s, r, j, now_s)
    s.requests.status[r] = _QUEUED
    enqueue(s, j, r)


@helper
def _join(s: State, r: int, j: int, ready_s: float, now_s: float) -> None:
    """Row r, first in the queue, joins the batch; what of its prompt is in the memory is not read."""
    e, rows = s.engines, s.sequences
    enter_batch(s, r, j)
    cached = cached_tokens(s, r, j)
    if len(s.pools) > 0:
        s.counts.prompt_tokens[0] += rows.prompt[r]
        s.counts.cached_tokens[0] += cached
    cached = max(cached, min(s.truth.given_tokens[r], rows.prompt[r] - 1))
    hold(s, r, j)
    e.peak[j] = max(e.peak[j], e.used[j])
    if rows.preempted[r] == 0:
        s.requests.start_s[r] = now_s
        s.requests.service_start_s[r] = max(now_s, ready_s)
    s.requests.status[r] = _RUNNING
    s.requests.slot[r] = -1
    rows.joined_s[r], rows.read[r], rows.joined[r] = now_s, cached, e.admitted[j]
    e.admitted[j] += 1
    e.waiting[j] -= cached
    put(s, j, e.decoding[j] + e.prefilling[j], r)
    e.prefilling[j] += 1
    s.nodes.running[j] += 1


@helper(inline=True)
def step_s(s: State, j: int) -> float:
    """Seconds of an iteration of the decoding rows alone, at their present context."""
    e, g, n = s.engines, s.nodes.type_idx[j], s.engines.decoding[j]
    fixed_s = s.dense_s[g, n] + s.sequence_s[g, n] + s.attention_s[g, n]
    return float((fixed_s + s.context_s[g, n] * e.context[j]) / s.hidden.speed[j])


@helper
def _set_seconds(s: State, j: int) -> None:
    """Seconds of the first iteration of the present batch without prompts, and their growth."""
    e, g, n = s.engines, s.nodes.type_idx[j], s.engines.decoding[j]
    e.first_s[j] = step_s(s, j)
    e.growth_s[j] = s.context_s[g, n] * n / s.hidden.speed[j]
    e.is_changed[j] = 0


@helper
def begin_iteration(s: State, plan: Plan, j: int, now_s: float) -> bool:
    """Schedule the next iteration of engine j, or let it idle. Returns whether its batch has changed."""
    e, rows, kind = s.engines, s.sequences, s.engine_types[s.nodes.type_idx[j]]
    is_changed, has_preempted = e.is_changed[j] == 1, False
    while s.nodes.running[j] > 1 and e.used[j] + e.decoding[j] > kind.kv_tokens:
        _preempt(s, j, now_s)
        has_preempted = is_changed = True
    budget = kind.token_budget - e.decoding[j]
    prompt_tokens, pairs, begin_s = 0, 0.0, now_s
    if e.prefilling[j] > 0 and budget > 0:
        r = row_at(s, j, e.decoding[j])
        z = min(budget, rows.prompt[r] - rows.read[r])
        pairs += z * (rows.read[r] + 0.5 * z)
        prompt_tokens += z
        rows.read[r] += z
    may_join = s.nodes.up[j] == 1 and not has_preempted
    while may_join and prompt_tokens < budget and s.nodes.running[j] < kind.batch_max:
        r = first_of(s, j)
        if r < 0 or not _fits(s, r, j, e.decoding[j]):
            break
        if s.config.use_from_outside[0] == 0 and not fits_beside(s, r, j):
            break
        ready_s = acquire(s, plan, r, j, now_s)
        if ready_s < 0.0:
            break
        begin_s = max(begin_s, ready_s)
        _join(s, r, j, ready_s, now_s)
        z = min(budget - prompt_tokens, rows.prompt[r] - rows.read[r])
        pairs += z * (rows.read[r] + 0.5 * z)
        prompt_tokens += z
        rows.read[r] += z
        is_changed = True
    e.waiting[j] -= prompt_tokens
    n = e.decoding[j]
    if e.phase[j] != IDLE and (prompt_tokens > 0 or n == 0 or is_changed or e.phase[j] != DECODING):
        account_busy(s, j, now_s)
    if prompt_tokens > 0:
        g = s.nodes.type_idx[j]
        seconds = (
            s.dense_s[g, n + prompt_tokens]
            + s.sequence_s[g, n + e.prefilling[j]]
            + kind.mixed_s
            + kind.mixed_row_s * n
            + kind.mixed_context_s * e.context[j]
            + kind.mixed_token_s * prompt_tokens
            + kind.pair_s * pairs
        )
        e.phase[j], e.begun_s[j], e.done[j] = MIXED, now_s, 0
        e.first_s[j], e.growth_s[j], e.is_changed[j] = begin_s - now_s + seconds / s.hidden.speed[j], 0.0, 0
        _schedule(s, j, 1)
        return True
    if n == 0:
        e.phase[j] = IDLE
        return is_changed
    if is_changed or e.phase[j] != DECODING:
        e.phase[j], e.begun_s[j], e.done[j] = DECODING, now_s, 0
        _set_seconds(s, j)
    k = 1
    if s.config.fast_forward[0] == 1 and not has_preempted:  # else rows that it kept out are looked at again
        k = int(rows.ends_at[row_at(s, j, 0)]) - e.iteration[j]
        k = max(1, min(k, (kind.kv_tokens - e.used[j]) // n))
    _schedule(s, j, e.done[j] + k)
    return is_changed
