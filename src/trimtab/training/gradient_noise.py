"""Statistical efficiency: how much a larger batch helps, from the noise of the gradient.

Idea: at batch M = s B an iteration makes as much progress as gain = (var + sqr) / (var / s + sqr) iterations
at the initial batch B; sqr and var are squared norm and variance of the gradient.
Source: McCandlish et al., An Empirical Model of Large-Batch Training, 2018; Johnson et al., AdaScale SGD,
2020; Qiao et al., Pollux, OSDI 2021, §3.1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trimtab.domain.application_profile import ApplicationProfile
from trimtab.domain.training_jobs import Floats


@dataclass(frozen=True, slots=True)
class BatchCurve:
    """The progress at one global batch, by epoch."""

    grad_sqr: Floats  # [epochs]
    grad_var: Floats  # [epochs]
    gain: Floats  # [epochs] progress of an iteration
    iterations: Floats  # [epochs] done at the end of each


class GradientNoise:
    """The curves of an application; linear between two measured batches. Each answer is kept."""

    def __init__(self, profile: ApplicationProfile) -> None:
        self._profile = profile
        self._known: dict[float, BatchCurve] = {}

    def at(self, batch: float) -> BatchCurve:
        """The curves of this global batch; beyond the measured batches those of the nearest."""
        if batch not in self._known:
            self._known[batch] = self._curve(batch)
        return self._known[batch]

    def _curve(self, batch: float) -> BatchCurve:
        profile = self._profile
        sqr, var = self._between(profile.grad_sqr, batch), self._between(profile.grad_var, batch)
        scale = batch / profile.init_batch
        gain = (var + sqr) / (var / scale + sqr)
        return BatchCurve(sqr, var, gain, self._between(profile.iterations, batch))

    def _between(self, values: Floats, batch: float) -> Floats:
        batches = self._profile.batches
        high = int(np.searchsorted(batches, batch))
        if high < len(batches) and batches[high] == batch:
            return values[high]
        if high in (0, len(batches)):
            return values[max(high - 1, 0)]
        low, width = high - 1, batches[high] - batches[high - 1]
        between: Floats = (
            (batch - batches[low]) * values[high] + (batches[high] - batch) * values[low]
        ) / width
        return between
