"""The dispatchers' view of the nodes: the nodes themselves, or periodic reports.

With a telemetry period τ and delay δ all nodes are sampled at kτ, and the sample is visible at kτ + δ.
Between reports a dispatcher corrects its view by its own requests:
seen = last report + own now − own when that report was sampled.
"""

from __future__ import annotations

from typing import Any

from trimtab.compiled.kernel import helper
from trimtab.domain.engines import SLOTS
from trimtab.engine.draws import stream, uniform
from trimtab.engine.events import TELEMETRY, push_event
from trimtab.engine.state import State

_SAMPLE, _SHOW = 0, 1
_STREAM = 1 << 41  # errors of reports draw from serials that no request has


@helper(inline=True)
def dispatcher_of(s: State, r: int) -> int:
    """The dispatcher that decides about request r. With one dispatcher it avoids the division."""
    many = s.config.dispatchers[0]
    if many == 1:
        return 0
    is_stage = s.config.runs[0] == 1 and s.stages.run[r] >= 0
    return (s.stages.run[r] if is_stage else r) % many


@helper(inline=True)
def is_stale(s: State) -> bool:
    """Whether views are reports instead of the nodes themselves."""
    return s.config.telemetry_period_s[0] > 0.0


@helper(inline=True)
def _log_change(s: State, d: int, j: int) -> None:
    if s.is_changed[d, j] == 0:
        s.is_changed[d, j] = 1
        s.changed[d][s.contexts.n_changed[d]] = j
        s.contexts.n_changed[d] += 1


@helper(inline=True)
def clear_changes(s: State, d: int) -> None:
    """Empty the change log of dispatcher d, which has read it."""
    for i in range(s.contexts.n_changed[d]):
        s.is_changed[d, s.changed[d][i]] = 0
    s.contexts.n_changed[d] = 0


@helper
def _refresh_seen(s: State, d: int, j: int) -> None:
    seen, own = s.seen[d], s.own[d]
    report = s.reports[s.report_of[0]]
    own_at = s.own_at[s.report_of[0] * s.config.views[0] + d]
    mine = own.in_flight[j] - own_at.in_flight[j]
    mine_s = own.outstanding_s[j] - own_at.outstanding_s[j]
    seen.in_flight[j] = max(0, report.in_flight[j] + mine)
    seen.outstanding_s[j] = max(0.0, report.outstanding_s[j] + mine_s)
    seen.backlog_s[j] = max(0.0, report.backlog_s[j] + mine_s)
    seen.anchor_s[j] = report.anchor_s[j]
    seen.running[j] = report.running[j]
    seen.room[j] = report.room[j] - mine
    seen.up[j] = report.up[j]
    if s.config.engines[0] == 1:
        _correct_engine_load(s, d, j, mine, own.tokens[j] - own_at.tokens[j])


@helper(inline=True)
def has_free_slot(s: State, j: int) -> bool:
    """Whether node j is up and has a slot that no request was sent to."""
    return bool(s.nodes.in_flight[j] < s.nodes.slots[j] and s.nodes.up[j] == 1)


@helper(inline=True)
def note_change(s: State, j: int) -> None:
    """Log a change of node j for every dispatcher, if views are fresh."""
    if has_free_slot(s, j):
        s.counts.left_node[0] = j
        s.counts.no_slot_free[0] = 0
    if not is_stale(s):
        for d in range(s.config.dispatchers[0] + s.config.shadows[0]):
            _log_change(s, d, j)


@helper
def note_all_changed(s: State) -> None:
    """Log every node as changed for all dispatchers: a new policy has seen no node yet."""
    for d in range(s.config.dispatchers[0] + s.config.shadows[0]):
        for j in range(len(s.nodes.up)):
            _log_change(s, d, j)


@helper(inline=True)
def note_own(s: State, r: int, j: int, requests: int, estimate_s: float) -> None:
    """Record that the dispatcher of row r sent it to node j, or (negative) that it left the node."""
    if is_stale(s):
        d = dispatcher_of(s, r)
        own = s.own[d]
        own.in_flight[j] += requests
        own.outstanding_s[j] += estimate_s
        own.tokens[j] += requests * s.work.input_tokens[r]
        if own.in_flight[j] == 0:
            own.outstanding_s[j] = 0.0
        _refresh_seen(s, d, j)
        _log_change(s, d, j)


@helper
def _sample(s: State, k: int) -> None:
    kept, views = len(s.reports), s.config.views[0]
    slot = k % kept
    s.report_s[slot] = s.counts.now_s[0]
    report, nodes, n_items = s.reports[slot], s.nodes, len(s.item_gib)
    for j in range(len(nodes.up)):
        report.in_flight[j] = nodes.in_flight[j]
        report.outstanding_s[j] = nodes.outstanding_s[j]
        report.backlog_s[j] = nodes.backlog_s[j]
        report.anchor_s[j] = nodes.anchor_s[j]
        report.running[j] = nodes.running[j]
        report.room[j] = nodes.room[j]
        report.up[j] = nodes.up[j]
        for m in range(n_items):
            s.report_resident[slot, j * n_items + m] = s.resident[j, m]
    _sample_tables(s, slot, k)
    for d in range(views):
        own, own_at = s.own[d], s.own_at[slot * views + d]
        for j in range(len(nodes.up)):
            own_at.in_flight[j] = own.in_flight[j]
            own_at.outstanding_s[j] = own.outstanding_s[j]
            own_at.tokens[j] = own.tokens[j]


