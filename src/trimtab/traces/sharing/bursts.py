"""How bursty arrivals are at each time scale: halves of an interval, halves of these, and so on.

An interval with c arrivals splits them between its halves: evenly but for chance where they are Poisson,
unevenly where they come in bursts of that length. The halves' shares are modelled as Beta(a, a), one a for
each level; the mean of ((l - r)² - c) / (c (c - 1)) over intervals with l + r = c arrivals is the variance of
the difference of the shares, 1 / (2 a + 1). A multiplicative cascade draws arrivals back.

Source: conservative cascades of Riedi, Crouse, Ribeiro and Baraniuk, "A multifractal wavelet model with
application to network traffic", IEEE Transactions on Information Theory 45 (1999), §III, with beta
multipliers. Deviation: the variance is a ratio of two bounded sums, so that one arrival changes each only so
much.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

FINEST_S: Final = 0.25
LEVELS_MAX: Final = 14
UNIT: Final = 64  # of both sums, which are whole numbers
WEIGHT_MAX: Final = 16
SENSITIVITY: Final = 4.0 * UNIT  # L2, most that one arrival changes both sums of a level by


def levels_of(width_s: float) -> int:
    """How many times an interval of this length is halved."""
    levels = 0
    while levels < LEVELS_MAX and width_s / 2 ** (levels + 1) >= FINEST_S:
        levels += 1
    return levels


def split_sums(arrival_s: NDArray[np.float64], width_s: float, levels: int) -> NDArray[np.int64]:
    """Weighted sums of the uneven parts, and of the weights, at each level from the widest, [levels, 2]."""
    leaf = np.floor(arrival_s / (width_s / 2**levels)).astype(np.int64)
    sums = np.zeros((levels, 2), np.int64)
    for level in range(levels):
        half, counts = np.unique(leaf >> (levels - 1 - level), return_counts=True)
        _, first, whole = np.unique(half >> 1, return_index=True, return_inverse=True)
        c = np.bincount(whole, counts, len(first)).astype(np.int64)
        left = np.bincount(whole, np.where(half & 1, 0, counts), len(first)).astype(np.int64)
        c, left = c[c > 1], left[c > 1]
        weight = np.minimum(c - 1, WEIGHT_MAX)
        uneven = weight * ((2 * left - c) ** 2 - c) / (c * (c - 1))
        sums[level] = np.rint(UNIT * uneven).sum(), UNIT * weight.sum()
    return sums


def variances(noisy: NDArray[np.int64], sigma: float) -> NDArray[np.float64]:
    """Variance of the difference of the halves' shares at each level; 0 where noise may be all of it."""
    uneven, weight = noisy[:, 0].astype(np.float64), np.maximum(noisy[:, 1], 1).astype(np.float64)
    return np.where(uneven > 2.0 * sigma, np.clip(uneven / weight, 0.0, 0.98), 0.0)


def drawn_arrivals(
    counts: NDArray[np.int64], width_s: float, variance: NDArray[np.float64], rng: np.random.Generator
) -> NDArray[np.float64]:
    """Arrivals of intervals with these counts, in order, [sum of the counts]."""
    at, counts = np.flatnonzero(counts), counts[counts > 0]
    for level_variance in variance:
        share = np.full(len(at), 0.5)
        if level_variance > 0.0:
            a = (1.0 / level_variance - 1.0) / 2.0
            share = rng.beta(a, a, len(at))
        left = rng.binomial(counts, share)
        at, counts = np.concatenate([2 * at, 2 * at + 1]), np.concatenate([left, counts - left])
        at, counts = at[counts > 0], counts[counts > 0]
    finest_s = width_s / 2 ** len(variance)
    where = np.repeat(at, counts)
    return np.sort((where + rng.random(len(where))) * finest_s)
