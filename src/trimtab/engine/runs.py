"""Runs: requests whose stages are served one by one, and requests that are split into parts.

The row of a run is at no node. Its stages are rows of their own, which dispatchers and nodes treat like
requests. A stage is PENDING until its inputs are there. Then it is ready: it gets its time of arrival and a
decision. The run ends after its last stage, or at once when a stage fails that must not.

A request is split on arrival into at most `plan.split_max[class]` parts and at most `work.parts_max` (images,
tiles): a run of one stage, whose instances are the parts. A part takes its share of the units and pays the
fixed time of its class again. `join_s` follows the last part.

`counts.in_system` counts rows that are ready and not over. A run itself counts while it is joined, or after
it has failed.
"""

from __future__ import annotations

import numpy as np

from trimtab.compiled.kernel import helper
from trimtab.domain.chains import Flow, OnStageFailure
from trimtab.domain.requests import Status
from trimtab.domain.view import Plan
from trimtab.engine.draws import stream, uniform
from trimtab.engine.events import ARRIVAL, COMPLETION, LOSS, push_event
from trimtab.engine.layout import ABSENT, EMPTY, NO_OUTPUT, PART_SPEC, PRESENT, SKIPPED, part_frac
from trimtab.engine.slots import best_estimate_s
from trimtab.engine.stage_inputs import inputs_state, is_lost, set_origin
from trimtab.engine.stage_results import has_store, is_answered, keep_output
from trimtab.engine.state import State

STAGE_FAILED = 2  # version of a LOSS event: a stage of the run has failed
RECENT = 4096  # rows that became ready, kept for planners
_ERRORS = 1 << 41  # errors of stages draw from serials that no request has

_PENDING, _RUNNING, _RETRYING = int(Status.PENDING), int(Status.RUNNING), int(Status.RETRYING)
_FINISHED, _REJECTED, _LOST = int(Status.FINISHED), int(Status.REJECTED), int(Status.LOST)
_EACH, _FAIL, _DEFAULT = int(Flow.EACH), int(OnStageFailure.FAIL), int(OnStageFailure.DEFAULT)


@helper(inline=True)
def is_run(s: State, r: int) -> bool:
    """Whether row r is a run whose stages are served."""
    return s.config.runs[0] == 1 and s.stages.run[r] < 0 and s.runs.started[r] == 1


@helper(inline=True)
def is_stage(s: State, r: int) -> bool:
    """Whether row r is a stage of a run, or a part of a request."""
    return s.config.runs[0] == 1 and s.stages.run[r] >= 0


@helper(inline=True)
def note_ready(s: State, r: int) -> None:
    """Request r, which is no run, or stage r needs a decision now."""
    if s.config.runs[0] == 1:
        s.class_in_flight[s.work.class_idx[r]] += 1
        _remember(s, r)


@helper(inline=True)
def _remember(s: State, r: int) -> None:
    """Keep row r for planners: a request, even a split one, or a stage of a chain."""
    s.recent[s.counts.ready[0] % len(s.recent)] = r
    s.counts.ready[0] += 1


@helper
def show_job(s: State, r: int, d: int) -> None:
    """Tell dispatcher d how many instances the stage of row r has, or its request parts, and the first."""
    g = s.stages.group[r] if s.stages.run[r] >= 0 else -1
    s.contexts.job[d] = s.work.serial[s.groups.row[g]] if g >= 0 else 0
    s.contexts.tasks[d] = s.groups.count[g] if g >= 0 else 0
    show_run(s, r, d)


@helper
def show_run(s: State, r: int, d: int) -> None:
    """Tell dispatcher d what is known of the run of row r, and the size of the row's output."""
    run, counts = s.stages.run[r], s.counts
    over = counts.finished[0] + counts.rejected[0] + counts.cancelled[0] + counts.lost[0]
    s.contexts.n_runs[d] = counts.arrived[0] - over
    if run < 0:
        s.contexts.run_left_s[d] = s.contexts.run_path_s[d] = s.work.estimate_s[r]
        s.contexts.run_rest_s[d] = s.work.rank_s[r]
        s.contexts.output_gib[d] = 0.0
        return
    s.contexts.run_left_s[d] = max(0.0, s.runs.left_s[run])
    s.contexts.run_path_s[d] = s.runs.path_s[run]
    s.contexts.run_rest_s[d] = s.runs.rest_s[run]
    s.contexts.output_gib[d] = s.groups.output_gib[s.stages.group[r]]


