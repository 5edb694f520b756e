"""Compiles the kernels of forecasts in advance by using each once."""

from __future__ import annotations

import numpy as np

from trimtab.compiled.compiling import compile_by_use
from trimtab.forecast.arima import Arima, arima_paths, run_arma
from trimtab.forecast.fits import squared_errors
from trimtab.forecast.mixture import Forecaster
from trimtab.forecast.mixture_kernels import paths, take_in, weigh
from trimtab.forecast.queueing import erlang_b_servers, erlang_c
from trimtab.forecast.queueing.erlang import erlang_b_unchecked, erlang_c_unchecked, servers_for_loss


def compile_mixture() -> None:
    """Compile the mixture of forecasts, unless it is in the cache."""
    compile_by_use((take_in, weigh, paths), _use_mixture)


def compile_formulas() -> None:
    """Compile fits and queueing formulas, unless they are in the cache."""
    formulas = (erlang_b_unchecked, erlang_c_unchecked, servers_for_loss)
    compile_by_use((squared_errors, run_arma, *formulas), _use_formulas)


COMPILATIONS = (compile_mixture, compile_formulas)  # the longest first


def _use_mixture() -> None:
    forecaster = Forecaster(1)
    forecaster.update([1.0])
    forecaster.forecast()


def _use_formulas() -> None:
    squared_errors(np.ones(4), np.zeros(4), 1)
    arima_paths(Arima((0.5,), 1, (0.5,)), np.ones(4), 1)
    erlang_c(2, erlang_b_servers(1.0, 0.1) / 4)
