"""ARIMA: fits and orders against the models that made the series, and against statsmodels."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from trimtab.forecast import Arima, arima_paths, fit_arima, quick_arima, rolling_accuracy
from trimtab.forecast.arima import MOST_ROOT, aicc, differences, is_stable, kpss, least_squares


def drawn(model: Arima, steps: int, seed: int) -> np.ndarray:
    """A series of a model with standard normal errors, after 200 steps that are left out."""
    noise = np.random.default_rng(seed).normal(size=steps + 200)
    values = np.zeros(len(noise))
    for t in range(5, len(noise)):
        values[t] = noise[t] + sum(a * values[t - 1 - i] for i, a in enumerate(model.ar))
        values[t] += sum(m * noise[t - 1 - i] for i, m in enumerate(model.ma))
    for _ in range(model.d):
        values = np.cumsum(values)
    return model.mean + values[200:]


AROUND_100 = Arima((0.7,), 0, (), 100.0)
MODELS = (
    AROUND_100,
    Arima((0.5, -0.4), 0, (), 100.0),
    Arima((0.6,), 0, (0.5,), -3.0),
    Arima((), 0, (0.7,), 50.0),
    Arima((0.5,), 1, ()),
)


def test_a_series_around_a_mean_has_its_coefficient_and_its_mean() -> None:
    """Standard errors: (1 − φ²)^½ / n^½ = 0.023 of φ, 1 / ((1 − φ) n^½) = 0.105 of the mean."""
    model = fit_arima(drawn(AROUND_100, 1_000, 3), (1, 0, 0))
    assert model.ar[0] == pytest.approx(0.7, abs=0.07)
    assert model.mean == pytest.approx(100.0, abs=0.32)
    assert fit_arima(drawn(AROUND_100, 1_000, 3)) == model  # the order is found


@pytest.mark.parametrize("model", MODELS, ids=lambda m: str(m.order))
def test_the_order_found_forecasts_as_well_as_the_true_model(model: Arima) -> None:
    """Errors one step ahead have variance 1 under the true model; on later values of the same series."""
    squares = []
    for seed in range(12):
        values = drawn(model, 800, seed)
        for found in (quick_arima(values[:400]), model):
            ahead = arima_paths(found, values, 1)[399:-1, 0]
            squares.append(np.mean((values[400:] - ahead) ** 2))
    quick, true = np.mean(np.reshape(squares, (-1, 2)), axis=0)
    assert true == pytest.approx(1.0, abs=0.06)
    assert quick < 1.05 * true


@pytest.mark.parametrize(
    ("model", "least"), [(AROUND_100, 0.5), (Arima((), 0, (), 5.0), 0.5), (Arima((), 1, ()), 0.5)]
)
def test_most_series_get_the_order_that_made_them(model: Arima, least: float) -> None:
    """One of 21 orders for each of 3 numbers of differences."""
    found = [quick_arima(drawn(model, 400, seed)).order for seed in range(30)]
    assert np.mean([order == model.order for order in found]) >= least


@pytest.mark.parametrize(("drift", "noise"), [(1.0, 0.0), (1.0, 0.01), (1.0, 1.0), (-0.5, 1.0)])
def test_a_random_walk_with_drift_is_continued_along_it(drift: float, noise: float) -> None:
    """Its drift has a standard error of noise / n^½ = 0.07 noise."""
    values = np.cumsum(drift + noise * np.random.default_rng(1).normal(size=200))
    made = arima_paths(quick_arima(values), values, 10)[-1]
    assert made[-1] - values[-1] == pytest.approx(10 * drift, abs=1e-9 + 2.0 * noise)


@pytest.mark.parametrize("seed", range(4))
def test_the_test_for_a_unit_root_is_as_in_statsmodels(seed: int) -> None:
    from statsmodels.tsa.stattools import kpss as theirs

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # statistics beyond their table
        for model in MODELS:
            values = drawn(model, 150, seed)
            assert kpss(values) == pytest.approx(theirs(values, nlags=4)[0])


def test_noise_is_differenced_as_often_as_a_test_at_5_percent_errs() -> None:
    """Of 200 series 10 on average, with a standard deviation of 3; most random walks are differenced."""
    noise = [differences(drawn(Arima((), 0, ()), 300, seed)) for seed in range(200)]
    assert 2 <= np.count_nonzero(noise) <= 19
    assert np.mean([differences(drawn(Arima((), 1, ()), 300, seed)) > 0 for seed in range(40)]) >= 0.9


def test_aicc_is_as_in_statsmodels() -> None:
    from statsmodels.tools.eval_measures import aicc as theirs

    log_likelihood = -0.5 * 30 * np.log(12.0 / 30)  # without the constant part
    assert aicc(12.0, 30, 4) == pytest.approx(theirs(log_likelihood, 30, 4))
    assert aicc(12.0, 5, 4) == np.inf  # no equation to spare


@pytest.mark.parametrize("terms", [1, 3, 5])
def test_least_squares_are_as_in_lapack(terms: int, rng: np.random.Generator) -> None:
    columns, target = rng.normal(size=(terms, 40)), rng.normal(size=40)
    columns[-1] += 100.0 * columns[0]  # badly conditioned, except where both are one column
    found, squares = least_squares(columns, target)
    theirs, left = np.linalg.lstsq(columns.T, target, rcond=None)[:2]
    np.testing.assert_allclose(found, theirs, rtol=1e-9)
    assert squares == pytest.approx(left[0])


def test_a_column_that_depends_on_others_changes_nothing(rng: np.random.Generator) -> None:
    columns, target = rng.normal(size=(2, 40)), rng.normal(size=40)
    found, squares = least_squares(np.vstack([columns, 2.0 * columns[0] - columns[1]]), target)
    np.testing.assert_allclose(found, [*least_squares(columns, target)[0], 0.0], rtol=1e-9)
    assert squares == pytest.approx(least_squares(columns, target)[1])


def test_models_are_stable_whose_roots_lie_within_the_bound(rng: np.random.Generator) -> None:
    """By the roots of the polynomial z^p − Σ c_i z^(p − i)."""
    answers = set()
    for _ in range(500):
        ar = rng.uniform(-1.2, 1.2, size=rng.integers(1, 6))
        expected = bool(np.abs(np.roots([1.0, *-ar])).max() < MOST_ROOT)
        assert is_stable(Arima(tuple(ar), 0, ())) is expected
        assert is_stable(Arima((), 0, tuple(-ar))) is expected
        answers.add(expected)
    assert answers == {True, False}


@pytest.mark.parametrize("model", [Arima((0.5, -0.2), 1, (0.4,)), Arima((0.6,), 0, (0.3,), 100.0)])
def test_arima_runs_as_in_statsmodels(model: Arima) -> None:
    from statsmodels.tsa.arima.model import ARIMA

    values = 100.0 + drawn(model, 400, 1)
    found = fit_arima(values[:300], model.order)
    fit = ARIMA(values[:300], order=model.order, trend="n" if model.d else "c").fit()
    mean = () if model.d else (found.mean,)
    np.testing.assert_allclose([*mean, *found.ar, *found.ma], fit.params[:-1])
    made = arima_paths(found, values, 6)
    for end in (320, 399):  # by then the start is forgotten
        np.testing.assert_allclose(made[end], fit.apply(values[: end + 1]).forecast(6), rtol=1e-6)


@pytest.mark.parametrize("values", [[4.0] * 40, [1.0, 2.0, 3.0], [1.0, 2.0, 1.0, 2.0, 1.0]])
def test_short_and_constant_histories_have_a_model(values: list[float]) -> None:
    made = arima_paths(quick_arima(np.array(values)), np.array(values), 2)[-1]
    assert np.isfinite(made).all()
    if len(set(values)) == 1:
        assert made == pytest.approx(values[:2])


def test_accuracy_names_the_order(rng: np.random.Generator) -> None:
    rows = rolling_accuracy(drawn(AROUND_100, 200, 0), horizon=2, has_arima=True)
    row = next(row for row in rows if row.method == "ARIMA")
    assert row.order == fit_arima(drawn(AROUND_100, 200, 0)[:100]).order
    naive = next(row for row in rows if row.method == "naive")
    assert row.mase is not None
    assert naive.mase is not None
    assert row.mase < naive.mase
