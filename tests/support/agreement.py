"""When a simulation agrees with a formula: the formula lies in the confidence interval over seeds.

The interval is at 99 % and no wider than ± 2.5 % of the value. A bias of 5 % then lies two half-widths off,
and goes unnoticed with probability P(T > t) < 1 % for Student's T: the power is above 99 %. Seeds are fixed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import stats

CONFIDENCE = 0.99
RESOLUTION = 0.025


def assert_agrees(samples: Sequence[float], expected: float, *, bias_frac: float = 0.0) -> None:
    """One sample per seed; `bias_frac` is what the formula itself may be off (an infinite system's limit)."""
    values = np.asarray(samples)
    t = stats.t.ppf(0.5 + CONFIDENCE / 2, len(values) - 1)
    half_width = t * values.std(ddof=1) / np.sqrt(len(values))
    assert half_width <= RESOLUTION * expected, f"± {half_width / expected:.3f}: too few requests to tell"
    off = abs(values.mean() - expected)
    assert off <= half_width + bias_frac * expected, (
        f"{values.mean():.5g} ± {half_width:.2g}, not {expected:.5g}"
    )
