"""Hazards, outages and restarts against formulas and draws."""

from __future__ import annotations

import math

import numpy as np
import pytest

from trimtab.compiled.kernel import interpreted
from trimtab.domain.view import OUTAGE
from trimtab.forecast.availability import hazards_per_s, next_outages_s, with_restarts_s


def test_hazards_are_posterior_means() -> None:
    """Group 0: 3 failures in 300 s, so prior Gamma(1, 100); group 1 never failed."""
    found = hazards_per_s([3, 0, 0], [100.0, 200.0, 50.0], [0, 0, 1])
    assert found == pytest.approx([(1 + 3) / (100 + 100), (1 + 0) / (100 + 200), 0.0])


def test_hazards_come_near_the_true_rates_and_beat_the_nodes_own_counts(rng: np.random.Generator) -> None:
    true = rng.gamma(1.0, 0.01, 2_000)
    failures = rng.poisson(true * 60.0)
    found = hazards_per_s(failures, np.full(2_000, 60.0), np.zeros(2_000, int))
    alone = failures / 60.0
    assert np.mean((found - true) ** 2) < 0.75 * np.mean((alone - true) ** 2)
    assert found.mean() == pytest.approx(0.01, rel=0.1)


def test_the_next_outage_is_the_first_that_is_not_over() -> None:
    calendar = np.array([(50.0, 60.0, 0), (5.0, 9.0, 0), (20.0, 30.0, 0), (1.0, 99.0, 2)], OUTAGE)
    begin_s, end_s = next_outages_s(calendar, 3, 25.0)
    assert begin_s.tolist() == [20.0, np.inf, 1.0]
    assert end_s.tolist() == [30.0, np.inf, 99.0]
    assert np.isinf(next_outages_s(calendar[:0], 3, 25.0)[0]).all()


@pytest.mark.parametrize("risk", [0.0, 0.01, 0.1, 0.4])
def test_restarts_cost_what_the_formula_says(risk: float) -> None:
    exact = 8.0 if risk == 0.0 else 8.0 * math.expm1(risk) / risk
    assert interpreted(with_restarts_s)(8.0, risk / 8.0) == pytest.approx(exact, rel=1e-3)


def test_restarts_cost_what_draws_say(rng: np.random.Generator) -> None:
    """Work of 3 s, a failure every 10 s on average."""
    total = np.zeros(20_000)
    left = np.ones(20_000, bool)
    while left.any():
        gap = rng.exponential(10.0, 20_000)
        total += np.where(left, np.minimum(gap, 3.0), 0.0)
        left &= gap < 3.0
    assert interpreted(with_restarts_s)(3.0, 0.1) == pytest.approx(total.mean(), rel=0.02)
