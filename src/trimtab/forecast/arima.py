"""ARIMA models: order by AICc, a quick fit by least squares, forecasts by recursion.

`d` is the number of differences after which the test of Kwiatkowski, Phillips, Schmidt and Shin (Journal of
Econometrics 54, 1992) finds no unit root. p and q have the least AICc (Hurvich and Tsai, Biometrika 76, 1989)
of all with p + q ≤ `MOST_TERMS`, as in Hyndman and Khandakar (Journal of Statistical Software 27(3), 2008),
with three deviations: all orders are tried, not a path through them; their likelihoods come from a fit by
two regressions (Hannan and Rissanen, Biometrika 69, 1982, without the correction of the third); and only
the quick fit has a drift. A series that is not differenced has a mean, one that is differenced once a drift
where the AICc is less with it, one that is differenced twice neither.

Forecasts come from the coefficients and the errors of the model's own one-step forecasts, which are taken to
be 0 before the start (Box and Jenkins, Time Series Analysis, 1970).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from trimtab.compiled.kernel import helper, kernel
from trimtab.forecast.mixture import Floats

MOST_TERMS: Final = 5  # p + q
MOST_DIFFERENCES: Final = 2
KPSS_5_PERCENT: Final = 0.463  # critical value of the test about a level
FEWEST_PER_TERM: Final = 4  # equations for each coefficient
DEPENDENT_FRAC: Final = 1e-20  # of a column's squares, that others leave of it: none but rounding
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
    own = float(values.mean())
    means = {0: [own], 1: [0.0, own]}.get(d, [0.0])
    fits = [_best_fit(values - mean, most_terms, has_mean=d == 0 or mean != 0.0) for mean in means]
    mean, best = min(zip(means, fits, strict=True), key=lambda each: each[1].aicc)
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
    long_run = _product(off, off)
    lags = min(int(4.0 * (n / 100.0) ** 0.25), n - 1)
    for lag in range(1, lags + 1):
        long_run += 2.0 * (1.0 - lag / (lags + 1.0)) * _product(off[lag:], off[:-lag])
    return float((np.cumsum(off) ** 2).sum()) / (n * long_run) if long_run > 1e-12 * n else 0.0


def aicc(squares: float, equations: int, terms: int) -> float:
    """AICc of normal errors with this sum of squares; `terms` counts coefficients, mean and variance."""
    spare = equations - terms - 1
    if spare <= 0:
        return math.inf
    if squares <= 0.0:
        return -math.inf  # an exact fit
    return equations * math.log(squares / equations) + 2.0 * terms * (1.0 + (terms + 1.0) / spare)


def _best_fit(off: Floats, most_terms: int, *, has_mean: bool) -> _Fit:
    """The ARMA of least AICc of deviations [steps]; no terms where none helps or none can be fitted."""
    n, none = len(off), np.zeros(0)
    most = min(most_terms, (n - 1) // (FEWEST_PER_TERM + 1))
    long_order = min(max(most, int(10.0 * math.log10(max(n, 2)))), max(1, n // 5))
    errors = _errors_of_long_ar(off, long_order)
    first = long_order + most  # the same equations for every order, so that their AICc can be compared
    rows = n - first
    if rows <= FEWEST_PER_TERM:
        return _Fit(np.inf, none, none)
    target, extra = off[first:], 1 + has_mean
    best = _Fit(aicc(_product(target, target), rows, extra), none, none)
    lagged = [_lags(values, first, most) for values in (off, errors)]
    for p in range(most + 1):
        for q in range(most - p + 1):
            columns = np.vstack([lagged[0][:p], lagged[1][:q]])
            if p + q == 0 or rows < FEWEST_PER_TERM * (p + q):
                continue
            found, squares = least_squares(columns, target)
            fit = _Fit(aicc(squares, rows, p + q + extra), found[:p], found[p:])
            if fit.aicc < best.aicc and _is_inside(fit.ar) and _is_inside(-fit.ma):
                best = fit
    return best


def _errors_of_long_ar(off: Floats, most: int) -> Floats:
    """Errors of an autoregression of the order of least AIC, at most `most` [steps].

    By the recursion of Durbin and Levinson on autocovariances; deviations are 0 before the start.
    """
    n = len(off)
    covariance = np.array([_product(off[k:], off[: n - k]) / n for k in range(most + 1)])
    if covariance[0] <= 0.0:
        return np.zeros(n)
    ar, variance = np.zeros(0), covariance[0]
    best, least = ar, n * math.log(variance)
    for order in range(1, most + 1):
        partial = (covariance[order] - _product(ar, covariance[order - 1 : 0 : -1])) / variance
        ar = np.append(ar - partial * ar[::-1], partial)
        variance *= 1.0 - partial**2
        if n * math.log(variance) + 2 * order < least:
            best, least = ar, n * math.log(variance) + 2 * order
    errors = off.copy()
    for i in range(len(best)):
        errors[i + 1 :] -= best[i] * off[: n - i - 1]
    return errors


def _lags(values: Floats, first: int, count: int) -> Floats:
    """Lags 1 to `count` of the values from `first` on [count, steps − first]."""
    n = len(values)
    return np.array([values[first - k : n - k] for k in range(1, count + 1)]).reshape(count, n - first)


def least_squares(columns: Floats, target: Floats) -> tuple[Floats, float]:
    """Coefficients [terms] of columns [terms, equations] and the squares they leave (modified Gram-Schmidt).

    LAPACK's result would depend on the processor. A column that depends on those before it gets 0.
    """
    terms, rest = len(columns), target.copy()
    own, upper, along = columns.copy(), np.zeros((terms, terms)), np.zeros(terms)
    for i in range(terms):
        square = _product(own[i], own[i])
        if square <= DEPENDENT_FRAC * _product(columns[i], columns[i]):
            continue
        along[i] = _product(own[i], rest) / square
        rest -= along[i] * own[i]
        for j in range(i + 1, terms):
            upper[i, j] = _product(own[i], own[j]) / square
            own[j] -= upper[i, j] * own[i]
    for i in range(terms - 1, -1, -1):
        along[i] -= _product(upper[i, i + 1 :], along[i + 1 :])
    return along, _product(rest, rest)


def _product(a: Floats, b: Floats) -> float:
    """Scalar product, summed alike on every processor."""
    return float((a * b).sum())


def is_stable(model: Arima) -> bool:
    """Whether neither part of a model is near a unit root."""
    return _is_inside(np.array(model.ar)) and _is_inside(-np.array(model.ma))


def _is_inside(coefficients: Floats) -> bool:
    """Whether x_t = Σ coefficients · x_(t−i) dies out: its roots lie within `MOST_ROOT`."""
    left = [c / math.pow(MOST_ROOT, i + 1) for i, c in enumerate(coefficients.tolist())]
    while left:  # Levinson's recursion backwards: inside if every partial autocorrelation is
        partial = left.pop()
        if abs(partial) >= 1.0:
            return False
        left = [(a + partial * b) / (1.0 - partial**2) for a, b in zip(left, left[::-1], strict=True)]
    return True


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
