"""Runs of chains in a live driver: they enter from outside, and their rows are used again.

The host says which stages are skipped or answered, how many instances a stage has once that is known, and how
large outputs are. The loop does the rest, as in the simulator.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from trimtab.domain.chains import Flow, Templates
from trimtab.domain.planning import RUNS, Runs
from trimtab.domain.requests import Status
from trimtab.domain.stage_graph import edges_of, in_reverse
from trimtab.engine.driver import IS_OVER
from trimtab.engine.events import ARRIVAL, COMPLETION, LOSS
from trimtab.engine.layout import NO_OUTPUT, NOTHING_TO_DO, SKIPPED
from trimtab.engine.live_driver import Ended, LiveDriver
from trimtab.engine.loop import AGAIN_LATER
from trimtab.engine.run_row_writer import RowRanges, RunRowWriter, RunSpec, StageEstimate, StageNeeds
from trimtab.engine.told_runs import joined, last_of, runs_of

_NO_MORE = 1 << 16  # retries of a row that gets no further attempt; above any bound of a stage
_KNOWN_S, _MOST_KNOWN = 0.1, 1000  # how long estimates of equal runs hold, and for how many kinds
_RETRYING, _HELD = int(Status.RETRYING), int(Status.HELD)


class EnteredRun(NamedTuple):
    """Where a run lies: the row of the run, and the first row of each of its stages."""

    row: int
    group: int
    stages: list[int]


class _Shape(NamedTuple):
    """The common part of all runs of a template."""

    first: int  # of its stages, in `Templates.stages`
    size: int
    reverse: list[int]  # stages, each after its successors
    after: list[list[tuple[int, Flow]]]  # successors of each stage
    each: list[list[int]]  # stages that have as many instances as this one, itself among them


class LiveRuns:
    """The runs in a LiveDriver, which was made with `templates`. All rows of the driver are for runs."""

    def __init__(self, live: LiveDriver, templates: Templates) -> None:
        self._live, state = live, live.state
        self._shapes = [_shape_of(templates, k) for k in range(len(templates.template_names))]
        self._rows, self._groups = RowRanges(len(state.work)), RowRanges(len(state.groups))
        self._writer = RunRowWriter(state)
        self._version, self._status = (memoryview(state.requests[name]) for name in ("version", "status"))
        self._linked = memoryview(state.requests["stale_link"])
        self._output_gib: Any = memoryview(state.stages["output_gib"])
        self._blocks: dict[int, list[tuple[int, int]]] = {}  # ranges of rows of each run
        self._leaving: list[tuple[int, int]] = []  # ranges that some queue still links to
        self._again: dict[int, float] = {}  # when rows whose loss is not processed yet are dispatched again
        self._estimates: dict[Any, tuple[float, list[StageEstimate]]] = {}
        self._left: deque[Runs] | None = None  # the runs that left since the last plan, each alone
        self._left_before = runs_of(state, np.zeros(0, np.int64))  # the last ones of those before
        if live.rollouts is not None:
            self._left, live.told_runs = deque(maxlen=RUNS), self._told_runs

    # Runs.

    def enter(
        self, template: int, asked: RunSpec, needs: Sequence[StageNeeds], now_s: float
    ) -> EnteredRun | None:
        """A run enters with all of its rows; None if there is no room for all of them."""
        shape, count = self._shapes[template], 1 + sum(need.instances for need in needs)
        first = self._take_rows(count)
        if first is None:
            return None
        group = self._groups.take(shape.size)
        if group is None:
            self._rows.free(first, count)
            return None
        self._blocks[first] = [(first, count)]
        self._writer.run(first, group, shape.size, asked, now_s)
        estimates = self._estimated(shape, needs, now_s)
        rows = self._writer.stages(1 + shape.first, first, group, asked, needs, estimates, now_s)
        self._push(now_s, ARRIVAL, first)
        return EnteredRun(first, group, rows)

    def leave(self, run: EnteredRun, template: int) -> None:
        """The run is over and its host needs it no more: its rows are free."""
        if self._left is not None:
            self._left.append(runs_of(self._live.state, np.array([run.row])))
        self._groups.free(run.group, self._shapes[template].size)
        self._leaving += self._blocks.pop(run.row)
        if len(self._leaving) > 64:
            self._collect()

    def expand(self, run: EnteredRun, template: int, stage: int, count: int) -> list[tuple[int, int]] | None:
        """Stage `stage` has `count` instances, and so have all that read it instance by instance.

        Returns each such stage and its first row now; None if there is no room. To be called before the last
        input of the stage is complete. A map over no items keeps one instance, which is not served.
        """
        shape, state = self._shapes[template], self._live.state
        members, many = shape.each[stage], max(1, count)
        first = self._take_rows(many * len(members)) if count > 1 else None
        if count > 1 and first is None:
            return None
        moved = []
        for i, member in enumerate(members):
            g = run.group + member
            if first is not None:
                self._move_group(g, first + i * many, many)
            elif count == 0:
                state.stages["skipped"][state.groups["row"][g]] = NOTHING_TO_DO
            moved.append((member, int(state.groups["row"][g])))
        if first is not None:
            self._blocks[run.row].append((first, many * len(members)))
            for member in members:
                for successor, flow in shape.after[member]:
                    if flow is Flow.ALL:
                        state.groups["missing"][run.group + successor] += many - 1
        return moved

    # Stages.

    def complete(self, row: int, now_s: float, output_gib: float) -> None:
        """A stage is served, and its output has this size. It ran, or its host served it beside another."""
        if self._status[row] == _RETRYING or row in self._again:
            self.answer(row, output_gib)
            self.offer(row, now_s)
            return
        if self._status[row] == _HELD:
            self.answer(row, output_gib)
            self._live.push(now_s, LOSS, row, AGAIN_LATER)  # it is over before its turn comes
            return
        self._output_gib[row] = output_gib
        self._push(now_s, COMPLETION, row)

    def answer(self, row: int, output_gib: float) -> None:
        """The output of a stage that is not ready yet is known: it will not be served."""
        self._live.state.stages["answered"][row] = 1
        self._output_gib[row] = output_gib

    def skip(self, row: int, why: int = SKIPPED) -> None:
        """A stage that is not ready yet will not be served: SKIPPED or NOTHING_TO_DO."""
        self._live.state.stages["skipped"][row] = why

    def lose(self, row: int, now_s: float, again_s: float) -> None:
        """The attempt of a running stage failed. It is dispatched again at `again_s`; inf = by `offer`."""
        self._live.push(now_s, LOSS, row, AGAIN_LATER)
        self._again[row] = again_s

    def offer(self, row: int, now_s: float) -> None:
        """Dispatch a stage again that was lost until infinity."""
        if self._status[row] == _RETRYING:
            self._push(now_s, ARRIVAL, row)
        elif row in self._again:
            self._again[row] = now_s

    def give_up(self, row: int, now_s: float) -> None:
        """The attempt of a running stage failed, and it gets no other."""
        self._live.state.requests["retries"][row] = _NO_MORE
        self._live.push(now_s, LOSS, row, AGAIN_LATER)

    def abort(self, run: EnteredRun, now_s: float) -> None:
        """End a run and all of its stages."""
        self._live.push(now_s, LOSS, run.row, IS_OVER)

    def schedule_retries(self) -> None:
        """Schedule the stages that were lost. To be called after each `advance`."""
        again, self._again = self._again, {}
        for row, at_s in again.items():
            if at_s < float("inf") and self._status[row] == _RETRYING:
                self._push(at_s, ARRIVAL, row)

    def held_classes(self) -> set[int]:
        """The classes of the stages that wait for a slot."""
        state = self._live.state
        return set(np.unique(state.work["class_idx"][self._held_rows()]).tolist())

    def _held_rows(self) -> Any:
        return self._live.state.held_rows[: int(self._live.state.counts["n_held"][0])]

    def held(self, class_idx: int) -> list[int]:
        """The stages of a class that wait for a slot, in the order of their keys."""
        state, rows = self._live.state, self._held_rows()
        rows = rows[state.work["class_idx"][rows] == class_idx]
        order = np.lexsort((state.work["serial"][rows], state.requests["key"][rows]))
        found: list[int] = rows[order].tolist()
        return found

    def take_started(self) -> list[tuple[int, int]]:
        """(row, node) of each stage to run now."""
        return self._live.take_started()

    def take_ended(self) -> list[Ended]:
        """Runs that are over, in whichever way, and stages that were not served."""
        return self._live.take_ended_rows()

    def status(self, row: int) -> Status:
        """The status of a row."""
        return Status(self._status[row])

    def _told_runs(self) -> Runs:
        """What a planner is told: the last runs that left, and all that are here."""
        assert self._left is not None
        self._left_before = last_of(joined([self._left_before, *self._left]), RUNS)
        self._left.clear()
        here = runs_of(self._live.state, np.array(list(self._blocks), np.int64))
        return joined([self._left_before, here])

    # Rows.

    def _push(self, at_s: float, kind: int, row: int) -> None:
        self._live.push(at_s, kind, row, self._version[row])

    def _take_rows(self, count: int) -> int | None:
        first = self._rows.take(count)
        if first is None and self._leaving:
            self._collect()
            first = self._rows.take(count)
        return first

    def _collect(self) -> None:
        """Free the ranges of runs that are over, unless a queue still links to one of their rows."""
        linked, leaving = self._linked, self._leaving
        self._leaving = []
        for first, count in leaving:
            if any(linked[first : first + count]):
                self._leaving.append((first, count))
            else:
                self._rows.free(first, count)

    def _estimated(self, shape: _Shape, needs: Sequence[StageNeeds], now_s: float) -> list[StageEstimate]:
        """Estimates of each stage; for equal needs anew after a while."""
        key = (shape.first, *((need.class_idx, need.units) for need in needs))
        known = self._estimates.get(key)
        if known is not None and now_s < known[0]:
            return known[1]
        estimates_s = [self._live.best_estimate_s(need.class_idx, need.units) for need in needs]
        found = list(map(StageEstimate, estimates_s, *_ranks(shape, estimates_s)))
        if len(self._estimates) > _MOST_KNOWN:
            self._estimates.clear()
        self._estimates[key] = now_s + _KNOWN_S, found
        return found

    def _move_group(self, g: int, first: int, count: int) -> None:
        """The instances of a group get rows of their own in place of its only row."""
        group = self._live.state.groups[g]
        self._writer.copy(int(group["row"]), first, count)
        self._live.state.stages["output"][first : first + count] = NO_OUTPUT
        group["row"], group["count"], group["left"] = first, count, count


def _shape_of(templates: Templates, template: int) -> _Shape:
    first, end = int(templates.first[template]), int(templates.first[template + 1])
    after = [[(s - first, flow) for s, flow in edges_of(templates, k)] for k in range(first, end)]
    label = list(range(end - first))
    for _ in label:  # as many passes as stages reach every member
        for k, successors in enumerate(after):
            for successor, flow in successors:
                if flow is Flow.EACH:
                    label[k] = label[successor] = min(label[k], label[successor])
    each = [[m for m in range(end - first) if label[m] == label[k]] for k in range(end - first)]
    reverse = [k - first for k in in_reverse(templates, template)]
    return _Shape(first, end - first, reverse, after, each)


def _ranks(shape: _Shape, estimates_s: Sequence[float]) -> tuple[list[float], list[int]]:
    """Upward rank of each stage, and its successor on the longest path; -1 = none."""
    ranks_s, following = list(estimates_s), [-1] * shape.size
    for k in shape.reverse:
        longest_s = 0.0
        for successor, _ in shape.after[k]:
            if ranks_s[successor] > longest_s:
                longest_s, following[k] = ranks_s[successor], successor
        ranks_s[k] += longest_s
    return ranks_s, following
