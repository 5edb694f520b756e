"""The pairing heap behind a sorted run, and the event heap, against heapq on random operations."""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from support.builders import cluster
from support.by_hand import asked
from support.mini_policies import Scripted
from trimtab.domain.options import Cancel, Options
from trimtab.domain.policy import Decider
from trimtab.domain.requests import Status
from trimtab.engine.bound_state import python_state
from trimtab.engine.events import (
    ARRIVAL,
    COMPLETION,
    SERIAL_BITS,
    VERSIONS,
    drop_first_event,
    kind_of,
    push_event,
    serial_of,
)
from trimtab.engine.new_state import new_state
from trimtab.engine.queues import drop_first_of, enqueue, first_of, put_back, take_out

N, QUEUES = 60, 3


def _state() -> Any:
    c = cluster(QUEUES)
    r = asked(c, np.zeros(N).tolist())
    return python_state(new_state(c, r, Options(cancel=Cancel.WAITING), Decider.of(Scripted()), 0))


def _take(s: Any, q: int) -> int:
    r = int(first_of(s, q))
    if r >= 0:
        drop_first_of(s, q, r)
    return r


operation = st.one_of(
    st.tuples(st.just("push"), st.integers(0, QUEUES - 1), st.integers(0, 5)),
    st.tuples(st.just("pop"), st.integers(0, QUEUES - 1), st.just(0)),
    st.tuples(st.just("cancel"), st.integers(0, N - 1), st.just(0)),
    st.tuples(st.just("take out"), st.integers(0, N - 1), st.just(0)),
    st.tuples(st.just("look at"), st.integers(0, QUEUES - 1), st.integers(1, 4)),
)


class Oracle:
    """Queues as heapq lists of (key, serial); what is cancelled is filtered out at once."""

    def __init__(self) -> None:
        self.queues: list[list[tuple[float, int]]] = [[] for _ in range(QUEUES)]

    def cancel(self, r: int) -> int:
        """The queue that r was in, or -1."""
        for q, rows in enumerate(self.queues):
            kept = [row for row in rows if row[1] != r]
            if len(kept) < len(rows):
                heapq.heapify(kept)
                self.queues[q] = kept
                return q
        return -1


@settings(max_examples=400, deadline=None, derandomize=True)
@given(st.lists(operation, max_size=150), st.permutations(range(N)))
def test_queues_serve_by_key_then_serial(operations: list[tuple[str, int, int]], serials: list[int]) -> None:
    s, oracle, fresh = _state(), Oracle(), list(serials)
    for name, i, key in operations:
        if name == "push" and fresh:
            r = fresh.pop()
            s.requests.key[r], s.requests.status[r] = float(key), int(Status.QUEUED)
            enqueue(s, i, r)
            heapq.heappush(oracle.queues[i], (float(key), r))
        elif name == "pop":
            expected = heapq.heappop(oracle.queues[i])[1] if oracle.queues[i] else -1
            assert _take(s, i) == expected
            if expected >= 0:
                fresh.insert(0, expected)  # may come again, with another key
        elif name == "cancel" and (q := oracle.cancel(i)) >= 0:
            s.requests.status[i] = int(Status.CANCELLED)
            s.queues.length[q] -= 1
        elif name == "take out" and (q := oracle.cancel(i)) >= 0:
            take_out(s, q, i)
            fresh.insert(0, i)
        elif name == "look at":
            seen = [r for r in (_take(s, i) for _ in range(key)) if r >= 0]
            assert seen == [r for _, r in sorted(oracle.queues[i])[:key]]
            for r in reversed(seen):
                put_back(s, i, r)
        assert [s.queues.length[q] for q in range(QUEUES)] == [len(rows) for rows in oracle.queues]
    for q, rows in enumerate(oracle.queues):
        assert [_take(s, q) for _ in rows] == [r for _, r in sorted(rows)]
        assert first_of(s, q) == -1


time_s = st.one_of(st.integers(0, 4).map(float), st.floats(0, 4, allow_subnormal=False))
event = st.tuples(
    time_s,
    st.integers(COMPLETION, ARRIVAL),
    st.integers(0, (1 << SERIAL_BITS) - 1),
    st.integers(0, VERSIONS - 1),
)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(st.one_of(event, st.none()), max_size=200))
def test_events_come_by_time_kind_serial_and_version(steps: list[tuple[float, int, int, int] | None]) -> None:
    s, oracle = _state(), list[tuple[float, int, int, int]]()
    for step in steps:
        if step is not None:
            push_event(s, *step)
            heapq.heappush(oracle, step)
        elif oracle:
            _expect_first(s, heapq.heappop(oracle))
    while oracle:
        _expect_first(s, heapq.heappop(oracle))
    assert s.counts.events[0] == 0


def _expect_first(s: Any, expected: tuple[float, int, int, int]) -> None:
    key = s.events.key[0]
    assert (s.events.time_s[0], kind_of(key), serial_of(key), key & (VERSIONS - 1)) == expected
    drop_first_event(s)
