"""Running totals that are released again and again: the binary mechanism.

Source: Chan, Shi and Song, "Private and continual release of statistics", ACM TISSEC 14(3), 2011, Algorithm
2. A total is the sum of at most one noisy partial sum for each bit of the number of windows. So a window is
in no more partial sums than the last number of windows has bits, and the noise of a total grows with the
logarithm of its windows, not with their number. Deviation: the noise is Gaussian and accounted as ρ of zCDP,
with a standard deviation for each column; the source has Laplace noise.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trimtab.privacy.accounting import sigma_of
from trimtab.privacy.mechanisms import Counts, Noise, gaussian_noise


class RunningTotals:
    """Totals of several columns over at most `windows` windows."""

    def __init__(
        self, windows: int, sensitivities: Sequence[int], rho: float, noise: Noise = gaussian_noise
    ) -> None:
        """`sensitivities`: by how much one unit of privacy changes each column, in all windows together.

        All releases together cost `rho`, a like part of it for each column and each level of partial sums.
        """
        levels = windows.bit_length()
        part = rho / (levels * len(sensitivities))
        self._windows, self._levels, self._rho, self._noise = windows, levels, rho, noise
        self.sigmas = [sigma_of(part, sensitivity=float(most)) for most in sensitivities]
        self._exact = np.zeros((levels, len(sensitivities)), np.int64)  # partial sums that are still open
        self._noisy = np.zeros_like(self._exact)
        self._n = 0

    @property
    def is_spent(self) -> bool:
        """Whether another release would cost more than the budget."""
        return self._n >= self._windows

    @property
    def spent_rho(self) -> float:
        """What the releases so far cost a unit of privacy at most."""
        return self._rho * self._n.bit_length() / self._levels

    def add(self, window: Counts) -> Counts:
        """Add the counts of the next window, and release the totals of all so far.

        Raises ValueError if the budget is spent.
        """
        if self.is_spent:
            raise ValueError(f"the budget is spent after {self._windows} windows")
        self._n += 1
        level = (self._n & -self._n).bit_length() - 1  # of the partial sum that ends with this window
        self._exact[level] = self._exact[:level].sum(axis=0) + window
        self._exact[:level], self._noisy[:level] = 0, 0
        for k, sigma in enumerate(self.sigmas):
            self._noisy[level, k] = self._noise(self._exact[level, k : k + 1], sigma)[0]
        totals: Counts = self._noisy.sum(axis=0)
        return totals
