"""Private training keeps its promise; without noise an attack succeeds; accounting agrees with OpenDP's."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import beta

from trimtab.errors import UsageError
from trimtab.learn.private_training import Descent, private_fit
from trimtab.privacy.accounting import epsilon_of

DELTA = 1e-3


def fitted(features, targets, **given):
    return private_fit(features, targets, np.zeros(6), rows=float(len(targets)), **given)


def rows(n, seed, numbers=6):
    """Rows between two numbers each, and targets of known weights with noise."""
    draw = np.random.default_rng(seed)
    at, part = draw.integers(0, numbers - 1, n), draw.random(n)
    features = np.zeros((n, numbers))
    features[np.arange(n), at], features[np.arange(n), at + 1] = 1.0 - part, part
    return features, features @ np.arange(numbers) * 0.3 + 0.1 * draw.normal(size=n)


def test_without_noise_it_comes_to_least_squares():
    features, targets = rows(3_000, 0)
    best = np.linalg.lstsq(features, targets, rcond=None)[0]
    found = fitted(features, targets, epsilon=np.inf, delta=1e-6, descent=Descent(clip=1e9), seed=0)
    assert found.weights == pytest.approx(best, abs=0.02)
    assert (found.epsilon, found.noise_multiplier) == (np.inf, 0.0)


def test_more_privacy_is_more_error():
    features, targets = rows(1_000, 1)
    far = []
    for epsilon in (0.2, 1.0, 8.0):
        fits = [
            fitted(features, targets, epsilon=epsilon, delta=1e-4, descent=Descent(50), seed=seed)
            for seed in range(3)
        ]
        assert all(0.97 * epsilon < fit.epsilon <= epsilon for fit in fits)
        far.append(np.mean([((features @ fit.weights - targets) ** 2).mean() for fit in fits]))
    assert far == sorted(far, reverse=True)


def test_steps_over_all_rows_cost_what_gaussian_releases_cost():
    """Without subsampling the noise of k steps is k Gaussian releases, which zCDP adds up."""
    features, targets = rows(20, 2)
    descent = Descent(steps=7, share_frac=1.0)
    found = fitted(features, targets, epsilon=2.0, delta=1e-5, descent=descent, seed=0)
    rho = descent.steps / (2.0 * found.noise_multiplier**2)
    assert found.epsilon == pytest.approx(epsilon_of(rho, 1e-5), rel=1e-3)


def _advantage(epsilon):
    """Interval, 99 %, of how much better than chance an attacker tells whether a row was in the training."""
    features, targets = rows(30, 3)
    features[0], targets[0] = (0, 0, 0, 0, 0, 1), 40.0  # stands out: the worst case
    times = 200
    descent = Descent(steps=2, share_frac=1.0, clip=1.0 if epsilon < np.inf else 1e9)
    scores = [
        [
            fitted(
                features[without:],
                targets[without:],
                epsilon=epsilon,
                delta=DELTA,
                descent=descent,
                seed=2 * seed + without,
            ).weights[5]
            for seed in range(times)
        ]
        for without in (0, 1)
    ]
    at = np.median(scores)
    told, wrong = ((np.array(each) > at).sum() for each in scores)
    low, high = (
        [beta.ppf(q, k + (q > 0.5), times - k + (q < 0.5)) for k in (told, wrong)] for q in (0.005, 0.995)
    )
    return low[0] - high[1], high[0] - low[1]


def test_an_attacker_gains_no_more_than_epsilon_allows():
    """By the definition, true positives ≤ e^ε × false positives + δ, so the difference has a bound."""
    bound = (math.e - 1.0 + 2.0 * DELTA) / (math.e + 1.0)
    assert _advantage(1.0)[1] <= bound


def test_without_noise_the_same_attack_succeeds():
    assert _advantage(np.inf)[0] > 0.9


@pytest.mark.parametrize("epsilon", [0.0, -1.0, np.nan])
def test_an_epsilon_that_promises_nothing_is_refused(epsilon):
    with pytest.raises(UsageError, match="epsilon: can't be kept"):
        fitted(*rows(10, 0), epsilon=epsilon, delta=1e-5)


@pytest.mark.parametrize("delta", [0.0, 0.1, np.nan])
def test_a_delta_as_large_as_one_row_is_refused(delta):
    with pytest.raises(UsageError, match=r"delta: promises nothing .* expected above 0 and below 1/10"):
        fitted(*rows(10, 0), epsilon=1.0, delta=delta)
