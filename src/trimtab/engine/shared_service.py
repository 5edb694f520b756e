"""Nodes that serve all their requests at once, each slower the more there are: processor sharing.

Every request has had `served_s` of service since the node last idled, less what it had when it came. It ends
when that covers its own. So a change of the batch moves one time, that of the first end: with n requests
service passes at 1 / slowdown[n] a second. L. Kleinrock, "Time-shared systems: a theoretical treatment",
Journal of the ACM 14(2), 1967; with slowdown[n] = max(1, n / c) it is processor sharing among c servers.

Where seconds were measured by number and size, the sizes slow each other differently. Then what is left of
each row is kept in seconds among the present number, and scaled when that number changes: O(batch) a change.
Models that load meanwhile count as service.
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
    move_up,
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
    g = s.nodes.type_idx[j]
    if s.engine_types.sizes[g] > 0:
        return float(s.hidden.speed[j])
    return float(s.hidden.speed[j] / s.slowdown[g, s.engines.decoding[j]])


@helper
def _among_s(s: State, g: int, n: int, size: float) -> float:
    """Seconds of a request of this size among n in all on type g, measured; held beyond the ends of sizes."""
    low, high, first = 0, s.engine_types.sizes[g] - 1, n * s.size_at.shape[1]
    if size <= s.size_at[g, low]:
        return float(s.measured_s[g, first])
    if size >= s.size_at[g, high]:
        return float(s.measured_s[g, first + high])
    while high - low > 1:
        middle = (low + high) >> 1
        if s.size_at[g, middle] <= size:
            low = middle
        else:
            high = middle
    frac = (size - s.size_at[g, low]) / (s.size_at[g, high] - s.size_at[g, low])
    low_s, high_s = s.measured_s[g, first + low], s.measured_s[g, first + high]
    return float(low_s + frac * (high_s - low_s))


@helper
def _rescale(s: State, j: int, before: int, n: int) -> None:
    """The rows of node j are among n now, no longer `before`: what is left of each takes other seconds."""
    g, served_s, rows = s.nodes.type_idx[j], s.engines.served_s[j], s.sequences
    if s.engine_types.sizes[g] == 0:
        return
    for i in range(s.engines.decoding[j]):
        r = row_at(s, j, i)
        size = s.truth.units[r]
        grown = _among_s(s, g, n, size) / _among_s(s, g, before, size)
        rows.ends_at[r] = served_s + (rows.ends_at[r] - served_s) * grown
        move_up(s, j, i)


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
        if s.engine_types.sizes[g] > 0:
            n = s.engines.decoding[j]
            _rescale(s, j, n, n + 1)
            left_s = _among_s(s, g, n + 1, s.truth.units[r]) * s.truth.factor[r]
        else:
            left_s = service_s(s, r, j)
            if has_prefixes(s):
                use_prefix(s, r, j)
        s.requests.left_s[r] = left_s
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
    _drop(s, r, j)
    return r


@helper
def _drop(s: State, r: int, j: int) -> None:
    """Row r leaves the batch: the others are one fewer."""
    drop_decoding(s, j, s.sequences.place[r])
    n = s.engines.decoding[j]
    _rescale(s, j, n + 1, n)


@helper
def take_out_shared(s: State, r: int, j: int, now_s: float) -> None:
    """Take running row r out of the batch: it is cancelled or lost."""
    if s.hidden.down[j] == 0:
        bring_up_to_date(s, j, now_s)
    _drop(s, r, j)
    schedule_end(s, j)


@helper
def resume_shared(s: State, plan: Plan, j: int, now_s: float) -> None:
    """Node j is repaired: its rows load their models again and go on."""
    s.engines.begun_s[j] = reload_models(s, plan, j, now_s)
    schedule_end(s, j)
