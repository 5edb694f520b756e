"""Parameters fitted to a history, offline: smoothers by our own recursions, ARIMA by statsmodels.

statsmodels (extra `forecast`) takes seconds to import and to fit; only this module imports it, on first
use. The order comes from `arima`, whose recursion runs the fitted model.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import minimize

from trimtab.compiled.kernel import kernel
from trimtab.errors import MissingExtra
from trimtab.forecast.arima import Arima, is_stable, quick_arima
from trimtab.forecast.history import checked_history
from trimtab.forecast.mixture import Floats, Smoother
from trimtab.forecast.recursions import SEASON, smooth, smooth_ahead

STARTS = (0.1, 0.4, 0.8)
SMALL_ORDERS = ((0, 0), (1, 0), (0, 1), (1, 1), (2, 1))  # (p, q) that are always tried


@kernel
def squared_errors(history: Any, parameters: Any, period: int) -> float:
    """Sum of squared one-step errors of a smoother, after its first period."""
    state, made, total = np.zeros((SEASON + period, 1)), np.zeros(1), 0.0
    for step in range(len(history)):
        if step > period:
            smooth_ahead(state, parameters, step, 1, -np.inf, made)
            total += (history[step] - made[0]) ** 2
        smooth(state, parameters, step, history[step : step + 1])
    return total


def fit_smoother(name: str, history: Floats, *, has_trend: bool = False, period: int = 0) -> Smoother:
    """The smoother with the least squared one-step errors on a history [steps]. Raises UsageError."""
    values, seasons = checked_history(history), max(1, period)

    def row(x: Floats) -> Floats:
        alpha, trend, phi, season = x
        slope = (alpha * trend, phi) if has_trend else (0.0, 0.0)
        return np.array([alpha, *slope, season if period > 1 else 0.0])

    def loss(x: Floats) -> float:
        return float(squared_errors(values, row(x), seasons))

    bounds = [(0.0, 1.0), (0.0, 1.0), (0.8, 0.98), (0.0, 1.0)]
    found = [minimize(loss, (alpha, 0.1, 0.9, 0.1), method="Nelder-Mead", bounds=bounds) for alpha in STARTS]
    return Smoother(name, *map(float, row(min(found, key=lambda result: float(result.fun)).x)))


def fit_arima(history: Floats, order: tuple[int, int, int] | None = None) -> Arima:
    """ARIMA by maximum likelihood (statsmodels), by default of the order of least AICc.

    A series that is not differenced has a mean. Candidates are the order that `quick_arima` finds and
    `SMALL_ORDERS`, because a fit by regressions misses moving averages with a root near 1. Those with roots
    nearer to the unit circle than `MOST_ROOT` are left out. Raises UsageError, MissingExtra.
    """
    values = checked_history(history)
    if order is not None:
        return _likeliest(values, order)[1]
    quick = quick_arima(values)
    orders = dict.fromkeys([quick.order, *((p, quick.d, q) for p, q in SMALL_ORDERS)])
    fits = [_likeliest(values, each) for each in orders]
    return min(fits, key=lambda fit: (not is_stable(fit[1]), fit[0]))[1]


def _likeliest(values: Floats, order: tuple[int, int, int]) -> tuple[float, Arima]:
    """AICc and coefficients of the fit of an order."""
    try:
        from statsmodels.tsa.arima.model import ARIMA
    except ImportError:
        raise MissingExtra(
            "needs statsmodels", field="ARIMA", expected="pip install 'trimtab[forecast]'"
        ) from None
    import warnings

    d = order[1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a search that stopped early: the figures tell how good it is
        fit = ARIMA(values, order=order, trend="c" if d == 0 else "n").fit()
    mean = float(fit.params[0]) if d == 0 else 0.0
    return float(fit.aicc), Arima(tuple(map(float, fit.arparams)), d, tuple(map(float, fit.maparams)), mean)