@helper(inline=True)
def _estimate_s(s: State, r: int) -> float:
    """Estimated service of row r; 0 where it fits no node."""
    return s.work.estimate_s[r] if s.work.estimate_s[r] < np.inf else 0.0


@helper
def _count_in(s: State, g: int) -> None:
    """The instances of group g are known now: their estimates take the place of what was declared."""
    s.groups.known[g] = 1
    left_s = -s.groups.expected_s[g]
    for row in range(s.groups.row[g], s.groups.row[g] + s.groups.count[g]):
        left_s += _estimate_s(s, row)
    s.runs.left_s[s.stages.run[s.groups.row[g]]] += left_s


@helper(inline=True)
def note_over(s: State, r: int) -> None:
    """Row r, which was ready, is over."""
    if s.config.runs[0] == 1 and not is_run(s, r):
        s.class_in_flight[s.work.class_idx[r]] -= 1


@helper
def begin_run(s: State, plan: Plan, r: int, now_s: float) -> bool:
    """Begin the stages of request r, which has just arrived. False if it is served without stages."""
    if s.runs.n_groups[r] == 0:
        return False
    first = s.runs.group[r]
    if s.groups.spec[first] == PART_SPEC and not _split(s, plan, r, first):
        return False
    s.runs.started[r] = 1
    s.runs.left[r] = s.runs.n_groups[r]
    s.requests.status[r] = _RUNNING
    s.requests.slot[r] = -1
    s.counts.in_system[0] -= 1
    s.runs.left_s[r] = s.runs.path_s[r] = s.runs.rest_s[r] = 0.0
    for g in range(first, first + s.runs.n_groups[r]):
        s.groups.left[g], s.groups.known[g] = s.groups.count[g], 0
        s.runs.left_s[r] += s.groups.expected_s[g]
        _expect_inputs(s, r, g)
    for g in range(first, first + s.runs.n_groups[r]):
        spec = s.groups.spec[g]
        if s.stage_specs.input_first[spec] == s.stage_specs.input_end[spec]:
            for row in range(s.groups.row[g], s.groups.row[g] + s.groups.count[g]):
                s.runs.path_s[r] = max(s.runs.path_s[r], s.work.rank_s[row])
            _release(s, g, now_s)
    return True


@helper
def _expect_inputs(s: State, r: int, g: int) -> None:
    """Set the number of outputs that group g of run r waits for."""
    spec, each = s.groups.spec[g], 0
    s.groups.missing[g] = 0
    for e in range(s.stage_specs.input_first[spec], s.stage_specs.input_end[spec]):
        if s.input_edges.flow[e] == _EACH:
            each += 1
        else:
            s.groups.missing[g] += s.groups.count[s.runs.group[r] + s.input_edges.stage[e]]
    for row in range(s.groups.row[g], s.groups.row[g] + s.groups.count[g]):
        s.stages.missing[row] = each


@helper
def _split(s: State, plan: Plan, r: int, g: int) -> bool:
    """Split request r if the plan requires it. Group g has room for its parts."""
    c, most = s.work.class_idx[r], s.work.parts_max[r]
    count = min(plan.split_max[c], most) if c < len(plan.split_max) else 1
    if count < 2:
        return False
    _remember(s, r)
    s.groups.count[g] = count
    for i in range(count):
        _fill_in(s, s.groups.row[g] + i, r, part_frac(plan, c, most, count, i))
    return True


@helper
def _fill_in(s: State, part: int, r: int, share: float) -> None:
    work = s.work
    work.deadline_s[part], work.parts_max[part] = work.deadline_s[r], work.parts_max[r]
    work.units[part] = work.units[r] * share
    work.payload_gib[part] = work.payload_gib[r] * share
    work.tokens[part] = work.tokens[r] * share
    work.cost[part] = work.cost[r] * share
    s.truth.units[part] = s.truth.units[r] * share
    work.estimate_s[part] = best_estimate_s(s, part)


