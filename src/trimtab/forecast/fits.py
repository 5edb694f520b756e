"""Parameters fitted to a history, offline: smoothers by our own recursions, ARIMA by statsmodels.

statsmodels (extra `forecast`) takes seconds to import and to fit; it is imported here only, when it is asked
for. What it fits is run by the recursion of `arima_paths`: forecasts of an ARIMA(p, d, q) from its
coefficients and the errors of its own one-step forecasts, which are taken to be 0 before the start (Box and
Jenkins, Time Series Analysis, 1970).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import minimize

from trimtab.compiled.kernel import helper, kernel
from trimtab.errors import MissingExtra
from trimtab.forecast.history import checked_history
from trimtab.forecast.mixture import Floats, Smoother
from trimtab.forecast.recursions import SEASON, smooth, smooth_ahead

STARTS = (0.1, 0.4, 0.8)


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
    """The smoother of least squared one-step errors on a history [steps]. Raises UsageError."""
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


@dataclass(frozen=True, slots=True)
class Arima:
    """Coefficients: `ar` [p] and `ma` [q] of the series differenced `d` times, without a constant."""

    ar: tuple[float, ...]
    d: int
    ma: tuple[float, ...]


def fit_arima(history: Floats, order: tuple[int, int, int]) -> Arima:
    """ARIMA(p, d, q) by maximum likelihood (statsmodels). Raises UsageError, MissingExtra."""
    values = checked_history(history)
    try:
        from statsmodels.tsa.arima.model import ARIMA
    except ImportError:
        raise MissingExtra(
            "needs statsmodels", field="ARIMA", expected="pip install 'trimtab[forecast]'"
        ) from None
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a search that stopped early: the figures tell how good it is
        fit = ARIMA(values, order=order, trend="n").fit()
    return Arima(tuple(map(float, fit.arparams)), order[1], tuple(map(float, fit.maparams)))


def arima_paths(model: Arima, series: Floats, horizon: int) -> Floats:
    """Forecasts [steps, horizon]: row t is made after value t, for t + 1 … t + horizon."""
    paths = np.full((len(series), horizon), np.nan)
    changes = np.ascontiguousarray(np.diff(series, model.d), np.float64)
    _run_arma(changes, np.array(model.ar), np.array(model.ma), paths[model.d :])
    for k in range(model.d, 0, -1):  # summed up again, from the last value of each difference
        last = np.diff(series, k - 1)[model.d - k + 1 :]
        paths[model.d :] = last[:, None] + np.cumsum(paths[model.d :], axis=1)
    return paths


@kernel
def _run_arma(values: Any, ar: Any, ma: Any, paths: Any) -> None:
    """Forecasts of an ARMA after each of `values` [steps] into `paths` [steps, horizon]."""
    errors = np.zeros(len(values))
    for t in range(len(values)):
        errors[t] = values[t] - (paths[t - 1, 0] if t > 0 else 0.0)
        for h in range(paths.shape[1]):
            paths[t, h] = _arma_ahead(values, errors, paths[t], ar, ma, t, h)


@helper
def _arma_ahead(values: Any, errors: Any, path: Any, ar: Any, ma: Any, t: int, h: int) -> float:
    """Forecast of value t + h + 1, with those before it known or in `path`."""
    value = 0.0
    for i in range(len(ar)):
        at = t + h - i
        if at >= 0:
            value += ar[i] * (values[at] if at <= t else path[at - t - 1])
    for i in range(len(ma)):
        at = t + h - i
        if 0 <= at <= t:
            value += ma[i] * errors[at]
    return value
