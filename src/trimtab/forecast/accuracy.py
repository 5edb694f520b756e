"""Accuracy of past forecasts: one from each origin of the later part, with the data known at that origin.

MASE: mean absolute error over all origins and leads, over that of the one-step naive forecast within the
earlier part (Hyndman and Koehler, International Journal of Forecasting 22, 2006); below 1 is better than
that. Pinball loss: mean over the quantiles, on the same scale. Coverage: fraction of values between two
quantiles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any, Final

import numpy as np

from trimtab.errors import UsageError
from trimtab.forecast.arima import arima_paths
from trimtab.forecast.fits import fit_arima, fit_smoother
from trimtab.forecast.history import checked_history
from trimtab.forecast.mixture import LEVELS, NAIVE, SEASONAL_NAIVE, Floats, Forecaster

MIXTURE: Final = "mixture"
TRAIN_FRAC: Final = 0.5
MEDIAN_RATE: Final = 0.1
FEWEST_TO_SCORE: Final = 12  # values
ROUNDING_FRAC: Final = 1e-12  # of the largest value: a weighted mean of equal numbers is off by that


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Accuracy of one method on one series; None where undefined (a constant series, no intervals)."""

    method: str
    mase: float | None
    pinball: float | None = None
    coverage_80_frac: float | None = None
    coverage_90_frac: float | None = None
    order: tuple[int, int, int] | None = None  # (p, d, q) of ARIMA


Make = Callable[[], Forecaster]


def rolling_accuracy(
    series: Floats, *, horizon: int, period: int = 0, least: float = -np.inf, has_arima: bool = False
) -> list[Accuracy]:
    """Accuracy of all methods and the mixture, from each origin of the second half; fits use the first half.

    Raises UsageError (too short a series, or a value that is no number), MissingExtra (ARIMA).
    """
    values = checked_history(series, horizon=horizon)
    start = int(TRAIN_FRAC * len(values))
    if len(values) < FEWEST_TO_SCORE or len(values) - start < horizon or start <= max(2, period):
        least_values = max(FEWEST_TO_SCORE, 2 * horizon, 2 * period + 3)
        expected = f"at least {least_values} values, for this horizon and period"
        raise UsageError("too short for its accuracy", field="history", value=len(values), expected=expected)
    rows = [
        _scored(name, values, start, *_run(make(), values, start), horizon)
        for name, make in _methods(values[:start], horizon, period, least).items()
    ]
    if has_arima:
        model = fit_arima(values[:start])
        means = np.maximum(arima_paths(model, values, horizon)[start - 1 :], least)
        rows.insert(-1, replace(_scored("ARIMA", values, start, means, None, horizon), order=model.order))
    return rows


def errors_by_origin(
    series: Floats, method: str, *, horizon: int, period: int = 0, least: float = -np.inf
) -> Floats:
    """Mean absolute error of one method of `rolling_accuracy` (no ARIMA) from each origin [origins].

    Raises UsageError: no such method.
    """
    values = checked_history(series, horizon=horizon)
    start = int(TRAIN_FRAC * len(values))
    methods = _methods(values[:start], horizon, period, least)
    if method not in methods:
        raise UsageError(
            "no such method", field="method", value=method, expected=f"one of {', '.join(methods)}"
        )
    points, _ = _run(methods[method](), values, start)
    return np.asarray(_off(points, _truth(values, start, horizon)).mean(axis=1))


def loses_to_naive(rows: list[Accuracy], method: str = MIXTURE) -> bool:
    """Whether a method errs more than the naive forecast."""
    mase: Mapping[str, Any] = {row.method: row.mase for row in rows}
    return bool(mase[method] is not None and mase[method] > mase[NAIVE.name])


def _methods(train: Floats, horizon: int, period: int, least: float) -> dict[str, Make]:
    """Forecasters by name: single methods, fitted to the first part, and the mixture."""
    fixed: dict[str, Any] = {"horizon": horizon, "period": period, "least": least}
    singles = [NAIVE, fit_smoother("simple", train), fit_smoother("double", train, has_trend=True)]
    if period > 1:
        singles += [SEASONAL_NAIVE, fit_smoother("triple", train, has_trend=True, period=period)]

    def single(smoother: Any) -> Make:
        return lambda: Forecaster(1, smoothers=(smoother,), has_filter=False, **fixed)

    found = {smoother.name: single(smoother) for smoother in singles}
    found["median"] = lambda: Forecaster(1, smoothers=(), medians=(MEDIAN_RATE,), has_filter=False, **fixed)
    found["autoregressive"] = lambda: Forecaster(1, smoothers=(), **fixed)
    found[MIXTURE] = lambda: Forecaster(1, **fixed)
    return found


def _run(forecaster: Forecaster, values: Floats, start: int) -> tuple[Floats, Floats]:
    """Points [origins, horizon] and quantiles [origins, horizon, levels], from value start − 1 on."""
    means, quantiles = [], []
    for step, value in enumerate(values):
        forecaster.update(value)
        if step >= start - 1:
            made = forecaster.forecast()
            means.append(made.point[0])
            quantiles.append(made.quantiles[0])
    return np.array(means), np.array(quantiles)


def _scored(
    name: str, values: Floats, start: int, means: Floats, quantiles: Floats | None, horizon: int
) -> Accuracy:
    scale = float(np.abs(np.diff(values[:start])).mean())
    truth = _truth(values, start, horizon)

    def scaled(error: float) -> float | None:
        return error / scale if scale > 0.0 and isfinite(error) else None

    mase = scaled(float(_off(means, truth).mean()))
    if quantiles is None:
        return Accuracy(name, mase)
    short = truth[:, :, None] - quantiles[: len(truth)]
    level = np.asarray(LEVELS)
    pinball = scaled(float(np.maximum(level * short, (level - 1.0) * short).mean()))
    rounding = ROUNDING_FRAC * float(np.abs(values).max())
    in_80, in_90 = (_covered(short, low, high, rounding) for low, high in ((0.1, 0.9), (0.05, 0.95)))
    return Accuracy(name, mase, pinball, in_80, in_90)


def _truth(values: Floats, start: int, horizon: int) -> Floats:
    """The true values after each origin of the later part [origins, horizon]."""
    return np.lib.stride_tricks.sliding_window_view(values[start:], horizon)


def _off(points: Floats, truth: Floats) -> Floats:
    """Absolute errors [origins, horizon]; `points` may have further origins."""
    return np.abs(points[: len(truth)] - truth)


def _covered(short: Floats, low: float, high: float, rounding: float) -> float | None:
    """Fraction within two quantiles; `short` [origins, horizon, levels] is value − quantile."""
    above, below = short[:, :, LEVELS.index(low)], short[:, :, LEVELS.index(high)]
    inside = (above >= -rounding) & (below <= rounding)
    return float(inside.mean()) if np.isfinite(short).all() else None
