"""Noise on counts, exact in integers, so that no bit of floating point tells the count.

The noise is the discrete Gaussian of Canonne, Kamath and Steinke, NeurIPS 2020, drawn by OpenDP from the
operating system's generator. It takes no seed: who knows the seed takes the noise away. Tests and benchmarks
pass a `Noise` of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from trimtab.privacy.library import opendp

Counts: TypeAlias = NDArray[np.int64]
Noise: TypeAlias = Callable[[Counts, float], Counts]  # counts of any shape and σ → noisy counts of that shape


def gaussian_noise(counts: Counts, sigma: float) -> Counts:
    """The counts, each with discrete Gaussian noise of scale σ. Takes some 30 µs for each."""
    dp = opendp()
    vectors = dp.vector_domain(dp.atom_domain(T="i64"))
    add = dp.m.make_gaussian(vectors, dp.l2_distance(T="f64"), scale=sigma)
    return np.array(add([int(count) for count in counts.flat]), np.int64).reshape(counts.shape)


def consistent(noisy: Counts, total: float) -> NDArray[np.float64]:
    """The nearest counts with the sum `total`, none below 0: all are shifted by the same, then cut at 0.

    Source: Wang et al., "Locally differentially private frequency estimation with consistency", NDSS 2020,
    method Norm-Sub.
    """
    counts = np.sort(noisy.astype(np.float64).ravel())[::-1]
    if total <= 0.0 or not len(counts):
        return np.zeros(noisy.shape)
    shifts = (np.cumsum(counts) - total) / np.arange(1, len(counts) + 1)
    kept = int(np.flatnonzero(counts > shifts)[-1])
    nearest: NDArray[np.float64] = np.maximum(noisy - shifts[kept], 0.0)
    return nearest
