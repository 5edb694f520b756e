"""Least shares of due jobs against cases by hand, and who gives way against every subset."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest

from trimtab.training.allocators.shared.deadline_plans import Rules
from trimtab.training.allocators.shared.least_shares import LeastShares, TypeLevels, least_shares

RULES = Rules(0.0, 1.0, 0, 1.0)


def planned(types: list[TypeLevels], work: Any, due_s: Any, *, preferred: Any = None) -> LeastShares:
    work, due_s = np.array(work, float), np.array(due_s, float)
    n = len(work)
    if preferred is None:
        preferred = np.tile(np.arange(len(types)), (n, 1))
    may_yield = np.ones(n, np.bool_)
    return least_shares(types, work, due_s, may_yield, np.argsort(due_s), np.array(preferred), RULES)


def of_type(rate: Any, gpus: int, n: int = 1) -> TypeLevels:
    rate = np.array(rate, float)
    return TypeLevels(2 ** np.arange(len(rate)), np.tile(rate, (n, 1)), gpus)


def test_a_job_needs_the_fewest_gpus_that_are_in_time() -> None:
    for due_s, gpus in ((100.0, 1), (60.0, 2), (32.0, 4)):
        shares = planned([of_type([1.0, 1.8, 3.2], 8)], [100.0], [due_s])
        assert shares.type_idx.tolist() == [0]
        assert shares.now_gpus.tolist() == [gpus]


def test_a_job_that_would_be_late_gets_nothing() -> None:
    only_four = TypeLevels(np.array([4]), np.array([[2.0]]), 4)
    assert planned([only_four], [100.0], [50.0]).now_gpus.tolist() == [4]
    late = planned([only_four], [100.0], [49.0])
    assert (late.type_idx.tolist(), late.now_gpus.tolist()) == ([-1], [0])


def test_a_job_goes_to_the_next_type_where_the_first_is_full() -> None:
    types = [of_type([1.0], 1, 2), of_type([1.0], 1, 2)]
    shares = planned(types, [50.0, 50.0], [50.0, 50.0])
    assert sorted(shares.type_idx.tolist()) == [0, 1]


@pytest.mark.parametrize("seed", range(20))
def test_on_one_gpu_no_set_of_jobs_in_time_is_larger(seed: int) -> None:
    """Moore's rule is exact there: every subset is tried, in order of due times."""
    rng = np.random.default_rng(seed)
    work, due_s = rng.integers(1, 20, 7), rng.integers(5, 50, 7)
    shares = planned([of_type([1.0], 1, 7)], work, due_s)
    order = np.argsort(due_s)

    def fits(chosen: Any) -> bool:
        rows = [j for j in order if j in chosen]
        return bool((np.cumsum(work[rows]) <= due_s[rows]).all())

    most = max(k for k in range(8) if any(fits(c) for c in combinations(range(7), k)))
    on_time = np.flatnonzero(shares.type_idx >= 0)
    assert fits(set(on_time.tolist()))
    assert len(on_time) == most