@helper
def _copy_engine_load(source: Any, target: Any, j: int) -> None:
    target.load_factor[j] = source.load_factor[j]
    target.step_s[j] = source.step_s[j]
    target.row_s[j] = source.row_s[j]
    target.kv_used[j] = source.kv_used[j]
    target.kv_per_s[j] = source.kv_per_s[j]
    target.kv_tokens[j] = source.kv_tokens[j]
    target.waiting_tokens[j] = source.waiting_tokens[j]
    target.decoding[j] = source.decoding[j]
    target.batch_max[j] = source.batch_max[j]


@helper
def _correct_engine_load(s: State, d: int, j: int, mine: int, tokens: float) -> None:
    """The reported load of engine j with what dispatcher d has sent since: its prompts are not read yet."""
    report, seen = s.report_engine_load[s.report_of[0]], s.seen_engine_load[d]
    _copy_engine_load(report, seen, j)
    seen.waiting_tokens[j] = report.waiting_tokens[j] + max(0.0, tokens)
    if s.hidden.service[j] != SLOTS:
        g, most = s.nodes.type_idx[j], s.engine_types.batch_max[s.nodes.type_idx[j]]
        then = s.reports[s.report_of[0]].in_flight[j] + 1
        now = max(1, then + mine)
        grown = s.slowdown[g, min(now, most)] * now / min(now, most)
        seen.load_factor[j] = (
            report.load_factor[j] * grown * min(then, most) / (s.slowdown[g, min(then, most)] * then)
        )


@helper
def _sample_tables(s: State, slot: int, sample: int) -> None:
    many = s.used.shape[1]
    for j in range(len(s.nodes.up)):
        for k in range(many):
            s.report_used[slot, j * many + k] = s.used[j, k]
    if len(s.report_noise_frac) > 0:
        _add_noise(s, slot, sample)
    for link in range(len(s.link_active)):
        s.report_link_active[slot, link] = s.link_active[link]
    if s.config.engines[0] == 1:
        for j in range(len(s.nodes.up)):
            _copy_engine_load(s.engine_load, s.report_engine_load[slot], j)


@helper
def _add_noise(s: State, slot: int, sample: int) -> None:
    """Multiply each reported use by a factor, uniform between 1 − noise and 1 + noise."""
    many = s.used.shape[1]
    for j in range(len(s.nodes.up)):
        state = stream(s.config.seed[0], _STREAM + sample, j)
        for k in range(many):
            error = s.report_noise_frac[k] * (2.0 * uniform(state, k) - 1.0)
            s.report_used[slot, j * many + k] *= 1.0 + error


@helper
def _show_tables(s: State, slot: int) -> None:
    many = s.used.shape[1]
    for j in range(len(s.nodes.up)):
        for k in range(many):
            s.seen_used[j, k] = s.report_used[slot, j * many + k]
        s.use_reported_s[j] = s.report_s[slot]
    for link in range(len(s.link_active)):
        s.seen_link_active[link] = s.report_link_active[slot, link]


@helper
def _show(s: State, k: int) -> None:
    slot, n_items = k % len(s.reports), len(s.item_gib)
    s.report_of[0] = slot
    for d in range(s.config.views[0]):
        s.contexts.reported_s[d] = s.report_s[slot]
        for j in range(len(s.nodes.up)):
            _refresh_seen(s, d, j)
            _log_change(s, d, j)
    for j in range(len(s.nodes.up)):
        for m in range(n_items):
            is_resident = s.report_resident[slot, j * n_items + m]
            s.seen_resident_changes[j] += s.seen_resident[j, m] ^ is_resident
            s.seen_resident[j, m] = is_resident
    _show_tables(s, slot)
    s.counts.shown[0] = k + 1
    s.counts.offers_due[0] = 1


@helper
def begin_telemetry(s: State) -> None:
    """Schedule the first sample. Dispatchers see empty nodes until it is visible."""
    if not is_stale(s):
        return
    last = len(s.reports) - 1
    _sample(s, last)
    s.report_of[0] = last
    for d in range(s.config.views[0]):
        s.contexts.reported_s[d] = s.report_s[last]
    push_event(s, 0.0, TELEMETRY, 0, _SAMPLE)


@helper
def show_present(s: State) -> None:
    """Show the present state of all nodes to all dispatchers at once. Sampling then restarts."""
    if is_stale(s):
        last = len(s.reports) - 1
        _sample(s, last)
        _show(s, last)
        s.counts.shown[0] = 0


@helper
def on_telemetry(s: State, k: int, phase: int) -> None:
    """Take sample k, or make it visible."""
    period_s, delay_s = s.config.telemetry_period_s[0], s.config.telemetry_delay_s[0]
    if phase == _SHOW:
        _show(s, k)
        return
    _sample(s, k)
    s.counts.sample[0] = k + 1
    push_event(s, (k + 1) * period_s, TELEMETRY, k + 1, _SAMPLE)
    if delay_s > 0.0:
        push_event(s, k * period_s + delay_s, TELEMETRY, k, _SHOW)
    else:
        _show(s, k)