@helper
def _release(s: State, g: int, now_s: float) -> None:
    """The outputs that all instances of group g wait for are there."""
    for row in range(s.groups.row[g], s.groups.row[g] + s.groups.count[g]):
        if s.stages.missing[row] == 0 and s.requests.status[row] == _PENDING:
            _make_ready(s, row, now_s)


@helper
def _make_ready(s: State, row: int, now_s: float) -> None:
    """Row `row` gets a decision, in an event of its own at this time."""
    run, g = s.stages.run[row], s.stages.group[row]
    if s.groups.known[g] == 0:
        _count_in(s, g)
    s.work.arrival_s[row] = now_s
    s.work.run_arrival_s[row] = s.work.arrival_s[run]
    set_origin(s, row)
    s.runs.rest_s[run] = max(s.runs.rest_s[run], s.work.rank_s[row])
    s.requests.status[row] = _RETRYING
    s.counts.in_system[0] += 1
    s.class_in_flight[s.work.class_idx[row]] += 1
    if s.groups.spec[g] != PART_SPEC:
        _remember(s, row)
    push_event(s, now_s, ARRIVAL, row, s.requests.version[row])


@helper
def is_dispatched(s: State, r: int, now_s: float) -> bool:
    """Whether row r needs a decision. If not, it was skipped or answered, or waits again for a lost input."""
    if not is_stage(s, r):
        return True
    inputs = inputs_state(s, r)
    if s.stages.skipped[r] != 0 or inputs != PRESENT:
        is_absent = s.stages.skipped[r] == SKIPPED or inputs == ABSENT
        end_unserved(s, r, ABSENT if is_absent else EMPTY, now_s)
        return False
    if has_store(s) and s.requests.attempt[r] == 0 and is_answered(s, r):
        s.stages.answered[r] = 1
    if s.stages.answered[r] == 1:
        end_unserved(s, r, PRESENT, now_s)
        return False
    return s.counts.node_failures[0] == 0 or not _awaits_again(s, r)


@helper
def end_unserved(s: State, r: int, output: int, now_s: float) -> None:
    """Row r is over without a node: it is skipped, or its output is known."""
    s.requests.status[r] = _FINISHED
    s.requests.finish_s[r] = now_s
    s.counts.in_system[0] -= 1
    s.counts.idle_events[0] = 0
    note_over(s, r)
    stage_over(s, r, output, now_s)


@helper
def _awaits_again(s: State, r: int) -> bool:
    """Whether an input of row r was lost with its nodes. Its producer then runs again as a new attempt."""
    g, spec, lost = s.stages.group[r], s.groups.spec[s.stages.group[r]], False
    for e in range(s.stage_specs.input_first[spec], s.stage_specs.input_end[spec]):
        h = s.runs.group[s.stages.run[r]] + s.input_edges.stage[e]
        first, count = s.groups.row[h], s.groups.count[h]
        if s.input_edges.flow[e] == _EACH:
            first, count = first + r - s.groups.row[g], 1
        for p in range(first, first + count):
            if s.stages.output[p] == NO_OUTPUT:
                lost = True  # it already runs again
            elif is_lost(s, p):
                lost = True
                _run_again(s, p)
    if lost:
        s.requests.status[r] = _PENDING
        s.requests.version[r] += 1
        s.counts.in_system[0] -= 1
        note_over(s, r)
        if s.stages.missing[r] == 0 and s.groups.missing[g] == 0:
            raise ValueError("a lost input is not expected")
    return lost


@helper
def _run_again(s: State, p: int) -> None:
    """Finished row p is served again, because its output is lost. Its successors expect it again."""
    g, run = s.stages.group[p], s.stages.run[p]
    s.counts.recomputed_s[0] += s.requests.finish_s[p] - s.requests.service_start_s[p]
    s.stages.output[p] = NO_OUTPUT
    s.stages.copies[p] = -1
    s.groups.present[g] -= 1
    s.runs.left[run] += 1 if s.groups.left[g] == 0 else 0
    s.runs.left_s[run] += _estimate_s(s, p)
    s.groups.left[g] += 1
    _expect_again(s, p, 1)
    s.requests.status[p] = _PENDING
    _make_ready(s, p, s.counts.now_s[0])


