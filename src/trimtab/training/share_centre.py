"""Shares of time within bounds: of all that satisfy them, the point far from each bound.

Idea: several policies leave most shares free between a least one and 1. The analytic centre maximises
Σ log(x − least) + Σ log x + Σ log(1 − x) + log(GPUs − Σ gpus x); interior-point solvers such as ECOS, which
the published simulators use, end near it.
Source: Sonnevend, An "analytical centre" for polyhedrons and new classes of global algorithms for linear
programming, 1986; from memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trimtab.compiled.kernel import kernel
from trimtab.domain.training_jobs import Floats

_STEPS = 60  # of each bisection


def central_shares(least: Floats, gpus: Floats, capacity: float) -> Floats:
    """Shares [jobs] of one type of GPU with the given least ones, `gpus` each, in so many GPUs."""
    least = np.minimum(least, 1.0)
    share, open_rows = least.copy(), np.flatnonzero(least < 1.0 - 1e-9)
    room = capacity - float((gpus * least).sum())
    if room <= 1e-9 * capacity or not len(open_rows):
        return share
    low, weight = least[open_rows], gpus[open_rows]
    rest = capacity - float((gpus * least).sum()) + float((weight * low).sum())
    cheap, dear = 0.0, 1e12  # price of a GPU's time: 1 / what is left of it
    for _ in range(2 * _STEPS):
        if dear <= cheap * (1.0 + 1e-15):
            break
        price = np.sqrt(cheap * dear) if cheap > 0 else dear * 1e-6
        left = rest - float((weight * _at_price(low, weight, price)).sum())
        if left > 0 and price * left >= 1.0:
            dear = price
        else:
            cheap = price
    share[open_rows] = _at_price(low, weight, dear)
    return share


def _at_price(least: Floats, gpus: Floats, price: float) -> Floats:
    """Where 1/(x − least) + 1/x − 1/(1 − x) = gpus · price, by bisection."""
    share = np.empty_like(least)
    _bisect(least, gpus * price, share)
    return share


@kernel
def _bisect(least: Any, cost: Any, share: Any) -> Any:
    for i in range(len(least)):
        low, high = least[i], 1.0
        for _ in range(_STEPS):
            x = 0.5 * (low + high)
            if x <= least[i] or (x < 1.0 and 1.0 / (x - least[i]) + 1.0 / x - 1.0 / (1.0 - x) > cost[i]):
                low = x
            else:
                high = x
        share[i] = low
    return 0
