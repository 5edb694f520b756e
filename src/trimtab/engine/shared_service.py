"""Nodes that serve all their requests at once, each slower the more there are: processor sharing.

Every request has had `served_s` of service since the node last idled, less what it had when it came. It ends
when that covers its own. So a change of the batch moves one time, that of the first end: with n requests
service passes at 1 / slowdown[n] a second. L. Kleinrock, "Time-shared systems: a theoretical treatment",
Journal of the ACM 14(2), 1967; with slowdown[n] = max(1, n / c) it is processor sharing among c servers.
"""

from __future__ import annotations

from trimtab.compiled.kernel import helper
from trimtab.domain.requests import Status
from trimtab.domain.view import Plan
from trimtab.engine.engine_batch import (
    account_busy,
    add_decoding,
    drop_decoding,
    enter_batch,
    reload_models,
    row_at,
)
from trimtab.engine.events import STEP, push_event
from trimtab.engine.prefix_cache import has_prefixes, use_prefix
from trimtab.engine.queues import first_of
from trimtab.engine.residency import acquire
from trimtab.engine.resources import fits_beside
from trimtab.engine.slots import service_s
from trimtab.engine.state import State

_RUNNING = int(Status.RUNNING)


@helper(inline=True)
def _per_s(s: State, j: int) -> float:
    """Service that each request of node j gets in a second."""
    return float(s.hidden.speed[j] / s.slowdown[s.nodes.type_idx[j], s.engines.decoding[j]])


@helper
def bring_up_to_date(s: State, j: int, now_s: float) -> None:
    """Count the service since node j was last looked at."""
    e = s.engines
    if e.decoding[j] > 0:
        account_busy(s, j, now_s)
        e.served_s[j] += max(0.0, now_s - e.begun_s[j]) * _per_s(s, j)
    else:
        e.served_s[j] = 0.0
    e.begun_s[j] = max(e.begun_s[j], now_s)


@helper
def schedule_end(s: State, j: int) -> None:
    """Set the time of the first end."""
    e = s.engines
    e.version[j] += 1
    if e.decoding[j] > 0 and s.hidden.down[j] == 0:
        left_s = s.sequences.ends_at[row_at(s, j, 0)] - e.served_s[j]
        push_event(s, e.begun_s[j] + max(0.0, left_s) / _per_s(s, j), STEP, j, e.version[j])


@helper
def admit_shared(s: State, plan: Plan, j: int, now_s: float) -> None:
    """Start waiting requests while the batch has room, and set the time of the first end."""
    bring_up_to_date(s, j, now_s)
    rows, g = s.sequences, s.nodes.type_idx[j]
    while s.nodes.up[j] == 1 and s.nodes.running[j] < s.engine_types.batch_max[g]:
        r = first_of(s, j)
        if r < 0 or (s.config.use_from_outside[0] == 0 and not fits_beside(s, r, j)):
            break
        ready_s = acquire(s, plan, r, j, now_s)
        if ready_s < 0.0:
            break
        enter_batch(s, r, j)
        s.requests.start_s[r] = now_s
        s.requests.service_start_s[r] = ready_s
        s.requests.status[r] = _RUNNING
        s.requests.slot[r] = -1
        left_s = service_s(s, r, j)
        s.requests.left_s[r] = left_s
        if has_prefixes(s):
            use_prefix(s, r, j)
        rows.joined_s[r] = now_s
        rows.ends_at[r] = s.engines.served_s[j] + left_s + (ready_s - now_s) * s.hidden.speed[j]
        s.nodes.running[j] += 1
        add_decoding(s, j, r)
    schedule_end(s, j)


@helper
def next_ended_shared(s: State, j: int, now_s: float) -> int:
    """Take a row that is served out of the batch; -1 = none."""
    e = s.engines
    if e.decoding[j] == 0:
        return -1
    r = row_at(s, j, 0)
    left_s = s.sequences.ends_at[r] - e.served_s[j]
    if left_s > 0.0 and e.begun_s[j] + left_s / _per_s(s, j) > now_s:
        return -1
    e.served_s[j] = max(e.served_s[j], s.sequences.ends_at[r])
    drop_decoding(s, j, 0)
    return r


@helper
def take_out_shared(s: State, r: int, j: int, now_s: float) -> None:
    """Take running row r out of the batch: it is cancelled or lost."""
    if s.hidden.down[j] == 0:
        bring_up_to_date(s, j, now_s)
    drop_decoding(s, j, s.sequences.place[r])
    schedule_end(s, j)


@helper
def resume_shared(s: State, plan: Plan, j: int, now_s: float) -> None:
    """Node j is repaired: its rows load their models again and go on."""
    s.engines.begun_s[j] = reload_models(s, plan, j, now_s)
    schedule_end(s, j)
