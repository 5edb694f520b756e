"""Rebuilds the state that was reported to a planner in the arrays of another run."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab.compiled.kernel import helper
from trimtab.domain.chains import Flow
from trimtab.domain.cluster import Cluster
from trimtab.domain.planning import History
from trimtab.domain.requests import Status
from trimtab.domain.view import Plan, View, estimates_s, new_work
from trimtab.engine.events import ARRIVAL, push_event
from trimtab.engine.faults import begin_faults
from trimtab.engine.held_work import await_deadline
from trimtab.engine.layout import ABSENT, NO_OUTPUT
from trimtab.engine.nodes import anchor, queue_key
from trimtab.engine.queues import enqueue
from trimtab.engine.residency import acquire
from trimtab.engine.resources import fits_beside, take
from trimtab.engine.service import LOOK, ask, is_engine, note_sent
from trimtab.engine.slots import occupy
from trimtab.engine.state import State
from trimtab.engine.telemetry import (
    begin_telemetry,
    note_all_changed,
    note_own,
    show_present,
)
from trimtab.engine.virtual_counters import note_at_nodes

LEAST_S = 1e-9  # least assumed remaining time of late work
LONG_AGO_S = -1e12  # last use of an item that no known request used

_RUNNING, _QUEUED = int(Status.RUNNING), int(Status.QUEUED)
_PENDING, _RETRYING, _EACH = int(Status.PENDING), int(Status.RETRYING), int(Flow.EACH)


class Placed:
    """Requests at nodes, sorted by node and arrival. Unreported values are estimates.

    The first requests of each node, as many as the node has slots, are assumed to hold its slots.

    Attributes:
        work: WORK [placed]; arrival_s and deadline_s from now.
        node_idx: [placed].
        estimate_s: [placed], on their node.
        left_s: [placed], remaining service seconds; the whole estimate for requests without a slot.
    """

    def __init__(self, cluster: Cluster, view: View, history: History) -> None:
        known = np.flatnonzero(history.in_flight)
        node_idx = history.node_idx[known].astype(np.int64)
        work = history.work[known]
        unknown = np.maximum(view.nodes.in_flight - np.bincount(node_idx, minlength=cluster.n_nodes), 0)
        unknown[~np.isfinite(view.fixed_s.min(axis=0))[view.nodes.type_idx]] = 0
        since_s = history.work["arrival_s"].min(initial=view.context.now_s)
        self.work = np.concatenate([_unknown_requests(view, unknown, since_s), work])
        self.node_idx = np.concatenate([np.repeat(np.arange(cluster.n_nodes), unknown), node_idx])
        estimate_s = _estimates(view, work, node_idx)
        outstanding_s = np.bincount(node_idx, estimate_s, cluster.n_nodes)
        rest_s = np.maximum(view.nodes.outstanding_s - outstanding_s, 0.0) / np.maximum(unknown, 1)
        self.estimate_s = np.concatenate([np.repeat(rest_s, unknown), estimate_s])
        self._sort_by_node()
        rank = np.arange(len(self.node_idx)) - np.searchsorted(self.node_idx, self.node_idx)
        runs = rank < cluster.slots[self.node_idx]
        self.left_s = np.where(runs, self._remaining(view, runs), self.estimate_s)
        for name in ("arrival_s", "deadline_s"):
            self.work[name] -= view.context.now_s

    def _sort_by_node(self) -> None:
        order = np.argsort(self.node_idx, kind="stable")
        self.work, self.node_idx = self.work[order], self.node_idx[order]
        self.estimate_s = self.estimate_s[order]

    def _remaining(self, view: View, runs: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Remaining seconds of each request as if it started on arrival, scaled to the node's backlog."""
        nodes, at = view.nodes, self.node_idx
        guess_s = np.clip(self.work["arrival_s"] + self.estimate_s - nodes.anchor_s[at], LEAST_S, None)
        guess_s = np.where(runs, np.minimum(guess_s, np.maximum(self.estimate_s, LEAST_S)), 0.0)
        queued_s = np.bincount(at, np.where(runs, 0.0, self.estimate_s), len(nodes))
        reported_s = np.maximum(nodes.backlog_s - queued_s, 0.0)
        guessed_s = np.bincount(at, guess_s, len(nodes))
        then_s = guess_s / np.maximum(guessed_s, LEAST_S)[at] * reported_s[at]
        return np.maximum(then_s - (view.context.now_s - nodes.anchor_s[at]), 0.0)


def _estimates(view: View, work: NDArray[Any], node_idx: NDArray[np.int64]) -> NDArray[np.float64]:
    """Estimated service seconds of each on its node; 0 where the node's type no longer serves its class."""
    seconds = estimates_s(view, work, node_idx)
    return np.where(np.isfinite(seconds), seconds, 0.0)


def _unknown_requests(view: View, count: NDArray[np.int64], arrival_s: float) -> NDArray[Any]:
    """WORK rows for requests of which only the node is known: a class that the node serves, no model."""
    work = new_work(int(count.sum()))
    work["class_idx"] = np.argmin(view.fixed_s, axis=0)[np.repeat(view.nodes.type_idx, count)]
    work["model_idx"] = work["adapter_idx"] = -1
    work["units"], work["deadline_s"], work["arrival_s"] = 1.0, np.inf, arrival_s
    work["serial"] = -1
    return work


