"""Optimus' convergence model: how a loss falls with the steps, and when it has converged.

    loss(k) = 1 / (β0 · k + β1) + β2,   β ≥ 0

Source: Peng et al., Optimus, EuroSys 2018, §3.1, equation 1, and its published estimator.
Deviations: for each of a grid of values of β2 the inverse of loss − β2 is a line in k; its non-negative least
squares give β0 and β1, and the β2 with the least squared error of the loss wins. The source gives the same
formula to a general solver. Later points weigh more, four times for each third, as there.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import nnls

from trimtab.domain.training_jobs import Floats
from trimtab.errors import UsageError

FLOORS = 100  # values of β2 that are tried
REFIT = 1.2  # a loss is fitted anew when there are so many times the points
EXTRA_EPOCHS = 20  # the source's answer where fewer than three points are known


@dataclass(frozen=True)
class LossCurve:
    """A fitted curve of the loss."""

    slope: float  # β0
    start: float  # β1
    floor: float  # β2

    def loss(self, steps: Floats) -> Floats:
        """The loss after these steps."""
        return np.asarray(1.0 / (self.slope * np.asarray(steps, np.float64) + self.start) + self.floor)

    def steps_to_converge(self, threshold: float, window: float) -> float:
        """Steps after which the loss falls by less than `threshold` over a window of steps; inf = never."""
        if self.slope <= 0:
            return 0.0
        # 1/(x) − 1/(x + c) < t, with x = β0 k + β1 and c = β0 window: x² + c x − c/t > 0
        c = self.slope * window
        x = (-c + (c * c + 4 * c / threshold) ** 0.5) / 2
        return max((x - self.start) / self.slope, 0.0)


@dataclass
class FittedCurves:
    """Curves of the losses of jobs, each fitted anew when its points have grown by a fifth."""

    fits: dict[int, tuple[int, LossCurve]] = field(default_factory=dict)  # job → points, curve

    def of(self, job: int, losses: Floats) -> LossCurve:
        """The curve of a job's losses [epochs], over that of the largest; 3 or more."""
        n = len(losses)
        points, curve = self.fits.get(job, (0, None))
        if curve is None or n >= REFIT * points:
            curve = fit_loss(np.arange(1.0, n + 1.0), losses / losses.max())
            self.fits[job] = (n, curve)
        return curve


def fit_loss(steps: Floats, losses: Floats) -> LossCurve:
    """The curve of a loss. Raises UsageError for fewer than three points or a loss that is not positive."""
    if len(steps) < 3:
        raise UsageError("too few points of a loss", value=len(steps), expected="3 or more")
    if not (np.isfinite(losses).all() and (losses > 0).all()):
        raise UsageError("no loss", value=float(np.min(losses)), expected="finite numbers above 0")
    third = np.arange(len(steps)) * 3 // len(steps)
    weight = np.asarray(4.0**third, np.float64)
    lowest = float(losses.min())
    found = [_with_floor(steps, losses, weight, lowest * k / FLOORS) for k in range(FLOORS)]
    return min(found, key=lambda pair: pair[0])[1]


def _with_floor(steps: Floats, losses: Floats, weight: Floats, floor: float) -> tuple[float, LossCurve]:
    gap = losses - floor
    scale = weight * gap * gap  # of an error of the inverse, so that errors of the loss count
    terms = np.column_stack([steps, np.ones(len(steps))]) * scale[:, None]
    (slope, start), _ = nnls(terms, scale / gap)
    if slope <= 0 and start <= 0:
        return np.inf, LossCurve(0.0, 1.0, floor)
    curve = LossCurve(float(slope), float(max(start, 1e-12)), floor)
    return float((weight * (curve.loss(steps) - losses) ** 2).sum()), curve
