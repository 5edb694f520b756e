"""The noise of a gradient from norms that training has anyway: of parts of a batch, and of the whole.

With E|g_b|² = |G|² + S / b for the gradient of b samples, two sizes of batch give |G|² and S. Both are
averaged over steps, each by itself, because their ratio is biased.
Source: McCandlish et al., An Empirical Model of Large-Batch Training, 2018, appendix A.1.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class NoiseScale:
    """Moving averages of a job."""

    keep: float = 0.95  # weight of the past, once there is one
    steps: int = 0
    grad_sqr: float = 0.0
    sample_var: float = 0.0  # S: variance of the gradient of one sample

    def seen(self, small_sqr: float, small: float, big_sqr: float, big: float) -> dict[str, float]:
        """A step: mean squared norms of gradients of `small` and of `big` samples.

        Returns `grad_sqr` and `grad_var`, the variance of the gradient of `big` samples.
        """
        grad_sqr = (big * big_sqr - small * small_sqr) / (big - small)
        sample_var = (small_sqr - big_sqr) / (1.0 / small - 1.0 / big)
        self.steps += 1
        weight = max(1.0 / self.steps, 1.0 - self.keep)
        self.grad_sqr += weight * (grad_sqr - self.grad_sqr)
        self.sample_var += weight * (sample_var - self.sample_var)
        return {"grad_sqr": max(self.grad_sqr, 0.0), "grad_var": max(self.sample_var, 0.0) / big}
