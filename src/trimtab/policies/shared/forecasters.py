"""The forecasters that policies take by name, for the counts or loads of the last steps."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from trimtab.domain.cluster import Floats

ForecasterName: TypeAlias = Literal["naive", "ses", "holt", "arima", "mixture"]
FORECASTERS: tuple[ForecasterName, ...] = get_args(ForecasterName)
FEWEST = 3  # steps that a forecast needs
SES, HOLT = (0.4,), (0.4, 0.1, 0.9)  # α, and with the trend β and its damping φ


def forecast_means(table: Floats, ahead_steps: int, name: str) -> Floats:
    """Mean over the next steps of each series [series], from its last steps [steps, series]; never below 0.

    "naive" repeats the last step, "ses" is simple exponential smoothing, "holt" has a damped trend, "arima"
    has a mean and its order by AICc, "mixture" is all of `trimtab.forecast`, weighed by recent error. The
    mean of what was seen, where that is too short.
    """
    if len(table) < FEWEST:
        return np.asarray(table.mean(axis=0), np.float64)
    if name == "naive":
        return np.asarray(table[-1], np.float64)
    if name == "arima":
        return np.array([_arima_mean(series, ahead_steps) for series in table.T])
    from trimtab.forecast import Forecaster, Smoother  # with the first forecast: it takes a moment

    chosen: dict[str, Any] = {
        "ses": {"smoothers": (Smoother("ses", *SES),), "has_filter": False},
        "holt": {"smoothers": (Smoother("holt", *HOLT),), "has_filter": False},
        "mixture": {},
    }
    forecaster = Forecaster(table.shape[1], horizon=ahead_steps, least=0.0, **chosen[name])
    forecaster.update(table)
    return np.asarray(forecaster.forecast(levels=()).mean.mean(axis=1), np.float64)


def _arima_mean(series: Floats, ahead_steps: int) -> float:
    from trimtab.forecast import arima_paths, quick_arima

    return max(0.0, float(arima_paths(quick_arima(series), series, ahead_steps)[-1].mean()))
