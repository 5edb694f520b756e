"""The network of pair speeds: what it learns, what it leaves alone, and its gradient by differences."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from trimtab.compiled.dense import n_weights
from trimtab.domain.service_loads import PairSpeeds, proportional_sharing
from trimtab.training.performance.pair_network import PairNetwork, predict, predicted_pairs, train


def drawn(curves: int = 12) -> tuple[PairSpeeds, Any]:
    """Pairs whose shares follow from two numbers of each curve, and a profile that tells one of them."""
    rng = np.random.default_rng(5)
    busy, weight = rng.uniform(0.3, 1.0, curves), rng.uniform(0.0, 0.5, curves)
    kept = np.clip(1.0 - 0.6 * busy[:, None] * busy - weight[None, :] * busy[:, None], 0.05, 1.0)
    kept[0, 1] = kept[1, 0] = 0.0
    return PairSpeeds(busy, np.array([1]), kept[None, None]), np.column_stack([weight, rng.random(curves)])


def test_held_out_pairs_are_predicted_better_than_by_proportion() -> None:
    pairs, profile = drawn()
    kept = pairs.kept_frac[0, 0]
    known = np.random.default_rng(0).random(kept.shape) < 0.5
    known |= known.T
    rest = ~known & (kept > 0)
    guess = PairNetwork().kept(kept, known, pairs.busy_frac, profile)
    formula = proportional_sharing(pairs.busy_frac[:, None], pairs.busy_frac)
    assert np.abs(guess - kept)[rest].mean() < 0.5 * np.abs(formula - kept)[rest].mean()
    hidden = np.where(known, kept, 0.99)  # what is held out is not looked at
    assert np.array_equal(guess, PairNetwork().kept(hidden, known, pairs.busy_frac, profile))


def test_what_was_profiled_and_what_cannot_share_stays() -> None:
    pairs, profile = drawn()
    told = predicted_pairs(pairs, profile, 0.3).kept_frac[0, 0]
    kept = pairs.kept_frac[0, 0]
    assert told[0, 1] == told[1, 0] == 0.0
    assert (np.diagonal(told) == np.diagonal(kept)).all()
    assert 0.15 < (told == kept).mean() < 0.6
    assert ((told >= 0) & (told <= 1)).all()
    assert np.array_equal(predicted_pairs(pairs, profile, 1.0).kept_frac, pairs.kept_frac)


def test_one_step_goes_down_the_gradient() -> None:
    rng = np.random.default_rng(1)
    values, target = rng.normal(size=(7, 3)), rng.random(7)
    weights = rng.normal(size=n_weights(3, 2))

    def error(w: Any) -> float:
        found = np.zeros(7)
        predict(w, values, 2, found)
        return float(((found - target) ** 2).mean() / 2)

    moved = weights.copy()
    train(moved, values, target, 2, 1, 1e-3, 0.0)  # Adam's first step: the rate, against the gradient's sign
    for k in range(len(weights)):
        step = np.zeros(len(weights))
        step[k] = 1e-6
        slope = (error(weights + step) - error(weights - step)) / 2e-6
        assert moved[k] - weights[k] == pytest.approx(-1e-3 * np.sign(slope), rel=1e-3)


def test_pairs_that_nobody_measured_stay_unknown() -> None:
    pairs, profile = drawn()
    nothing = replace(pairs, kept_frac=np.full_like(pairs.kept_frac, np.nan))
    known = np.zeros((12, 12), bool)
    assert np.isnan(PairNetwork().filled(nothing, known, profile).kept_frac).all()
