"""Bounds on hits of caches: against the best over all caches, found by trying them all."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.experiments.bounds.caching import belady_hits, feasible_hits, volume_bound_hits


def most_hits(keys: list[int], size: list[int], capacity: int) -> int:
    """Over all caches: after each use any part of what was there and of what was asked for may be kept."""
    best = {frozenset[int](): 0}
    for key in keys:
        after: dict[frozenset[int], int] = {}
        for held, hits in best.items():
            could_hold = held | {key}
            for n in range(len(could_hold) + 1):
                for kept in map(frozenset, combinations(sorted(could_hold), n)):
                    if sum(size[k] for k in kept) <= capacity:
                        after[kept] = max(after.get(kept, 0), hits + (key in held))
        best = after
    return max(best.values())


SEEDS = st.integers(0, 1 << 30)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(SEEDS)
def test_of_one_size_beladys_rule_is_the_best(seed: int) -> None:
    pick = np.random.default_rng(seed)
    keys, capacity = pick.integers(0, 5, pick.integers(1, 16)).tolist(), int(pick.integers(1, 4))
    assert belady_hits(keys, capacity) == most_hits(keys, [1] * 5, capacity)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(SEEDS)
def test_the_best_lies_between_the_bounds(seed: int) -> None:
    pick = np.random.default_rng(seed)
    keys, size = pick.integers(0, 5, pick.integers(2, 16)).tolist(), pick.integers(1, 6, 5)
    capacity = int(pick.integers(1, 10))
    best = most_hits(keys, size.tolist(), capacity)
    assert feasible_hits(keys, size * 1.0, capacity) <= best <= volume_bound_hits(keys, size * 1.0, capacity)


def test_by_hand() -> None:
    """Uses a b a b of sizes 2 and 3: intervals of 4 and 6 at a capacity of 3, times 3 steps: 9."""
    keys, size = [0, 1, 0, 1], np.array([2.0, 3.0])
    assert volume_bound_hits(keys, size, 3.0) == 1
    assert volume_bound_hits(keys, size, 10 / 3) == 2  # 10 in all
    assert feasible_hits(keys, size, 10 / 3) == 1  # but 5 at once
    assert feasible_hits(keys, size, 5.0) == 2


def test_bounds_close_with_many_items() -> None:
    """The source's claim: the gap vanishes with the number of items."""
    pick = np.random.default_rng(4)
    weight = np.arange(1, 401) ** -0.9
    keys, size = pick.choice(400, 8000, p=weight / weight.sum()), pick.lognormal(0.0, 1.0, 400)
    capacity = 0.1 * size.sum()
    low, high = feasible_hits(keys, size, capacity), volume_bound_hits(keys, size, capacity)
    assert high == pytest.approx(low, rel=0.08)


def test_what_is_larger_than_the_cache_is_never_a_hit() -> None:
    assert volume_bound_hits([0, 0], np.array([5.0]), 4.0) == feasible_hits([0, 0], np.array([5.0]), 4.0) == 0
    assert volume_bound_hits([0], np.array([5.0]), 9.0) == belady_hits([0], 1) == 0
