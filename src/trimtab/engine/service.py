"""How nodes serve otherwise than one request a slot: one kernel for what the loop asks of any engine.

The loop calls it through its address, so that it is compiled only for runs that have engines, and the loop is
not compiled anew when an engine changes.
"""

from __future__ import annotations

import functools
from typing import Any

from numba import types
from numba.extending import overload

from trimtab.compiled.function_pointer import FunctionPointerType, function_at
from trimtab.compiled.kernel import helper, interpreted, kernel
from trimtab.domain.engines import SHARED, SLOTS
from trimtab.domain.view import Plan
from trimtab.engine.batching import (
    begin_iteration,
    clear_engine,
    end_iteration,
    leave,
    look,
    next_ended,
    pause_engine,
    resume_engine,
    settle,
    slow_down,
    step_s,
    take_out,
)
from trimtab.engine.bound_state import PLAN, STATE
from trimtab.engine.engine_batch import last_of, leave_batch
from trimtab.engine.queues import enqueue
from trimtab.engine.shared_service import (
    admit_shared,
    bring_up_to_date,
    next_ended_shared,
    resume_shared,
    schedule_end,
    take_out_shared,
)
from trimtab.engine.state import State
from trimtab.engine.telemetry import note_change

# What the loop asks of an engine.
ENTER, LOOK, END, NEXT_ENDED, BEGIN, LEAVE, SETTLE, SLOW, LAST, TAKE_OUT, CLEAR, PAUSE, RESUME = range(13)


@helper(inline=True)
def is_engine(s: State, j: int) -> bool:
    """Whether node j serves otherwise than one request a slot."""
    return bool(s.config.engines[0] == 1 and s.hidden.service[j] != SLOTS)


@helper(inline=True)
def fits_engine(s: State, r: int, j: int) -> bool:
    """Whether all tokens of row r fit the KV memory of engine j, and its size those that were measured."""
    g = s.nodes.type_idx[j]
    kind = s.engine_types[g]
    if kind.sizes > 0 and s.truth.units[r] > s.size_at[g, kind.sizes - 1]:
        return False
    tokens = s.work.input_tokens[r] + s.truth.output_tokens[r]
    return bool(kind.kv_tokens == 0 or tokens <= kind.kv_tokens)


@helper
def note_sent(s: State, r: int, j: int) -> None:
    """Row r was sent to engine j: it begins anew."""
    rows = s.sequences
    rows.first_token_s[r] = float("nan")
    rows.prompt[r], rows.left[r] = max(1, s.work.input_tokens[r]), max(1, s.truth.output_tokens[r])
    rows.read[r] = rows.preempted[r] = rows.blocks[r] = 0
    rows.place[r] = -1
    s.engines.waiting[j] += rows.prompt[r]


@helper
def note_withdrawn(s: State, r: int, j: int) -> None:
    """Row r has left engine j, or will when the iteration under way ends."""
    s.engines.waiting[j] -= max(0, s.sequences.prompt[r] - s.sequences.read[r])


@helper
def show_engine(s: State, j: int, now_s: float) -> None:
    """Write what policies see of engine j."""
    nodes, e, seen, g = s.nodes, s.engines, s.engine_load, s.nodes.type_idx[j]
    nodes.backlog_s[j] = nodes.outstanding_s[j]
    nodes.anchor_s[j] = now_s
    most = s.engine_types.batch_max[g]
    served = min(nodes.in_flight[j] + 1, most)
    beyond = (nodes.in_flight[j] + 1) / served
    seen.load_factor[j] = s.slowdown[g, served] * beyond / s.hidden.speed[j]
    seen.decoding[j] = e.decoding[j]
    seen.batch_max[j] = most
    if s.hidden.service[j] != SHARED:
        n = e.decoding[j]
        seen.step_s[j] = step_s(s, j)
        seen.kv_tokens[j] = s.engine_types.kv_tokens[g]
        seen.kv_used[j] = e.used[j]
        seen.waiting_tokens[j] = max(0, e.waiting[j])
        seen.kv_per_s[j] = n / e.first_s[j] if n > 0 and e.first_s[j] > 0.0 else 0.0
    note_change(s, j)


