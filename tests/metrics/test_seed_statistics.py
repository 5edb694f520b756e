"""Confidence over seeds against scipy.stats and a worked example."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from trimtab.errors import UsageError
from trimtab.metrics import mean_ci95, paired_difference_ci95


@pytest.mark.parametrize("seeds", [2, 3, 5, 30])
def test_interval_is_that_of_scipy(seeds: int) -> None:
    values = np.random.default_rng(seeds).normal(5, 2, seeds)
    low, high = stats.t.interval(0.95, seeds - 1, loc=values.mean(), scale=stats.sem(values))
    mean, half = mean_ci95(values)
    assert (mean - half, mean + half) == pytest.approx((low, high))


def test_interval_by_hand() -> None:
    mean, half = mean_ci95([1.0, 2.0, 3.0])
    assert mean == 2.0
    assert half == pytest.approx(4.3027 * 1.0 / math.sqrt(3), abs=1e-4)  # t(.975, 2) = 4.3027, s = 1


def test_equal_values_leave_no_doubt() -> None:
    assert mean_ci95([4.0, 4.0, 4.0]) == (4.0, 0.0)


def test_one_seed_has_no_interval() -> None:
    assert mean_ci95([7.0]) == (7.0, None)


def test_a_metric_undefined_in_one_seed_is_undefined() -> None:
    mean, half = mean_ci95([1.0, math.nan])
    assert math.isnan(mean)
    assert half is None


def test_pairs_are_those_of_the_paired_t_test() -> None:
    draw = np.random.default_rng(7)
    common = draw.normal(100, 20, 6)
    a, b = common + draw.normal(1, 0.5, 6), common + draw.normal(0, 0.5, 6)
    mean, half = paired_difference_ci95(a, b)
    interval = stats.ttest_rel(a, b).confidence_interval(0.95)
    assert (mean - half, mean + half) == pytest.approx((interval.low, interval.high))


def test_common_random_numbers_make_the_paired_interval_narrower() -> None:
    common = np.array([10.0, 50.0, 90.0, 30.0])
    paired = paired_difference_ci95(common + np.array([1.0, 1.1, 0.9, 1.0]), common)
    assert paired.mean == pytest.approx(1.0)
    assert paired.ci95 < mean_ci95(common).ci95 / 100


def test_no_seeds_and_unpaired_seeds_are_refused() -> None:
    with pytest.raises(UsageError, match="at least one"):
        mean_ci95([])
    with pytest.raises(UsageError, match="do not pair up"):
        paired_difference_ci95([1.0, 2.0], [1.0])
