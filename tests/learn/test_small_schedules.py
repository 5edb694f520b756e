"""Optimal schedules of small instances: enumeration, Horn's matching; the clairvoyant search beside them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from trimtab.learn.clairvoyant_schedules import clairvoyant_schedule
from trimtab.learn.small_schedules import drawn_window, optimal_schedule, total_s
from trimtab.policies.shared.plan_features import Window, window


def enumerated_s(w: Window) -> float:
    """Least sum of completions of all orders and slots."""
    n, slots = len(w.best_s), range(len(w.free_s))
    every = itertools.product(itertools.permutations(range(n)), itertools.product(slots, repeat=n))
    return min(total_s(w, np.array(order), np.array(chosen)) for order, chosen in every)


def test_it_is_the_best_of_all_orders_and_slots() -> None:
    for seed in range(6):
        w = drawn_window(np.random.default_rng(seed), 3, 3)
        found = optimal_schedule(w)
        assert found.total_s == pytest.approx(enumerated_s(w))
        assert total_s(w, found.requests, found.slots) == pytest.approx(found.total_s)
        assert sorted(found.requests.tolist()) == [0, 1, 2]


def test_without_loads_it_is_horns_matching_of_requests_to_places() -> None:
    for seed in range(6):
        w = drawn_window(np.random.default_rng(seed), 7, 3)
        w = window(w.service_s, 0.0 * w.load_s, w.free_s, w.best_s, w.waited_s, w.item, w.node)
        from_end = np.arange(1, 8)  # the last of a slot delays itself only
        cost_s = (w.free_s[:, None] + w.service_s[:, :, None] * from_end).reshape(7, -1)
        best_s = cost_s[linear_sum_assignment(cost_s)].sum()
        assert optimal_schedule(w).total_s == pytest.approx(best_s)


def test_a_clairvoyant_schedule_is_never_better_and_seldom_much_worse() -> None:
    excess = []
    for seed in range(20):
        w = drawn_window(np.random.default_rng(seed), 7, 3)
        first, found_s = clairvoyant_schedule(w, np.zeros(7), seed)
        excess.append(found_s / optimal_schedule(w).total_s - 1.0)
        assert len(set(first[first >= 0].tolist())) == (first >= 0).sum()
    assert min(excess) > -1e-9
    assert np.mean(excess) < 0.03


def test_a_clairvoyant_schedule_keeps_a_slot_for_what_comes() -> None:
    """One slot; a request of 10 s waits, and one of 1 s comes after a second: 12 + 2 is less than 10 + 11."""
    w = window(
        *(np.array(a, np.float64) for a in ([[10.0], [1.0]], [[0.0], [0.0]], [0.0], [10.0, 1.0], [0.0, 0.0])),
        np.array([-1, -1]),
        np.array([0]),
    )
    first, total = clairvoyant_schedule(w, np.array([0.0, 1.0]), 0)
    assert first.tolist() == [1]
    assert total == pytest.approx(14.0)
