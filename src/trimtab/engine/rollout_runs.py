"""Lays out the rows of a rollout: requests at nodes, runs of chains that are half done, and work that comes.

First come the rows that are there: requests at nodes, then the rows of runs in flight. Behind them lies the
work that arrives: requests that wait, then the future. The rows of all stages follow, run by run.

What is known of a run in flight goes on as it is. What is not known yet is as in a run of the same chain that
is over (a donor): the number of instances and their sizes, stages that are skipped, stages whose output is
known. A map has as many instances as a map that it reads instance by instance. Future runs are copies of runs
that came.
"""

from __future__ import annotations

from itertools import count as counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab.domain.chains import Flow, Templates, ranges
from trimtab.domain.cluster import Cluster
from trimtab.domain.planning import History, Runs
from trimtab.domain.requests import Status
from trimtab.domain.stage_graph import edges_of
from trimtab.domain.view import View
from trimtab.engine.layout import COPY, GROUP, NO_OUTPUT, RUN, STAGE
from trimtab.engine.rollout_state import Placed
from trimtab.engine.told_runs import first_rows, joined

_OF_RUN = ("run_arrival_s", "deadline_s", "payload_gib", "tenant_idx", "zone_idx", "priority")
_PENDING, _HELD, _TRANSFER = int(Status.PENDING), int(Status.HELD), int(Status.TRANSFER)
_RUNNING, _RETRYING, _FINISHED = int(Status.RUNNING), int(Status.RETRYING), int(Status.FINISHED)

Ints = NDArray[np.int64]


class StageRows(NamedTuple):
    """The runs of a rollout and the rows of their stages, which are its last rows."""

    runs: NDArray[np.void]  # RUN [rows before those of stages]
    groups: NDArray[np.void]  # GROUP
    stages: NDArray[np.void]  # STAGE [all rows]
    status: NDArray[np.uint8]  # [rows of stages]
    node_idx: NDArray[np.int32]  # [rows of stages]
    copies: NDArray[np.void]  # COPY of outputs
    most: int  # rows of one run, at most


class Start(NamedTuple):
    """The rows that a rollout starts from."""

    work: NDArray[np.void]  # WORK [rows]
    placed: Placed
    placed_rows: Ints  # [placed], their rows
    n_begun: int  # rows that are there; the runs among them are in flight
    n_work: int  # of these and of those that arrive; the rows of stages follow
    first_told: int  # of the rows from here on, up to `n_work`, the completion is told
    stage_rows: StageRows | None = None


def start_of_requests(placed: Placed, arriving: NDArray[Any]) -> Start:
    """Requests at nodes, and what arrives."""
    work, n = np.concatenate([placed.work, arriving]), len(placed.work)
    return Start(work, placed, np.arange(n), n, len(work), n)


def alike_of(templates: Templates) -> Ints:
    """For each stage one stage that always has as many instances, [specs]; the first spec is of no chain."""
    label = np.arange(1 + len(templates.stages))
    pairs = [
        (1 + k, 1 + m)
        for k in range(len(templates.stages))
        for m, flow in edges_of(templates, k)
        if flow is Flow.EACH
    ]
    is_changed = True
    while is_changed:
        before = label.copy()
        for k, m in pairs:
            label[k] = label[m] = min(label[k], label[m])
        is_changed = bool((label != before).any())
    return label


def start_of_runs(
    cluster: Cluster,
    view: View,
    history: History,
    future: NDArray[np.void],
    declared: Runs | None,
    alike: Ints,
) -> Start:
    """Requests at nodes, runs in flight, and what arrives. `alike` as from `alike_of`."""
    assert history.runs is not None
    pool = history.runs if declared is None else joined([declared, history.runs])
    n_declared = 0 if declared is None else len(declared.work)
    n_stages, now_s = np.diff(pool.first_stage), view.context.now_s
    is_open = np.add.reduceat(np.append(pool.instances["output"] == NO_OUTPUT, 0), first_rows(pool)[:-1]) > 0
    is_running = (n_stages > 0) & (pool.status == _RUNNING) & is_open
    live = np.flatnonzero(is_running)
    waits = (n_stages == 0) & ((pool.status == _HELD) | (pool.status == _RETRYING))
    waiting = pool.work[waits]
    placed, at_stage = _placed(cluster, view, history, pool, np.repeat(is_running, np.diff(first_rows(pool))))
    is_stage = (placed.work["serial"] >= 0) & (placed.work["serial"] < len(at_stage))
    n_plain = int((~is_stage).sum())
    begun, arriving = pool.work[live], np.concatenate([waiting, future])
    for name in ("arrival_s", "deadline_s"):
        begun[name] -= now_s
        arriving[name][: len(waiting)] -= now_s
    rows = np.concatenate([placed.work[~is_stage], begun, arriving])
    rows["run_arrival_s"] = rows["arrival_s"]
    source = _sources(pool, future)
    with_stages = np.flatnonzero((source >= 0) & (n_stages[source] > 0))
    laid, work, row_of = _stage_rows(
        pool,
        np.concatenate([live, source[with_stages]]),
        np.concatenate([n_plain + np.arange(len(live)), len(rows) - len(future) + with_stages]),
        (len(live), n_declared, now_s),
        rows,
        alike,
    )
    placed_rows = np.cumsum(~is_stage) - 1
    placed_rows[is_stage] = row_of[at_stage[placed.work["serial"][is_stage]]]
    n_begun = n_plain + len(live)
    return Start(np.concatenate([rows, work]), placed, placed_rows, n_begun, len(rows), n_plain, laid)


