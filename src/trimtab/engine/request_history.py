"""The last arrivals of a host that reuses rows, as a ring of WORK rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from trimtab.domain.planning import HISTORY, History
from trimtab.domain.requests import Status
from trimtab.domain.view import WORK, Plan, new_work
from trimtab.engine.state import State

_WORK_BYTES = WORK.itemsize


class RequestHistory:
    """The last `HISTORY` requests that entered a state, and their outcomes."""

    def __init__(self, state: State) -> None:
        self._state, self._count = state, 0
        self._work, self._finish_s = new_work(HISTORY), np.full(HISTORY, np.nan)
        self._node_idx, self._row = np.full(HISTORY, -1, np.int32), np.full(HISTORY, -1)
        self._place = np.full(len(state.work), -1)  # of each row, in order of arrival
        self._bytes = _written(self._work.view(np.uint8))
        self._source = _written(state.work.view(np.uint8))
        self._nodes = _written(state.requests["node_idx"])
        self._finishes, self._ended_at = _written(self._finish_s), _written(self._node_idx)
        self._rows, self._places = _written(self._row), _written(self._place)

    def add(self, row: int) -> None:
        """Record an arrival. The row of the request is already written."""
        at = self._count % HISTORY
        here, there = at * _WORK_BYTES, row * _WORK_BYTES
        self._bytes[here : here + _WORK_BYTES] = self._source[there : there + _WORK_BYTES]
        self._finishes[at], self._ended_at[at], self._rows[at] = np.nan, -1, row
        self._places[row] = self._count
        self._count += 1

    def note_size(self, row: int) -> None:
        """The request of a row is larger or smaller than when it arrived."""
        if self._places[row] >= self._count - HISTORY:
            here, there = (self._places[row] % HISTORY) * _WORK_BYTES, row * _WORK_BYTES
            self._bytes[here : here + _WORK_BYTES] = self._source[there : there + _WORK_BYTES]

    def finish(self, row: int, now_s: float) -> None:
        """The request of a row is served."""
        place = self._places[row]
        if place >= self._count - HISTORY:
            self._finishes[place % HISTORY] = now_s
            self._ended_at[place % HISTORY] = self._nodes[row]

    def history(self, plan: Plan) -> History:
        """The recent past, for planning."""
        places = np.arange(max(0, self._count - HISTORY), self._count)
        at = places % HISTORY
        rows, finish_s, requests = self._row[at], self._finish_s[at], self._state.requests
        in_flight = (self._place[rows] == places) & np.isnan(finish_s) & is_sent(requests["status"][rows])
        node_idx = np.where(in_flight, requests["node_idx"][rows], self._node_idx[at])
        return History(self._work[at], finish_s, node_idx.astype(np.int32), in_flight, plan)


def _written(array: Any) -> Any:
    """The same memory, read and written ten times as fast."""
    return memoryview(array)


def is_sent(status: np.ndarray) -> np.ndarray:
    """Which of these requests are with a node, or on their way to it."""
    return np.asarray((status >= Status.TRANSFER) & (status <= Status.RUNNING))
