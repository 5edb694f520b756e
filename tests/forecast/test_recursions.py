"""The compiled recursions against statsmodels, and the filter against least squares solved at once."""

from __future__ import annotations

import numpy as np
import pytest

from trimtab.compiled.kernel import interpreted
from trimtab.errors import UsageError
from trimtab.forecast import recursions as r
from trimtab.forecast.fits import fit_smoother, squared_errors
from trimtab.forecast.history import checked_history
from trimtab.forecast.mixture import Forecaster, Smoother
from trimtab.forecast.mixture_kernels import paths, take_in, weigh

COUNTS = (
    np.random.default_rng(4)
    .poisson(30.0 + 10.0 * np.sin(np.arange(120) / 12 * 2 * np.pi) + np.arange(120) / 10)
    .astype(float)
)
PERIOD, HORIZON = 12, 15


def run(smoother: Smoother, values: np.ndarray, period: int) -> np.ndarray:
    """Forecasts after each value [steps, horizon]."""
    forecaster = Forecaster(1, horizon=HORIZON, period=period, smoothers=(smoother,), has_filter=False)
    made = []
    for value in values:
        forecaster.update(value)
        made.append(forecaster.paths()[0, 0])
    return np.array(made)


@pytest.mark.parametrize(("beta", "phi"), [(0.0, 0.0), (0.12, 0.9), (0.12, 1.0)])
def test_simple_and_double_smoothing_are_as_in_statsmodels(beta: float, phi: float) -> None:
    from statsmodels.tsa.holtwinters import Holt, SimpleExpSmoothing

    alpha, at = 0.3, {"initialization_method": "known", "initial_level": COUNTS[0]}
    made = run(Smoother("", alpha, beta, phi), COUNTS, 0)
    if not beta:
        fit = SimpleExpSmoothing(COUNTS, **at).fit(smoothing_level=alpha, optimized=False)
    else:
        model = Holt(COUNTS, damped_trend=phi < 1.0, initial_trend=0.0, **at)
        damping = {"damping_trend": phi} if phi < 1.0 else {}
        fit = model.fit(smoothing_level=alpha, smoothing_trend=beta / alpha, optimized=False, **damping)
    np.testing.assert_allclose(made[:-1, 0], fit.fittedvalues[1:], rtol=1e-9)
    np.testing.assert_allclose(made[-1], fit.forecast(HORIZON), rtol=1e-9)


def test_triple_smoothing_is_as_in_statsmodels() -> None:
    from statsmodels.tsa.exponential_smoothing.ets import ETSModel

    smoother = Smoother("", 0.3, 0.06, 0.95, 0.2)
    made = run(smoother, COUNTS, PERIOD)
    state = np.zeros((r.SEASON + PERIOD, 1))
    for step in range(PERIOD):
        row = np.array([0.3, 0.06, 0.95, 0.2])
        interpreted(r.smooth)(state, row, step, COUNTS[step : step + 1])
    model = ETSModel(
        COUNTS[PERIOD:], error="add", trend="add", damped_trend=True, seasonal="add", seasonal_periods=PERIOD
    )
    start = [state[r.LEVEL, 0], state[r.TREND, 0], *state[r.SEASON :, 0][::-1]]
    fit = model.smooth([0.3, 0.06, 0.2, 0.95, *start])
    np.testing.assert_allclose(made[PERIOD - 1 : -1, 0], fit.fittedvalues, rtol=1e-9)
    np.testing.assert_allclose(made[-1], fit.forecast(HORIZON), rtol=1e-9)


def test_the_filter_is_discounted_least_squares(rng: np.random.Generator) -> None:
    values = rng.normal(size=300)
    for t in range(2, 300):
        values[t] += 0.6 * values[t - 1] - 0.3 * values[t - 2]
    filters, deviations = np.zeros((1, r.FILTER)), []
    for step, value in enumerate(values):
        if step:
            deviations.append(value - filters[0, r.MEAN])
        interpreted(r.filter_step)(filters, 0, step, value)
    d = np.array(deviations)  # of value 1 on
    rows = np.array([d[t - r.ORDER : t][::-1] for t in range(r.ORDER, len(d))])
    discount = r.FORGET ** np.arange(len(rows) - 1, -1, -1.0)
    prior = r.FORGET ** len(rows) * d[0] ** 2 * np.eye(r.ORDER)
    exact = np.linalg.solve(rows.T * discount @ rows + prior, rows.T * discount @ d[r.ORDER :])
    np.testing.assert_allclose(filters[0, r.COEFFICIENT : r.INVERSE], exact, rtol=1e-6)
    assert filters[0, r.COEFFICIENT] == pytest.approx(0.6, abs=0.15)


def test_a_fit_finds_no_worse_than_statsmodels() -> None:
    from statsmodels.tsa.holtwinters import SimpleExpSmoothing

    own = fit_smoother("simple", COUNTS)
    known = {"initialization_method": "known", "initial_level": COUNTS[0]}
    alpha = SimpleExpSmoothing(COUNTS, **known).fit().params["smoothing_level"]
    errors = [squared_errors(COUNTS, np.array([a, 0.0, 0.0, 0.0]), 1) for a in (own.alpha, alpha)]
    assert errors[0] <= errors[1] * (1 + 1e-6)


def test_kernels_give_the_same_bits_as_python(rng: np.random.Generator) -> None:
    made = [Forecaster(3, horizon=2, period=4, least=0.0) for _ in range(2)]
    values = rng.poisson(5.0, (40, 3)).astype(float)
    values[7, 1] = np.nan
    take_in(made[0]._bank, values.copy())
    interpreted(take_in)(made[1]._bank, values.copy())
    for one, other in zip(made[0]._bank, made[1]._bank, strict=True):
        np.testing.assert_array_equal(one, other)
    experts = len(made[0].names)
    for kernel, shape in ((weigh, (experts, 3)), (paths, (experts, 2, 3))):
        a, b = np.zeros(shape), np.zeros(shape)
        kernel(made[0]._bank, a)
        interpreted(kernel)(made[1]._bank, b)
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("values", "horizon", "field"),
    [
        ([1.0, 2.0], 1, "history"),
        ([], 1, "history"),
        ([1.0, np.nan, 3.0, 4.0], 1, "history, value 2"),
        ([1.0, 2.0, np.inf], 1, "history, value 3"),
        ([1.0, 2.0, 3.0], 3, "horizon"),
    ],
)
def test_histories_that_tell_nothing_are_refused(values: list[float], horizon: int, field: str) -> None:
    with pytest.raises(UsageError) as error:
        checked_history(values, horizon=horizon)
    assert error.value.field == field