def _placed(
    cluster: Cluster, view: View, history: History, pool: Runs, is_live_row: NDArray[np.bool_]
) -> tuple[Placed, Ints]:
    """What is at nodes, and which rows of stages are; a `serial` in `Placed.work` is a position among these.

    Then follow those of requests; it is -1 for what is not known.
    """
    rows = pool.instances
    at_stage = np.flatnonzero(is_live_row & _is_sent(rows["status"]) & (rows["node_idx"] >= 0))
    has_none = np.diff(pool.first_stage) == 0
    at_plain = np.flatnonzero(has_none & _is_sent(pool.status) & (pool.node_idx >= 0))
    work = np.concatenate([pool.rows[at_stage], pool.work[at_plain]])
    work["serial"] = np.arange(len(work))
    node_idx = np.concatenate([rows["node_idx"][at_stage], pool.node_idx[at_plain]])
    order = np.argsort(work["arrival_s"], kind="stable")
    sent = np.ones(len(work), np.bool_)
    past = History(work[order], np.full(len(work), np.nan), node_idx[order], sent, history.plan)
    return Placed(cluster, view, past), at_stage


def _is_sent(status: NDArray[Any]) -> NDArray[np.bool_]:
    return np.asarray((status >= _TRANSFER) & (status <= _RUNNING))


def _sources(pool: Runs, future: NDArray[np.void]) -> Ints:
    """The run that each row of the future is a copy of; -1 = none."""
    serials = pool.work["serial"]
    order = np.argsort(serials, kind="stable")
    at = np.minimum(np.searchsorted(serials[order], future["serial"]), len(order) - 1)
    found = order[at] if len(order) else np.zeros(len(future), np.int64)
    is_found = serials[found] == future["serial"] if len(order) else np.zeros(len(future), np.bool_)
    return np.where(is_found, found, -1)


def _donors(pool: Runs, source: Ints, lacks: NDArray[np.bool_], n_declared: int) -> Ints:
    """A run of the same chain that is over, for each of these runs that lacks something; -1 = none.

    The last ones in turn; declared ones only while none that came is over.
    """
    n_stages = np.diff(pool.first_stage)
    over = np.flatnonzero((n_stages > 0) & (pool.status == _FINISHED))
    chain = np.full(len(n_stages), -1)
    chain[n_stages > 0] = pool.stages["spec_idx"][pool.first_stage[:-1][n_stages > 0]]
    of_chain: dict[int, list[int]] = {}
    for is_told in (False, True):
        some = over[(over >= n_declared) == is_told]
        for k in np.unique(chain[some]).tolist():
            of_chain[k] = some[chain[some] == k][::-1].tolist()
    turns = {k: counter() for k in of_chain}
    donors = np.full(len(source), -1)
    for e in np.flatnonzero(lacks).tolist():
        k = int(chain[source[e]])
        if k in of_chain:
            donors[e] = of_chain[k][next(turns[k]) % len(of_chain[k])]
    return donors


