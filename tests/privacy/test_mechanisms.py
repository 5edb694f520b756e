"""Noise against its probability mass function; consistency against a search."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import minimize
from scipy.stats import chisquare

from trimtab.privacy.mechanisms import consistent, gaussian_noise


def test_noise_is_the_discrete_gaussian() -> None:
    """A fit that fails one run in a hundred million: the generator takes no seed."""
    sigma, many = 2.5, 40_000
    drawn = gaussian_noise(np.full((many // 4, 4), 7, np.int64), sigma) - 7
    assert drawn.shape == (many // 4, 4)
    support = np.arange(-40, 41)
    mass = np.exp(-0.5 * (support / sigma) ** 2)
    near = slice(33, 48)  # -7 to 7, the rest in two cells
    expected = np.array([mass[:33].sum(), *mass[near], mass[48:].sum()]) / mass.sum()
    counts = np.histogram(np.clip(drawn, -8, 8), np.arange(-8.5, 9.0))[0]
    assert chisquare(counts, expected * many).pvalue > 1e-8


def test_noise_differs_each_time() -> None:
    counts = np.zeros(64, np.int64)
    assert (gaussian_noise(counts, 5.0) != gaussian_noise(counts, 5.0)).any()


@given(arrays(np.int64, st.integers(1, 6), elements=st.integers(-20, 50)), st.integers(1, 100))
def test_consistent_counts_are_counts_with_the_given_sum(noisy: np.ndarray, total: int) -> None:
    found = consistent(noisy, total)
    assert (found >= 0.0).all()
    assert found.sum() == pytest.approx(total)


@pytest.mark.parametrize("noisy", [[5, -3, 8], [1, 1, 1], [-4, -9, 30], [0, 2, 0]])
def test_consistent_counts_are_the_nearest(noisy: list[int]) -> None:
    """The projection onto counts of that sum, by a general solver."""
    given_counts = np.array(noisy)
    search = minimize(
        lambda x: ((x - given_counts) ** 2).sum(),
        np.full(3, 4.0),
        bounds=[(0.0, None)] * 3,
        constraints={"type": "eq", "fun": lambda x: x.sum() - 12.0},
    )
    np.testing.assert_allclose(consistent(given_counts, 12.0), search.x, atol=1e-4)


def test_consistent_counts_of_nothing() -> None:
    assert consistent(np.array([3, -2]), 0.0).tolist() == [0.0, 0.0]