@helper
def _expect_again(s: State, p: int, by: int) -> None:
    g, run = s.stages.group[p], s.stages.run[p]
    spec = s.groups.spec[g]
    for e in range(s.stage_specs.successor_first[spec], s.stage_specs.successor_end[spec]):
        h = s.runs.group[run] + s.successor_edges.stage[e]
        if s.successor_edges.flow[e] == _EACH:
            s.stages.missing[s.groups.row[h] + p - s.groups.row[g]] += by
        else:
            s.groups.missing[h] += by


@helper
def note_row_done(s: State, r: int, now_s: float) -> bool:
    """Row r is served. Returns whether it is a stage."""
    note_over(s, r)
    if not is_stage(s, r):
        return False
    s.stages.epoch[r] = s.hidden.epoch[s.requests.node_idx[r]]
    if has_store(s):
        keep_output(s, r)
    s.requests.node_idx[s.stages.run[r]] = s.requests.node_idx[r]
    stage_over(s, r, PRESENT, now_s)
    return True


@helper
def stage_over(s: State, r: int, output: int, now_s: float) -> None:
    """Row r is over, with or without an output. Its successors may be ready, or its run ends."""
    g, run = s.stages.group[r], s.stages.run[r]
    spec = s.groups.spec[g]
    s.stages.output[r] = output
    s.groups.present[g] += 1 if output != ABSENT else 0
    s.groups.left[g] -= 1
    s.runs.left_s[run] -= _estimate_s(s, r)
    if s.work.rank_s[r] >= s.runs.rest_s[run]:
        _shorten_rest(s, run)
    for e in range(s.stage_specs.successor_first[spec], s.stage_specs.successor_end[spec]):
        h = s.runs.group[run] + s.successor_edges.stage[e]
        if s.successor_edges.flow[e] == _EACH:
            row = s.groups.row[h] + r - s.groups.row[g]
            s.stages.missing[row] -= 1
            is_ready = s.stages.missing[row] == 0 and s.groups.missing[h] == 0
            if is_ready and s.requests.status[row] == _PENDING:
                _make_ready(s, row, now_s)
        else:
            s.groups.missing[h] -= 1
            if s.groups.missing[h] == 0:
                _release(s, h, now_s)
    if s.groups.left[g] == 0:
        s.runs.left[run] -= 1
        if s.runs.left[run] == 0:
            _begin_join(s, run, now_s)


@helper
def _shorten_rest(s: State, run: int) -> None:
    """The ready stage of the longest remaining path of a run is over."""
    rest_s = 0.0
    for g in range(s.runs.group[run], s.runs.group[run] + s.runs.n_groups[run]):
        if s.groups.left[g] > 0 and s.groups.known[g] == 1:
            for row in range(s.groups.row[g], s.groups.row[g] + s.groups.count[g]):
                status = s.requests.status[row]
                if status != _PENDING and status < _FINISHED:
                    rest_s = max(rest_s, s.work.rank_s[row])
    s.runs.rest_s[run] = rest_s


@helper
def _begin_join(s: State, run: int, now_s: float) -> None:
    """All stages of a run are over. A split request takes `join_s` more."""
    c = s.work.class_idx[run]
    is_split = s.groups.spec[s.runs.group[run]] == PART_SPEC
    join_s = s.join_s[c] if is_split else 0.0
    s.counts.in_system[0] += 1
    s.counts.in_nodes[0] += 1
    push_event(s, now_s + join_s, COMPLETION, run, s.requests.version[run])


@helper
def end_joined(s: State, r: int, now_s: float) -> None:
    """Finish run r, whose stages are over."""
    s.runs.left[r] = -1
    gather(s, r)
    s.requests.finish_s[r] = now_s
    s.requests.status[r] = _FINISHED
    s.counts.finished[0] += 1
    s.counts.in_system[0] -= 1
    s.counts.in_nodes[0] -= 1
    s.counts.idle_events[0] = 0
    if s.config.rows_reused[0] == 1:
        s.ended[s.counts.ended[0]] = r
        s.counts.ended[0] += 1


