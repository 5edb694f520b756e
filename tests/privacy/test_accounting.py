"""Accounting against published formulas and exact values that share no code with it."""

from __future__ import annotations

import math

import pytest
from scipy.optimize import brentq, minimize_scalar
from scipy.stats import norm

from trimtab.privacy.accounting import epsilon_of, rho_of, rho_of_sigma, sigma_of, threshold_of

RHOS = (1e-4, 0.01, 0.1, 1.0, 5.0)
DELTA = 1e-6


def bun_steinke(rho: float) -> float:
    """Proposition 1.3 of Bun and Steinke 2016."""
    return rho + 2.0 * math.sqrt(rho * math.log(1.0 / DELTA))


def balle_wang(sigma: float) -> float:
    """The exact ε of Gaussian noise at sensitivity 1: Theorem 8 of Balle and Wang 2018, solved for ε."""

    def delta(epsilon: float) -> float:
        a, b = 0.5 / sigma, epsilon * sigma
        return float(norm.cdf(a - b) - math.exp(epsilon) * norm.cdf(-a - b))

    return float(brentq(lambda epsilon: delta(epsilon) - DELTA, 0.0, 100.0))


def canonne_kamath_steinke(rho: float, epsilon: float) -> float:
    """δ of ρ-zCDP at ε: Corollary 13 of Canonne, Kamath and Steinke 2020, minimised over the order."""

    def log_delta(log_order: float) -> float:
        order = 1.0 + math.exp(log_order)
        exponent = (order - 1.0) * (order * rho - epsilon) + order * math.log1p(-1.0 / order)
        return exponent - math.log(order - 1.0)

    return math.exp(minimize_scalar(log_delta, bounds=(-8.0, 12.0), method="bounded").fun)


@pytest.mark.parametrize("rho", RHOS)
def test_conversion_lies_between_the_exact_value_and_the_first_published_bound(rho: float) -> None:
    assert balle_wang(sigma_of(rho, sensitivity=1.0)) <= epsilon_of(rho, DELTA) <= bun_steinke(rho)


@pytest.mark.parametrize("rho", RHOS)
def test_conversion_is_the_tight_published_one(rho: float) -> None:
    assert canonne_kamath_steinke(rho, epsilon_of(rho, DELTA)) == pytest.approx(DELTA, rel=1e-3)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_the_greatest_cost_of_a_promise_keeps_it(epsilon: float) -> None:
    rho = rho_of(epsilon, DELTA)
    assert 0.999 * epsilon <= epsilon_of(rho, DELTA) <= epsilon
    assert epsilon_of(1.001 * rho, DELTA) > epsilon


def test_nothing_costs_nothing() -> None:
    assert epsilon_of(0.0, DELTA) == 0.0


def test_costs_of_noise_add_up_as_if_drawn_at_once() -> None:
    """Two releases with noise σ cost as one with noise σ/√2."""
    both = 2.0 * rho_of_sigma(3.0, sensitivity=1.0)
    assert sigma_of(both, sensitivity=1.0) == pytest.approx(3.0 / math.sqrt(2.0))


@pytest.mark.parametrize("contribution", [1, 5])
def test_a_key_of_one_unit_is_hidden(contribution: int) -> None:
    """By a sum over the discrete Gaussian: the least likely to show are keys with one row each."""
    sigma, delta = 7.0, 1e-5
    threshold = threshold_of(sigma, delta, contribution=contribution)

    def shown(counted: int, above: int) -> float:
        weights = {x: math.exp(-0.5 * (x / sigma) ** 2) for x in range(-200, 201)}
        return sum(w for x, w in weights.items() if counted + x > above) / sum(weights.values())

    assert shown(contribution, threshold) <= delta
    assert contribution * shown(1, threshold) <= delta
    assert shown(contribution, threshold - 3) > delta / contribution
