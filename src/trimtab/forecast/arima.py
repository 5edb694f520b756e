"""ARIMA models: order by AICc, a quick fit by least squares, forecasts by recursion.

`d` is the number of differences after which the test of Kwiatkowski, Phillips, Schmidt and Shin (Journal of
Econometrics 54, 1992) finds no unit root. p and q have the least AICc (Hurvich and Tsai, Biometrika 76, 1989)
of all with p + q ≤ `MOST_TERMS`, as in Hyndman and Khandakar (Journal of Statistical Software 27(3), 2008),
with three deviations: all orders are tried, not a path through them; their likelihoods come from a fit by
two regressions (Hannan and Rissanen, Biometrika 69, 1982, without the correction of the third); and a
series that is not differenced has a mean, one that is differenced no drift.

Forecasts come from the coefficients and the errors of the model's own one-step forecasts, which are taken to
be 0 before the start (Box and Jenkins, Time Series Analysis, 1970).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from trimtab.compiled.kernel import helper, kernel
from trimtab.forecast.mixture import Floats

MOST_TERMS: Final = 5  # p + q
MOST_DIFFERENCES: Final = 2
KPSS_5_PERCENT: Final = 0.463  # critical value of the test about a level
FEWEST_PER_TERM: Final = 4  # equations for each coefficient
MOST_ROOT: Final = 0.99  # of the AR and MA polynomials: models nearer to a unit root are left out


@dataclass(frozen=True, slots=True)
class Arima:
    """Coefficients: `ar` [p] and `ma` [q] of the deviations from `mean` of the series differenced d times."""

    ar: tuple[float, ...]
    d: int
    ma: tuple[float, ...]
    mean: float = 0.0

    @property
    def order(self) -> tuple[int, int, int]:
        """(p, d, q)."""
        return len(self.ar), self.d, len(self.ma)


class _Fit(NamedTuple):
    aicc: float
    ar: Floats
    ma: Floats


def quick_arima(history: Floats, *, most_terms: int = MOST_TERMS) -> Arima:
    """The ARIMA of least AICc of a history [steps], fitted by two regressions."""
    d = differences(history)
    values = np.diff(history, d)
    mean = float(values.mean()) if d == 0 else 0.0
    best = _best_fit(values - mean, most_terms, has_mean=d == 0)
    return Arima(tuple(best.ar.tolist()), d, tuple(best.ma.tolist()), mean)


def differences(history: Floats) -> int:
    """How often to difference a history [steps], by repeated tests at 5 %."""
    for d in range(MOST_DIFFERENCES):
        if kpss(np.diff(history, d)) <= KPSS_5_PERCENT:
            return d
    return MOST_DIFFERENCES


def kpss(values: Floats) -> float:
    """Statistic of the test about a level: variance of partial sums over the long-run variance; 0 if flat.

    The long-run variance has Bartlett weights up to lag 4 (n / 100)^¼, the paper's l4.
    """
    off, n = values - values.mean(), len(values)
    long_run = float(off @ off)
    lags = min(int(4.0 * (n / 100.0) ** 0.25), n - 1)
    for lag in range(1, lags + 1):
        long_run += 2.0 * (1.0 - lag / (lags + 1.0)) * float(off[lag:] @ off[:-lag])
    return float((np.cumsum(off) ** 2).sum()) / (n * long_run) if long_run > 1e-12 * n else 0.0


def aicc(squares: float, equations: int, terms: int) -> float:
    """AICc of normal errors with this sum of squares; `terms` counts coefficients, mean and variance."""
    spare = equations - terms - 1
    if spare <= 0 or squares <= 0.0:
        return np.inf
    return float(equations * np.log(squares / equations) + 2.0 * terms * (1.0 + (terms + 1.0) / spare))


def _best_fit(off: Floats, most_terms: int, *, has_mean: bool) -> _Fit:
    """The ARMA of least AICc of deviations [steps]; no terms where none helps or none can be fitted."""
    n, none = len(off), np.zeros(0)
    most = min(most_terms, (n - 1) // (FEWEST_PER_TERM + 1))
    long_order = min(max(most, int(10.0 * np.log10(max(n, 2)))), max(1, n // 5))
    errors = _errors_of_long_ar(off, long_order)
    first = long_order + most  # the same equations for every order, so that their AICc can be compared
    rows = n - first
    if rows <= FEWEST_PER_TERM:
        return _Fit(np.inf, none, none)
    target, extra = off[first:], 1 + has_mean
    best = _Fit(aicc(float(target @ target), rows, extra), none, none)
    lagged = [_lags(values, first, most) for values in (off, errors)]
    for p in range(most + 1):
        for q in range(most - p + 1):
            table = np.hstack([lagged[0][:, :p], lagged[1][:, :q]])
            if p + q == 0 or rows < FEWEST_PER_TERM * (p + q):
                continue
            found: Floats = np.linalg.lstsq(table, target, rcond=None)[0].astype(np.float64)
            left = target - table @ found
            fit = _Fit(aicc(float(left @ left), rows, p + q + extra), found[:p], found[p:])
            if fit.aicc < best.aicc and _is_inside(fit.ar) and _is_inside(-fit.ma):
                best = fit
    return best


def _errors_of_long_ar(off: Floats, most: int) -> Floats:
    """Errors of an autoregression of the order of least AIC, at most `most` [steps].

    By the recursion of Durbin and Levinson on autocovariances; deviations are 0 before the start.
    """
    n = len(off)
    covariance = np.array([float(off[k:] @ off[: n - k]) / n for k in range(most + 1)])
    if covariance[0] <= 0.0:
        return np.zeros(n)
    ar, variance = np.zeros(0), covariance[0]
    best, least = ar, n * np.log(variance)
    for order in range(1, most + 1):
        partial = (covariance[order] - ar @ covariance[order - 1 : 0 : -1]) / variance
        ar = np.append(ar - partial * ar[::-1], partial)
        variance *= 1.0 - partial**2
        if n * np.log(variance) + 2 * order < least:
            best, least = ar, n * np.log(variance) + 2 * order
    errors = off.copy()
    for i in range(len(best)):
        errors[i + 1 :] -= best[i] * off[: n - i - 1]
    return errors


def _lags(values: Floats, first: int, count: int) -> Floats:
    """Lags 1 to `count` of the values from `first` on [steps − first, count]."""
    n = len(values)
    return np.stack([values[first - k : n - k] for k in range(1, count + 1)], axis=1).reshape(-1, count)


def is_stable(model: Arima) -> bool:
    """Whether neither part of a model is near a unit root."""
    return _is_inside(np.array(model.ar)) and _is_inside(-np.array(model.ma))


def _is_inside(coefficients: Floats) -> bool:
    """Whether x_t = Σ coefficients · x_(t−i) dies out: its roots lie within the unit circle."""
    if not len(coefficients):
        return True
    return bool(np.abs(np.roots([1.0, *-coefficients])).max() < MOST_ROOT)


def arima_paths(model: Arima, series: Floats, horizon: int) -> Floats:
    """Forecasts [steps, horizon]: row t is made after value t, for t + 1 … t + horizon."""
    paths = np.full((len(series), horizon), np.nan)
    changes = np.ascontiguousarray(np.diff(series, model.d) - model.mean, np.float64)
    run_arma(changes, np.array(model.ar), np.array(model.ma), paths[model.d :])
    paths[model.d :] += model.mean
    for k in range(model.d, 0, -1):  # summed up again, from the last value of each difference
        last = np.diff(series, k - 1)[model.d - k + 1 :]
        paths[model.d :] = last[:, None] + np.cumsum(paths[model.d :], axis=1)
    return paths


@kernel
def run_arma(values: Any, ar: Any, ma: Any, paths: Any) -> None:
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