def last_used_s(view: View, history: History, n_items: int) -> NDArray[np.float64]:
    """Last use of each item on each node, relative to now, from past requests; [nodes, items]."""
    used_s = np.full((view.context.n_nodes, n_items), LONG_AGO_S)
    sent = history.node_idx >= 0
    at_s = np.where(np.isfinite(history.finish_s), history.finish_s - view.context.now_s, 0.0)
    for name in ("model_idx", "adapter_idx"):
        uses = sent & (history.work[name] >= 0)
        np.maximum.at(used_s, (history.node_idx[uses], history.work[name][uses]), at_s[uses])
    return used_s


@helper
def _place(s: State, plan: Plan, order: Any, r: int) -> None:
    """Place request r at its node: in a free slot if its models fit, else in the node's queue."""
    rows, nodes, j = s.requests, s.nodes, s.requests.node_idx[r]
    nodes.in_flight[j] += 1
    nodes.room[j] -= 1
    nodes.outstanding_s[j] += rows.estimate_s[r]
    s.counts.in_nodes[0] += 1
    s.counts.in_system[0] += 1
    note_at_nodes(s, r, 1)
    note_own(s, r, j, 1, rows.estimate_s[r])
    if s.config.runs[0] == 1:
        s.class_in_flight[s.work.class_idx[r]] += 1
    if is_engine(s, j):
        note_sent(s, r, j)
        rows.status[r] = _QUEUED
        rows.key[r] = queue_key(s, plan, order, r, 0.0)
        enqueue(s, j, r)
        return
    is_free = nodes.running[j] < nodes.slots[j] and s.queues.length[j] == 0
    if is_free and fits_beside(s, r, j) and acquire(s, plan, r, j, 0.0) >= 0.0:
        rows.status[r] = _RUNNING
        rows.start_s[r] = 0.0
        rows.slot[r] = nodes.running[j]
        nodes.running[j] += 1
        take(s, r, j)
        occupy(s, r, j, 0.0, 0.0)
        s.slots.estimate_end_s[s.hidden.first_slot[j] + rows.slot[r]] = rows.left_s[r]
    else:
        rows.status[r] = _QUEUED
        rows.key[r] = queue_key(s, plan, order, r, 0.0)
        enqueue(s, j, r)


@helper
def _go_on(s: State, r: int) -> None:
    """Run r goes on: its stages have their outputs and statuses. What waits is decided about now."""
    first, end = s.runs.group[r], s.runs.group[r] + s.runs.n_groups[r]
    s.runs.started[r], s.requests.status[r], s.requests.slot[r] = 1, _RUNNING, -1
    for g in range(first, end):
        s.groups.left[g], s.groups.present[g] = 0, 0
        if s.groups.known[g] == 0:
            s.runs.left_s[r] += s.groups.expected_s[g]
        for row in range(s.groups.row[g], s.groups.row[g] + s.groups.count[g]):
            if s.stages.output[row] == NO_OUTPUT:
                s.groups.left[g] += 1
                _note_open(s, r, g, row)
            elif s.stages.output[row] != ABSENT:
                s.groups.present[g] += 1
        s.runs.left[r] += 1 if s.groups.left[g] > 0 else 0
    for g in range(first, end):
        _expect_what_is_missing(s, r, g)


@helper
def _note_open(s: State, r: int, g: int, row: int) -> None:
    """Row `row` of group g of run r is not over."""
    if s.groups.known[g] == 1 and s.work.estimate_s[row] < np.inf:
        s.runs.left_s[r] += s.work.estimate_s[row]
    if s.requests.status[row] != _PENDING:
        s.runs.rest_s[r] = max(s.runs.rest_s[r], s.work.rank_s[row])
    if s.requests.status[row] == _RETRYING:
        s.counts.in_system[0] += 1
        s.class_in_flight[s.work.class_idx[row]] += 1
        push_event(s, 0.0, ARRIVAL, row, s.requests.version[row])


@helper
def _expect_what_is_missing(s: State, r: int, g: int) -> None:
    """Count the outputs that group g of run r waits for, once it is known what of its inputs is over."""
    spec = s.groups.spec[g]
    for e in range(s.stage_specs.input_first[spec], s.stage_specs.input_end[spec]):
        h = s.runs.group[r] + s.input_edges.stage[e]
        if s.input_edges.flow[e] != _EACH:
            s.groups.missing[g] += s.groups.left[h]
            continue
        for i in range(s.groups.count[g]):
            if s.stages.output[s.groups.row[h] + i] == NO_OUTPUT:
                s.stages.missing[s.groups.row[g] + i] += 1


@helper
def place_requests(s: State, plan: Plan, order: Any, n_placed: int) -> None:
    """Start a run at time 0 in which `counts.arrived` rows are there. All other requests arrive. No plans.

    `n_placed` of them are at nodes, the first ones; where there are runs, those that `recent` lists. The runs
    among the others are in flight.
    """
    begin_telemetry(s)
    begin_faults(s)
    has_runs = s.config.runs[0] == 1
    for i in range(n_placed):
        _place(s, plan, order, s.recent[i] if has_runs else i)
    for r in range(s.counts.arrived[0] if has_runs else 0):
        if s.runs.n_groups[r] > 0:
            _go_on(s, r)
            await_deadline(s, r, 0.0)
    for j in range(len(s.nodes.up)):
        if is_engine(s, j):
            ask(s, plan, LOOK, -1, j, 0.0)
        anchor(s, j, 0.0)
    show_present(s)
    note_all_changed(s)
