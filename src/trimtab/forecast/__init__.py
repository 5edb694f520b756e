"""Forecasts: history in, distribution out. `queueing` turns rates into waits. Numbers only, no files.

`Forecaster` forecasts many series online; `rolling_accuracy` measures its errors on a series;
`fit_smoother` and `fit_arima` (statsmodels) fit single methods offline; `quick_arima` fits by regressions.
"""

from trimtab.forecast.accuracy import Accuracy, errors_by_origin, loses_to_naive, rolling_accuracy
from trimtab.forecast.arima import Arima, arima_paths, quick_arima
from trimtab.forecast.fits import fit_arima, fit_smoother
from trimtab.forecast.history import checked_history
from trimtab.forecast.mixture import Forecast, Forecaster, Smoother

__all__ = [
    "Accuracy",
    "Arima",
    "Forecast",
    "Forecaster",
    "Smoother",
    "arima_paths",
    "checked_history",
    "errors_by_origin",
    "fit_arima",
    "fit_smoother",
    "loses_to_naive",
    "quick_arima",
    "rolling_accuracy",
]
