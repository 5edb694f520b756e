"""Time averages per bin against hand-worked cases and a brute-force overlap of interval with bin."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.errors import UsageError
from trimtab.metrics import queue_length_over_time, utilisation_over_time

NAN = np.nan


def brute_force(start_s, finish_s, node_idx, slots, edges_s):
    held = np.zeros((len(slots), len(edges_s) - 1))
    for start, finish, node in zip(start_s, finish_s, node_idx, strict=True):
        for b in range(len(edges_s) - 1):
            if node >= 0 and start == start and finish == finish:
                held[node, b] += max(0.0, min(finish, edges_s[b + 1]) - max(start, edges_s[b]))
    return held / (np.asarray(slots)[:, None] * np.diff(edges_s))


def test_utilisation_by_hand() -> None:
    used = utilisation_over_time(
        start_s=np.array([0.0, 1.0, -5.0, 3.5]),
        finish_s=np.array([3.0, 2.0, 9.0, 3.75]),
        node_idx=np.array([0, 0, 1, 1]),
        slots=np.array([2, 4]),
        edges_s=np.array([0.0, 1.0, 3.0, 4.0]),
    )
    # node 0, 2 slots: 1 s of 2; 2 + 1 s of 4; none.  node 1, 4 slots: 1 of 4; 2 of 8; 1 + .25 of 4
    assert used == pytest.approx(np.array([[0.5, 0.75, 0.0], [0.25, 0.25, 0.3125]]))


def test_intervals_without_node_or_end_are_left_out() -> None:
    used = utilisation_over_time(
        np.array([0.0, 0.0, NAN]),
        np.array([1.0, NAN, 1.0]),
        np.array([-1, 0, 0]),
        np.array([1]),
        np.array([0.0, 1.0]),
    )
    assert used.tolist() == [[0.0]]


def test_queue_length_by_hand() -> None:
    waiting = queue_length_over_time(
        arrival_s=np.array([0.0, 0.5, 1.0, 1.5]),
        start_s=np.array([0.0, 2.0, 4.0, NAN]),  # served at once; waits 1.5; waits 3; rejected at once
        edges_s=np.array([0.0, 1.0, 2.0, 4.0]),
    )
    assert waiting == pytest.approx(np.array([0.5, 1.0 + 1.0, 1.0]))


def test_nothing_ever_happened() -> None:
    none, edges_s = np.array([]), np.array([0.0, 1.0, 2.0])
    assert queue_length_over_time(none, none, edges_s).tolist() == [0.0, 0.0]
    nobody = np.array([], dtype=np.int64)
    assert utilisation_over_time(none, none, nobody, np.array([1, 1]), edges_s).shape == (2, 2)


@given(st.integers(0, 2**32 - 1), st.integers(0, 30), st.integers(1, 12))
def test_agrees_with_brute_force(seed: int, n: int, bins: int) -> None:
    draw = np.random.default_rng(seed)
    start_s = np.round(draw.uniform(-2, 12, n), 1)  # rounded, so that events fall on edges too
    finish_s = start_s + np.round(draw.exponential(2, n), 1)
    finish_s[draw.random(n) < 0.1] = NAN
    node_idx = draw.integers(-1, 3, n)
    slots = np.array([30, 31, 32])  # never more intervals than slots
    edges_s = np.linspace(0, 10, bins + 1)
    expected = brute_force(start_s, finish_s, node_idx, slots, edges_s)
    assert utilisation_over_time(start_s, finish_s, node_idx, slots, edges_s) == pytest.approx(
        expected, abs=1e-12
    )
    waiting = queue_length_over_time(start_s, finish_s, edges_s)
    one_queue = brute_force(start_s, finish_s, np.zeros(n, dtype=int), [1], edges_s)[0]
    assert waiting == pytest.approx(one_queue, abs=1e-12)


@given(st.integers(0, 2**32 - 1), st.integers(1, 50))
def test_queue_length_obeys_littles_law(seed: int, n: int) -> None:
    draw = np.random.default_rng(seed)
    arrival_s = draw.uniform(0, 10, n)
    start_s = arrival_s + draw.exponential(1, n)
    edges_s = np.linspace(0, start_s.max() + 1, 8)
    area = float(queue_length_over_time(arrival_s, start_s, edges_s) @ np.diff(edges_s))
    assert area == pytest.approx(float((start_s - arrival_s).sum()))  # L · T = n · W


@pytest.mark.parametrize("edges_s", [[0.0], [0.0, 0.0], [1.0, 0.0], [0.0, NAN]])
def test_edges_must_increase(edges_s: list[float]) -> None:
    with pytest.raises(UsageError, match="edges_s"):
        queue_length_over_time(np.array([0.0]), np.array([1.0]), np.array(edges_s))