@helper
def _serve_shared(s: State, plan: Plan, what: int, r: int, j: int, now_s: float) -> int:
    """As `serve`, of a shared node."""
    if what in (ENTER, LOOK, BEGIN):
        if what == ENTER:
            enqueue(s, j, r)
        if s.hidden.down[j] == 0:
            admit_shared(s, plan, j, now_s)
        return 1
    if what in (END, SETTLE, CLEAR, PAUSE):
        bring_up_to_date(s, j, now_s)
        if what != SETTLE:
            s.engines.version[j] += 1
    elif what == SLOW:
        schedule_end(s, j)
    elif what == NEXT_ENDED:
        r = next_ended_shared(s, j, now_s)
        if r >= 0:
            leave_batch(s, r, j, now_s)
        return r
    elif what in (LEAVE, TAKE_OUT):
        take_out_shared(s, r, j, now_s)
        leave_batch(s, r, j, now_s)
    elif what == LAST:
        return last_of(s, j)
    elif what == RESUME:
        resume_shared(s, plan, j, now_s)
    return 0


@helper
def _serve_model(s: State, plan: Plan, what: int, r: int, j: int, now_s: float) -> int:
    """As `serve`, of a language model's engine."""
    if what == END:
        end_iteration(s, j, now_s)
        return 0
    if what == NEXT_ENDED:
        r = next_ended(s, j)
        if r >= 0:
            leave_batch(s, r, j, now_s)
        return r
    if what == BEGIN:
        return int(begin_iteration(s, plan, j, now_s))
    if what in (ENTER, LOOK):
        if what == ENTER:
            enqueue(s, j, r)
        look(s, plan, j, now_s)
    elif what == LEAVE:
        leave(s, r, j, now_s)
    elif what == SETTLE:
        settle(s, j, now_s)
    elif what == SLOW:
        slow_down(s, j, now_s)
    elif what == LAST:
        return last_of(s, j)
    elif what == TAKE_OUT:
        take_out(s, r, j, now_s)
        leave_batch(s, r, j, now_s)
    elif what == CLEAR:
        clear_engine(s, j, now_s)
    elif what == PAUSE:
        pause_engine(s, j, now_s)
    elif what == RESUME:
        resume_engine(s, plan, j, now_s)
    return 0


@kernel
def serve(s: State, plan: Plan, what: int, r: int, j: int, now_s: float) -> int:
    """Do what the loop asks of engine j.

    ENTER: row r, whose key is set, waits there. LOOK: its queue, or what may run, has changed. END: what was
    scheduled is over; then NEXT_ENDED: take out a row that has ended, -1 = none, and BEGIN: go on; whether
    its batch has changed. LEAVE: row r is cancelled. SETTLE: count what is over, before SLOW (a new speed) or
    a failure: LAST (a row of the batch, -1 = none) and TAKE_OUT (row r), then CLEAR; or PAUSE, then RESUME.
    """
    if s.hidden.service[j] == SHARED:
        return _serve_shared(s, plan, what, r, j, now_s)
    return _serve_model(s, plan, what, r, j, now_s)


SERVE = types.int64(STATE, PLAN, types.int64, types.int64, types.int64, types.float64)
_serve_at = function_at(FunctionPointerType(SERVE))


@functools.cache
def _interpreted_serve() -> Any:
    return interpreted(serve)


def settle_engines(s: State, now_s: float) -> None:
    """Count all iterations that are over, for counters that a host reads. `s` is an interpreted state."""
    for j in range(len(s.engines)):
        if s.hidden.service[j] != SLOTS:
            _interpreted_serve()(s, None, SETTLE, -1, j, now_s)


def ask(s: State, plan: Plan, what: int, r: int, j: int, now_s: float) -> int:
    """Call `serve`: interpreted as it is, compiled through its address."""
    return int(_interpreted_serve()(s, plan, what, r, j, now_s))


@overload(ask)
def _ask_compiled(s: Any, plan: Any, what: Any, r: Any, j: Any, now_s: Any) -> Any:
    def call(s: Any, plan: Any, what: Any, r: Any, j: Any, now_s: Any) -> Any:
        return _serve_at(s.config.serve_c[0], s.config.serve_jit[0])(s, plan, what, r, j, now_s)

    return call
