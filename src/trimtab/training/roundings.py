"""How published simulators round times; each by name, so that a run says what it used.

exact     nothing is rounded
up        to the next full second (ElasticFlow)
nearest   to the nearest full second (Pollux, at the ends of epochs)
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trimtab.domain.training_jobs import Floats


def _exact(seconds: Floats) -> Floats:
    return seconds


def _up(seconds: Floats) -> Floats:
    return np.ceil(seconds - 1e-6)  # a sum that misses a full second by an error of rounding stays there


FINISH_ROUNDINGS: dict[str, Callable[[Floats], Floats]] = {
    "exact": _exact,
    "up": _up,
    "nearest": np.rint,
}