def _stage_rows(
    pool: Runs, source: Ints, run_row: Ints, told: tuple[int, int, float], rows: NDArray[np.void], alike: Ints
) -> tuple[StageRows, NDArray[np.void], Ints]:
    """The stages of runs like `source` [runs] in the rows `run_row` [runs] of `rows`.

    `told`: so many of the runs are in flight, so many runs of the pool are declared, and the time. Returns
    their WORK too, and for each row of the pool that goes on as it is its row in the rollout.
    """
    n_live, n_declared, now_s = told
    n_stages = np.diff(pool.first_stage)[source]
    at, of_run = ranges(pool.first_stage[source], n_stages), np.repeat(np.arange(len(source)), n_stages)
    known = pool.stages["known"][at] == 1
    lacks = np.bincount(of_run[~known], minlength=len(source)) > 0
    donor = _donors(pool, source, lacks, n_declared)
    from_donor = ~known & (donor[of_run] >= 0)
    stage_in_run = at - pool.first_stage[source][of_run]
    given = np.where(from_donor, pool.first_stage[donor[of_run]] + stage_in_run, at)
    count = _counts(pool, at, given, known, of_run, alike)
    goes_on = known & (of_run < n_live)

    of_stage = np.repeat(np.arange(len(at)), count)
    idx = np.arange(len(of_stage)) - np.repeat(np.cumsum(count) - count, count)
    among = pool.stages["count"][given]
    at_row = pool.stages["first_row"][given][of_stage] + idx % among[of_stage]
    stays, own, base = goes_on[of_stage], of_run[of_stage], len(rows)
    work, found = pool.rows[at_row], pool.instances[at_row]
    for name in ("arrival_s", "run_arrival_s", "deadline_s"):
        work[name][stays] -= now_s
    for name in _OF_RUN:
        work[name][~stays] = rows[name][run_row[own[~stays]]]
    _share_out(work, pool.stages["known"][given][of_stage] == 0, count[of_stage])

    groups = np.zeros(len(at), GROUP)
    for name in ("output_gib", "expected_s"):
        groups[name] = pool.stages[name][at]
    groups["spec"], groups["count"], groups["known"] = pool.stages["spec_idx"][at], count, goes_on
    groups["failed"] = np.where(goes_on, pool.stages["failed"][at], 0)
    groups["row"] = base + np.cumsum(count) - count
    runs = np.zeros(base, RUN)
    runs["group"][run_row], runs["n_groups"][run_row] = np.cumsum(n_stages) - n_stages, n_stages
    runs["path_s"][run_row[:n_live]] = pool.path_s[source[:n_live]]
    stages = np.zeros(base + len(work), STAGE)
    stages["run"], stages["group"], stages["copies"] = -1, -1, -1
    of_rows = stages[base:]
    of_rows["run"], of_rows["group"], of_rows["output_gib"] = run_row[own], of_stage, found["output_gib"]
    is_over = stays & (found["output"] != NO_OUTPUT)
    of_rows["output"] = np.where(stays, found["output"], NO_OUTPUT)
    for name in ("skipped", "answered"):
        of_rows[name] = np.where(stays & ~is_over, 0, found[name])
    of_rows["epoch"] = np.where(found["is_kept"] == 1, 0, -1)
    row_of = np.full(len(pool.rows), -1)
    row_of[at_row[stays]] = base + np.flatnonzero(stays)
    laid = StageRows(
        runs,
        groups,
        stages,
        np.where(stays, np.where(found["status"] == _HELD, _RETRYING, found["status"]), _PENDING),
        np.where(stays, found["node_idx"], -1),
        _copies(pool, row_of, stages),
        int(np.bincount(own, minlength=1).max(initial=0)),
    )
    return laid, work, row_of


def _counts(
    pool: Runs, at: Ints, given: Ints, known: NDArray[np.bool_], of_run: Ints, alike: Ints
) -> NDArray[np.int64]:
    """Instances of each stage: as of a known stage of its run that has as many, else as given."""
    count = pool.stages["count"][given].astype(np.int64)
    kin = of_run * len(alike) + alike[pool.stages["spec_idx"][at]]
    told, which = np.unique(kin[known], return_index=True)
    if len(told):
        place = np.minimum(np.searchsorted(told, kin), len(told) - 1)
        is_told = ~known & (told[place] == kin)
        count[is_told] = count[known][which][place[is_told]]
    return count


def _share_out(work: NDArray[np.void], is_declared: NDArray[np.bool_], count: NDArray[np.int64]) -> None:
    """Several instances of a stage of which only the whole is declared take equal shares of it."""
    for name in ("units", "estimate_s", "cost"):
        work[name][is_declared] /= count[is_declared]


def _copies(pool: Runs, row_of: Ints, stages: NDArray[np.void]) -> NDArray[np.void]:
    """The copies of outputs, linked from the rows of `stages`."""
    held = pool.copies[row_of[pool.copies[:, 0]] >= 0]
    copies = np.zeros(len(held), COPY)
    for k, (row, node_idx) in enumerate(held.tolist()):
        copies[k] = node_idx, 0, stages["copies"][row_of[row]]
        stages["copies"][row_of[row]] = k
    return copies
