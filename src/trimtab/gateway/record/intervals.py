"""Confidence intervals without a statistics library: none may be loaded in the data process."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

# Two-sided 95 % quantiles of Student's t for 1 … 30 degrees of freedom.
_T95: Final = (
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281,
    2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860,
    2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423,
)  # fmt: skip
_Z95: Final = 1.959963985


def student_t95(degrees: int) -> float:
    """Two-sided 95 % quantile of Student's t.

    From a table, beyond 30 degrees by the expansion in Abramowitz & Stegun, 26.7.5.
    """
    if degrees <= len(_T95):
        return _T95[degrees - 1]
    z = _Z95
    first, second = (z**3 + z) / 4.0, (5.0 * z**5 + 16.0 * z**3 + 3.0 * z) / 96.0
    return z + first / degrees + second / degrees**2


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean and the half width of its 95 % interval; None where that is unknown."""

    mean: float
    ci95: float | None


def mean_interval(values: Sequence[float]) -> Interval:
    """Of independent values; at least one."""
    n = len(values)
    mean = math.fsum(values) / n
    if n < 2:
        return Interval(mean, None)
    variance = math.fsum((value - mean) ** 2 for value in values) / (n - 1)
    return Interval(mean, student_t95(n - 1) * math.sqrt(variance / n))


class BatchMeans:
    """Mean of an endless series of dependent values, with an interval, in constant memory.

    Values go into 20 to 39 batches of equal size; once there are 40, neighbours are joined. The means of long
    batches are nearly independent. Source: A. M. Law, "Simulation Modeling and Analysis", §9.5.3; the joining
    after A. M. Law and J. S. Carson, "A sequential procedure for determining the length of a steady-state
    simulation", Operations Research 27(5), 1979.
    """

    MOST = 40

    def __init__(self) -> None:
        self.count = 0
        self._total = 0.0
        self._size = 1  # values in a batch
        self._open, self._n_open = 0.0, 0
        self._sums: list[float] = []

    def add(self, value: float) -> None:
        """The next value."""
        self.add_all((value,))

    def add_all(self, values: Sequence[float]) -> None:
        """The next values."""
        self.count += len(values)
        self._total = sum(values, self._total)
        while values:
            part, values = values[: self._size - self._n_open], values[self._size - self._n_open :]
            self._open, self._n_open = sum(part, self._open), self._n_open + len(part)
            if self._n_open == self._size:
                self._close()

    def _close(self) -> None:
        """A batch is whole."""
        self._sums.append(self._open)
        self._open, self._n_open = 0.0, 0
        if len(self._sums) == self.MOST:
            self._sums = [a + b for a, b in zip(self._sums[::2], self._sums[1::2], strict=True)]
            self._size *= 2

    def interval(self) -> Interval:
        """Mean of all values, and the interval by the whole batches; none before there are 20."""
        if self.count == 0:
            return Interval(math.nan, None)
        mean = self._total / self.count
        if len(self._sums) < self.MOST // 2:
            return Interval(mean, None)
        return Interval(mean, mean_interval([total / self._size for total in self._sums]).ci95)
