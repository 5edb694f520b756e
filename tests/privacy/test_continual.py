"""The binary mechanism: against plain sums without noise, and its cost and variance by brute force."""

from __future__ import annotations

import numpy as np
import pytest

from trimtab.privacy.accounting import epsilon_of, rho_of, rho_of_sigma
from trimtab.privacy.continual import RunningTotals
from trimtab.privacy.mechanisms import Counts


def no_noise(counts: Counts, sigma: float) -> Counts:
    return counts


@pytest.mark.parametrize("windows", [1, 2, 7, 8, 100])
def test_without_noise_the_totals_are_plain_sums(windows: int) -> None:
    drawn = np.random.default_rng(windows).integers(0, 1000, (windows, 3))
    totals = RunningTotals(windows, [1, 1, 10], 0.5, no_noise)
    for window, expected in zip(drawn, drawn.cumsum(axis=0), strict=True):
        assert (totals.add(window) == expected).all()


@pytest.mark.parametrize("windows", [1, 5, 12, 64])
def test_no_request_is_in_more_noisy_sums_than_are_paid_for(windows: int) -> None:
    """All that is released is made of noisy sums; a request in one window changes few of them."""
    rho, most = 0.7, 4
    for place in range(windows):
        seen: list[tuple[float, float]] = []

        def noting(counts: Counts, sigma: float, seen: list[tuple[float, float]] = seen) -> Counts:
            seen.append((float(counts[0]), sigma))
            return counts

        totals = RunningTotals(windows, [1, most], rho, noting)
        for k in range(windows):
            totals.add(np.array([1, most]) * (k == place))
        cost = sum(rho_of_sigma(sigma, sensitivity=changed) for changed, sigma in seen)
        assert cost <= rho * (1.0 + 1e-9)
        assert totals.spent_rho == pytest.approx(rho)
    assert cost > 0.0


def test_the_variance_of_a_total_grows_with_the_bits_of_its_windows() -> None:
    draws = np.random.default_rng(1)

    def gaussian(counts: Counts, sigma: float) -> Counts:
        return np.rint(counts + draws.normal(0.0, sigma, counts.shape)).astype(np.int64)

    released = []
    for _ in range(2000):
        totals = RunningTotals(7, [1], 0.01, gaussian)
        released.append([int(totals.add(np.zeros(1, np.int64))[0]) for _ in range(7)])
    measured = np.std(released, axis=0)
    one = RunningTotals(7, [1], 0.01, gaussian).sigmas[0]
    bits = [k.bit_count() for k in range(1, 8)]
    assert measured == pytest.approx(one * np.sqrt(bits), rel=0.08)  # five standard errors
    assert abs(np.mean(released)) < 5 * one * np.sqrt(3 / 2000)


def test_a_spent_budget_releases_nothing() -> None:
    rho = rho_of(1.0, 1e-6)
    totals = RunningTotals(3, [1], rho)
    costs = []
    for _ in range(3):
        assert not totals.is_spent
        totals.add(np.ones(1, np.int64))
        costs.append(epsilon_of(totals.spent_rho, 1e-6))
    assert totals.is_spent
    assert costs[0] < costs[1] == costs[2] == pytest.approx(1.0, rel=1e-3)
    with pytest.raises(ValueError, match="spent after 3"):
        totals.add(np.ones(1, np.int64))
