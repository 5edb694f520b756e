"""Writes the rows of runs that enter a live driver: one for the run, one for each instance of a stage.

A record of an array is written whole, in one call. Ranges of rows are taken and given back.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from struct import Struct
from typing import Any, Final, NamedTuple

import numpy as np

from trimtab.domain.requests import Status
from trimtab.domain.view import WORK
from trimtab.engine.bound_state import Columns
from trimtab.engine.layout import GROUP, RUN, STAGE
from trimtab.engine.state import State


def record_struct(kind: np.dtype, written: Collection[str] | None = None) -> Struct:
    """A struct of these fields (None = all) in the order of their offsets. Other fields become zero."""
    codes, at = [], 0
    for name, (field, offset, *_) in (kind.fields or {}).items():  # in order of offsets
        is_written = written is None or name in written
        kind_of_one, many = field.base.char, math.prod(field.shape)
        code = f"{many}{'q' if kind_of_one == 'l' else kind_of_one}" if is_written else f"{field.itemsize}x"
        codes.append(f"{offset - at}x{code}")
        at = offset + field.itemsize
    return Struct("=" + "".join(codes) + f"{kind.itemsize - at}x")


class RowRanges:
    """The free ranges among `size` rows.

    A range that was given back serves the next request of the same length. Free neighbours become one range
    only when none is long enough.
    """

    def __init__(self, size: int) -> None:
        self._end, self._size = 0, size  # rows from `_end` on were never taken, or not since they were joined
        self._free: defaultdict[int, list[int]] = defaultdict(list)  # first rows, by length

    def take(self, count: int) -> int | None:
        """The first of `count` consecutive rows; None if there are not as many."""
        if same := self._free.get(count):
            return same.pop()
        if self._end + count > self._size:
            return self._split(count)
        first, self._end = self._end, self._end + count
        return first

    def free(self, first: int, count: int) -> None:
        """Give a range back."""
        self._free[count].append(first)

    def _split(self, count: int) -> int | None:
        """Join neighbours, then take from the shortest range that is long enough."""
        self._join()
        if self._end + count <= self._size:
            return self.take(count)
        longer = [length for length, firsts in self._free.items() if length >= count and firsts]
        if not longer:
            return None
        length = min(longer)
        first = self._free[length].pop()
        if length > count:
            self.free(first + count, length - count)
        return first

    def _join(self) -> None:
        ranges = sorted((first, length) for length, firsts in self._free.items() for first in firsts)
        self._free.clear()
        joined: list[list[int]] = []
        for first, length in ranges:
            if joined and sum(joined[-1]) == first:
                joined[-1][1] += length
            else:
                joined.append([first, length])
        if joined and sum(joined[-1]) == self._end:
            self._end = joined.pop()[0]
        for first, length in joined:
            self._free[length].append(first)


_PENDING = int(Status.PENDING)
NO_MODEL: Final = -1
_FEW = 8  # rows that are faster to write one by one than by columns
_pack_work, _pack_run = record_struct(WORK).pack_into, record_struct(RUN).pack_into
_pack_group, _pack_stage = record_struct(GROUP).pack_into, record_struct(STAGE).pack_into


class RunSpec(NamedTuple):
    """A run, as its host describes it."""

    tenant_idx: int = 0
    priority: int = 0
    deadline_s: float = float("inf")
    zone_idx: int = 0
    payload_gib: float = 0.0


class StageNeeds(NamedTuple):
    """A stage of a run, as its host describes it: the number of instances, and the needs of each."""

    class_idx: int
    instances: int = 1  # known so far; `LiveRuns.expand` corrects it
    units: float = 1.0
    output_gib: float = 0.0  # expected, of an instance
    model_idx: int = NO_MODEL
    expected_count: float = 1.0  # until the count is known


class StageEstimate(NamedTuple):
    """Of an instance of a stage: service, upward rank, and the successor on the longest path; -1 = none."""

    service_s: float
    rank_s: float
    after: int


class RunRowWriter:
    """Writes rows into a state."""

    def __init__(self, state: State) -> None:
        self._state, self._serial = state, 0
        self._work, self._stages, self._runs, self._groups = (
            memoryview(array.view(np.uint8)) for array in (state.work, state.stages, state.runs, state.groups)
        )
        self._units: Any
        self._requests, self._units = Columns(state.requests), memoryview(state.truth["units"])

    def run(self, row: int, group: int, n_groups: int, asked: RunSpec, now_s: float) -> None:
        """Write the row of a run."""
        self.reset(row, 1)
        _pack_stage(self._stages, row * STAGE.itemsize, 0.0, 0.0, 0.0, -1, -1, 0, -1, 0, 0, 0, 0)
        _pack_run(self._runs, row * RUN.itemsize, 0.0, 0.0, 0.0, group, n_groups, 0, 0)
        self._write_work(row, 1, asked, now_s, StageNeeds(0, units=0.0), StageEstimate(0.0, 0.0, -1), -1)

    def stages(
        self,
        first_spec: int,
        run_row: int,
        group: int,
        asked: RunSpec,
        needs: Sequence[StageNeeds],
        estimates: Sequence[StageEstimate],
        now_s: float,
    ) -> list[int]:
        """Write the rows of a run's stages behind its own; returns the first row of each."""
        row, rows = run_row + 1, []
        for k, (need, estimate) in enumerate(zip(needs, estimates, strict=True)):
            count, output_gib, g = need.instances, need.output_gib, group + k
            self.reset(row, count)
            at = row * STAGE.itemsize
            _pack_stage(self._stages, at, output_gib, 0.0, 0.0, run_row, g, 0, -1, 0, 0, 0, 0)
            self._units[row] = need.units
            after = -1 if estimate.after < 0 else needs[estimate.after].class_idx
            self._write_work(row, count, asked, now_s, need, estimate, after)
            if count > 1:
                others, state = slice(row + 1, row + count), self._state
                state.stages[others], state.truth["units"][others] = state.stages[row], need.units
            expected_s = estimate.service_s * (need.expected_count if count == 1 else count)
            # `begin_run` fills in the others.
            at, spec = g * GROUP.itemsize, first_spec + k
            _pack_group(self._groups, at, output_gib, expected_s, row, count, spec, 0, count, 0, 0, 0)
            rows.append(row)
            row += count
        return rows

    def copy(self, row: int, first: int, count: int) -> None:
        """Write rows for the instances of a stage that had only one."""
        self.reset(first, count)
        rows, state = slice(first, first + count), self._state
        state.work[rows], state.truth[rows], state.stages[rows] = (
            state.work[row],
            state.truth[row],
            state.stages[row],
        )
        self._number(first, count)

    def reset(self, first: int, count: int) -> None:
        """Set rows back, but for their versions: events of earlier uses may be on the way."""
        if count > _FEW:
            self._reset_columns(slice(first, first + count))
            return
        r, nan = self._requests, float("nan")
        for row in range(first, first + count):
            r.start_s[row] = r.service_start_s[row] = r.finish_s[row] = r.ended_s[row] = nan
            r.attempt[row] = r.retries[row] = r.reason[row] = 0
            r.node_idx[row], r.status[row] = -1, _PENDING

    def _reset_columns(self, rows: slice) -> None:
        requests: Any = self._state.requests
        for name in ("start_s", "service_start_s", "finish_s", "ended_s"):
            requests[name][rows] = np.nan
        for name in ("attempt", "retries", "reason"):
            requests[name][rows] = 0
        requests["node_idx"][rows], requests["status"][rows] = -1, _PENDING

    def _number(self, first: int, count: int) -> None:
        self._state.work["serial"][first : first + count] = np.arange(self._serial, self._serial + count)
        self._serial += count

    def _write_work(
        self,
        row: int,
        count: int,
        asked: RunSpec,
        now_s: float,
        need: StageNeeds,
        estimate: StageEstimate,
        next_class: int,
    ) -> None:
        """Write WORK rows, all fields in their order. The cost is expected service."""
        tenant, priority, deadline_s, zone, payload_gib = asked
        _pack_work(
            self._work, row * WORK.itemsize,
            self._serial, now_s, now_s, deadline_s, need.units, estimate.service_s, estimate.rank_s,
            payload_gib, estimate.service_s, 0, 0.0, 0, 0, need.class_idx, need.model_idx, -1, tenant, zone,
            priority, -1, 0, 1, next_class,
        )  # fmt: skip
        if count > 1:
            self._state.work[row + 1 : row + count] = self._state.work[row]
            self._number(row, count)
        else:
            self._serial += 1
