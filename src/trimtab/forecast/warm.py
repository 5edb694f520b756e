"""Compiles the kernels of forecasts beforehand, by using each once."""

from __future__ import annotations

import numpy as np

from trimtab.compiled.kernel import compile_by_use
from trimtab.forecast.fits import Arima, arima_paths, squared_errors
from trimtab.forecast.mixture import Forecaster
from trimtab.forecast.mixture_kernels import take_in
from trimtab.forecast.queueing import erlang_b_servers, erlang_c


def compile_forecasts() -> None:
    """Compile them here and now, unless they are in the cache."""
    compile_by_use(take_in, _use)


def _use() -> None:
    forecaster = Forecaster(1)
    forecaster.update([1.0])
    forecaster.forecast()
    squared_errors(np.ones(4), np.zeros(4), 1)
    arima_paths(Arima((0.5,), 1, (0.5,)), np.ones(4), 1)
    erlang_c(2, erlang_b_servers(1.0, 0.1) / 4)