@helper
def note_stage_failed(s: State, r: int, now_s: float) -> None:
    """Stage r is not served. Its run fails in an event of its own at this time, or goes on without it."""
    g, run = s.stages.group[r], s.stages.run[r]
    if s.runs.left[run] <= 0:
        return
    spec = s.groups.spec[g]
    s.groups.failed[g] += 1
    on_failure = s.stage_specs.on_failure[spec]
    is_bearable = s.groups.failed[g] <= s.stage_specs.failed_max_frac[spec] * s.groups.count[g]
    if on_failure == _FAIL or not is_bearable:
        s.runs.left[run] = -1
        s.counts.in_system[0] += 1
        push_event(s, now_s, LOSS, run, STAGE_FAILED)
    elif on_failure == _DEFAULT:
        s.stages.output_gib[r] = 0.0
        stage_over(s, r, PRESENT, now_s)
    else:
        stage_over(s, r, EMPTY if s.stage_specs.is_map[spec] == 1 else ABSENT, now_s)


@helper
def give_up(s: State, r: int) -> None:
    """Prepare run r for its end. Later events of its stages have no effect on it."""
    if s.runs.left[r] == 0:
        s.counts.in_nodes[0] -= 1
    elif s.runs.left[r] > 0:
        s.counts.in_system[0] += 1
    s.runs.left[r] = -1


@helper
def gather(s: State, r: int) -> None:
    """Fill the record of a run: the first start of any stage, and the retries of all stages."""
    for g in range(s.runs.group[r], s.runs.group[r] + s.runs.n_groups[r]):
        for row in range(s.groups.row[g], s.groups.row[g] + s.groups.count[g]):
            s.requests.retries[r] += s.requests.retries[row]
            s.requests.start_s[r] = _earlier(s.requests.start_s[r], s.requests.start_s[row])
            begun_s = s.requests.service_start_s[row]
            s.requests.service_start_s[r] = _earlier(s.requests.service_start_s[r], begun_s)


@helper
def _earlier(a_s: float, b_s: float) -> float:
    """The earlier of two times; nan = no time."""
    return b_s if a_s != a_s or b_s < a_s else a_s


@helper
def has_started(s: State, r: int) -> bool:
    """Whether request r holds a slot, or any of its stages holds or held one."""
    if not is_run(s, r):
        return s.requests.status[r] == _RUNNING
    for g in range(s.runs.group[r], s.runs.group[r] + s.runs.n_groups[r]):
        for row in range(s.groups.row[g], s.groups.row[g] + s.groups.count[g]):
            if s.requests.start_s[row] >= 0.0:
                return True
    return False


@helper
def failed_stage(s: State, r: int) -> int:
    """A stage of run r that was rejected or lost, for the record of the run; -1 = none."""
    last = -1
    for g in range(s.runs.group[r], s.runs.group[r] + s.runs.n_groups[r]):
        for row in range(s.groups.row[g], s.groups.row[g] + s.groups.count[g]):
            has_failed = s.requests.status[row] == _REJECTED or s.requests.status[row] == _LOST
            if has_failed and (last < 0 or s.requests.ended_s[row] > s.requests.ended_s[last]):
                last = row
    return last


@helper(inline=True)
def max_retries_of(s: State, r: int) -> int:
    """Lost attempts after which row r is lost."""
    if is_stage(s, r):
        own = s.stage_specs.max_retries[s.groups.spec[s.stages.group[r]]]
        if own >= 0:
            return own
    return s.config.max_retries[0]


@helper(inline=True)
def has_error(s: State, r: int) -> bool:
    """Whether the attempt of row r that ends now ends in an error."""
    if not is_stage(s, r):
        return False
    error_frac = s.stage_specs.error_frac[s.groups.spec[s.stages.group[r]]]
    if error_frac == 0.0:
        return False
    return uniform(stream(s.config.seed[0], _ERRORS + r, s.requests.retries[r]), 0) < error_frac
