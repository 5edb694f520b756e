"""The mixture: it follows the best, its intervals hold, it takes what comes."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from trimtab.errors import UsageError
from trimtab.forecast import Forecaster, Smoother, errors_by_origin, loses_to_naive, rolling_accuracy
from trimtab.forecast.mixture import NAIVE, SEASONAL_NAIVE


def fed(values: np.ndarray, **options: object) -> Forecaster:
    forecaster = Forecaster(values.shape[1], **options)  # type: ignore[arg-type]
    for row in values:
        forecaster.update(row)
    return forecaster


def test_naive_repeats_the_last_value_and_seasonal_naive_the_last_season(rng: np.random.Generator) -> None:
    values = rng.normal(size=(30, 2))
    one = {"horizon": 7, "period": 5, "has_filter": False}
    np.testing.assert_allclose(fed(values, smoothers=(NAIVE,), **one).forecast().point.T, values[[-1] * 7])
    seasonal = fed(values, smoothers=(SEASONAL_NAIVE,), **one).forecast().point.T
    np.testing.assert_allclose(seasonal, values[[-5, -4, -3, -2, -1, -5, -4]])


def test_the_mixture_goes_to_who_is_right(rng: np.random.Generator) -> None:
    season = np.tile([0.0, 50.0, 10.0, 90.0], 60)[:, None]
    forecaster = fed(season + rng.normal(size=season.shape), horizon=4, period=4)
    weights = dict(zip(forecaster.names, forecaster.weights()[0], strict=True))
    assert sum(w for name, w in weights.items() if "seasonal" in name or "auto" in name) > 0.99
    np.testing.assert_allclose(forecaster.forecast().point[0], season[:4, 0], atol=3.0)


def shares(losses: np.ndarray) -> np.ndarray:
    return losses**-32.0 / (losses**-32.0).sum()


def weights_by_hand(
    values: np.ndarray, alpha: float, halfway: int, discounts: tuple[float, ...]
) -> np.ndarray:
    """Of naive and simple smoothing, whose forecasts are the same at every lead: by a loop over the steps."""
    steps, losses, unit = len(values), np.zeros((len(discounts), 2)), 0.0
    levels = np.empty(steps)
    levels[0] = values[0]
    guesses, recalled = np.empty((steps, 2)), np.empty((steps, len(discounts)))
    memory_losses = np.zeros(len(discounts))
    for step in range(steps):
        if step > 0:
            levels[step] = levels[step - 1] + alpha * (values[step] - levels[step - 1])
        guesses[step] = values[step], levels[step]
        if step >= halfway:
            pace = np.maximum(1.0 - np.array(discounts), 0.1 if step < 2 else 1.0 / step)
            errors = np.abs(values[step] - guesses[step - halfway])
            unit += max(0.03, 1.0 / (step - halfway + 1)) * (errors.mean() - unit)
            losses += pace[:, None] * (errors / unit - losses)
            off = np.abs(values[step] - recalled[step - halfway])
            memory_losses += pace[-1] * (off / unit - memory_losses)
            recalled[step] = [shares(loss) @ guesses[step] for loss in losses]
        else:
            recalled[step] = guesses[step].mean()
    return shares(memory_losses) @ [shares(loss) for loss in losses]


@pytest.mark.parametrize(("horizon", "halfway"), [(1, 1), (4, 2), (7, 4)])
@pytest.mark.parametrize("steps", [30, 142, 143, 600])
def test_weights_are_shares_of_past_errors(
    horizon: int, halfway: int, steps: int, rng: np.random.Generator
) -> None:
    change = np.linspace(0.0, 1.0, 600) ** 2  # ever more a random walk, so that the memories differ
    values = (rng.poisson(9.0, 600) + change * rng.normal(size=600).cumsum())[:steps]
    two = Smoother("a", 1.0), Smoother("b", 0.1)
    forecaster = fed(values[:, None], horizon=horizon, smoothers=two, has_filter=False)
    by_hand = weights_by_hand(values, 0.1, halfway, (0.993, 0.999))
    np.testing.assert_allclose(forecaster.weights()[0], by_hand, rtol=1e-5)
    one_memory = weights_by_hand(values, 0.1, halfway, (0.999,))
    assert np.allclose(by_hand, one_memory, rtol=1e-9) == (steps <= 143)  # the 143rd value has the number 142


def test_a_quiet_stretch_teaches_as_much_as_a_loud_one(rng: np.random.Generator) -> None:
    loud, quiet = 30.0 * rng.normal(size=200).cumsum(), rng.normal(size=400)  # a random walk, then noise
    values = np.concatenate([loud, loud[-1] + quiet])[:, None]
    forecaster = fed(values, smoothers=(Smoother("naive", 1.0), Smoother("slow", 0.1)), has_filter=False)
    assert forecaster.weights()[0, 1] > 0.9  # though what it saves now is nothing beside what it lost before


@pytest.mark.parametrize("noise", ["normal", "poisson", "heavy"])
def test_intervals_cover_what_they_say(noise: str, rng: np.random.Generator) -> None:
    series, steps, horizon = 40, 500, 4
    drawn = {
        "normal": lambda: rng.normal(50.0, 5.0, (steps, series)),
        "poisson": lambda: rng.poisson(20.0, (steps, series)).astype(float),
        "heavy": lambda: rng.standard_t(3, (steps, series)),
    }
    values = drawn[noise]()
    forecaster, inside = Forecaster(series, horizon=horizon), []
    for step, row in enumerate(values[:-horizon]):
        forecaster.update(row)
        if step > 100 and step % 10 == 0:
            low, high = forecaster.forecast((0.1, 0.9)).quantiles.transpose(2, 1, 0)
            truth = values[step + 1 : step + 1 + horizon]
            inside.append((truth >= low) & (truth <= high))
    assert np.mean(inside) == pytest.approx(0.8, abs=0.03)


def test_a_constant_series_is_its_own_forecast() -> None:
    forecast = fed(np.full((40, 2), 7.0), horizon=3, period=4).forecast()
    np.testing.assert_allclose(forecast.mean, 7.0)
    np.testing.assert_allclose(forecast.point, 7.0)
    np.testing.assert_allclose(forecast.quantiles, 7.0)


def test_missing_values_are_filled_with_the_forecast(rng: np.random.Generator) -> None:
    values = np.full((50, 2), 4.0)
    values[10:20, 1] = np.nan
    np.testing.assert_allclose(fed(values).forecast().point, 4.0)
    with pytest.raises(UsageError, match="finite first value"):
        Forecaster(2).update([1.0, np.nan])
    known = np.cumsum(rng.normal(size=(300, 2)), axis=0)
    one, other = (fed(known, horizon=4) for _ in range(2))
    other.update(one.forecast().point[:, 0])
    one.update([np.nan, np.nan])
    np.testing.assert_allclose(one.forecast().quantiles, other.forecast().quantiles, rtol=1e-9)


def test_many_steps_at_once_are_the_same_as_one_after_the_other(rng: np.random.Generator) -> None:
    values = rng.poisson(9.0, (40, 3)).astype(float)
    values[5, 2] = np.nan
    one, other = fed(values, horizon=4), Forecaster(3, horizon=4)
    other.update(np.asfortranarray(values[:25]))
    other.update(values[25:])
    np.testing.assert_array_equal(one.forecast().quantiles, other.forecast().quantiles)
    assert one.steps == other.steps == 40


def test_nothing_is_forecast_below_the_least() -> None:
    forecast = fed(np.arange(40.0, 0.0, -1.0)[:, None], horizon=20, least=0.0).forecast()
    assert min(forecast.mean.min(), forecast.point.min()) >= 0.0
    assert forecast.quantiles.min() >= 0.0


def test_one_series_does_not_disturb_another(rng: np.random.Generator) -> None:
    values = rng.poisson(9.0, (80, 3)).astype(float)
    together, alone = fed(values, horizon=3), fed(values[:, 1:2], horizon=3)
    np.testing.assert_allclose(together.forecast().point[1:2], alone.forecast().point, rtol=1e-12)


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: Forecaster(0), "series"),
        (lambda: Forecaster(1, horizon=0), "horizon"),
        (lambda: Forecaster(1, period=-1), "period"),
        (lambda: Forecaster(1, smoothers=(), has_filter=False), "smoothers"),
        (lambda: Forecaster(2).update([1.0]), "values"),
        (lambda: Forecaster(2).update(np.ones((4, 1))), "values"),
        (lambda: Forecaster(2).forecast(), "series"),
        (lambda: fed(np.ones((5, 1))).forecast((0.5, 1.0)), "levels"),
        (lambda: rolling_accuracy(np.arange(10.0), horizon=1), "history"),
        (lambda: rolling_accuracy(np.arange(40.0), horizon=1, period=30), "history"),
        (lambda: errors_by_origin(np.arange(40.0), "best", horizon=1), "method"),
    ],
)
def test_refusals_name_the_field(call: object, field: str) -> None:
    with pytest.raises(UsageError) as error:
        call()  # type: ignore[operator]
    assert error.value.field == field


def test_accuracy_by_hand() -> None:
    values = np.array([2.0, 5.0, 3.0, 6.0, 1.0, 4.0, 4.0, 9.0, 2.0, 5.0, 5.0, 8.0])
    naive = rolling_accuracy(values, horizon=1)[0]
    in_sample, out_of_sample = np.abs(np.diff(values[:6])).mean(), np.abs(np.diff(values[5:])).mean()
    assert naive.method == "naive"
    assert naive.mase == pytest.approx(out_of_sample / in_sample)
    np.testing.assert_allclose(errors_by_origin(values, "naive", horizon=1), np.abs(np.diff(values[5:])))
    two_ahead = errors_by_origin(values, "naive", horizon=2)  # from 4 to 4 and 9, then to 9 and 2, …
    np.testing.assert_allclose(two_ahead, [2.5, 3.5, 5.5, 3.0, 1.5])


def test_a_random_walk_is_best_left_naive_and_it_says_so(rng: np.random.Generator) -> None:
    walk = np.cumsum(rng.normal(size=600))
    rows = {row.method: row for row in rolling_accuracy(walk, horizon=1)}
    assert loses_to_naive(list(rows.values())) == (rows["mixture"].mase > rows["naive"].mase)  # type: ignore[operator]
    assert loses_to_naive(list(rows.values()), "naive") is False
    assert rows["mixture"].mase < 1.05 * rows["naive"].mase  # type: ignore[operator]


@pytest.mark.parametrize("value", [1.0, 0.1, 7.3e9])
def test_a_constant_series_has_no_scaled_error_and_lies_in_every_interval(value: float) -> None:
    rows = rolling_accuracy(np.full(40, value), horizon=2)
    assert {row.mase for row in rows} == {None}
    assert {(row.coverage_80_frac, row.coverage_90_frac) for row in rows} == {(1.0, 1.0)}


def test_statsmodels_is_not_imported_before_it_is_needed() -> None:
    code = "import trimtab.forecast, trimtab.cli, sys; print('statsmodels' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_median_is_tracked_and_the_mean_is_told_beside_it(rng: np.random.Generator) -> None:
    values = rng.lognormal(0.0, 1.5, (3000, 100))  # median 1, mean 3.08
    forecast = fed(values, smoothers=(), medians=(0.03,), has_filter=False).forecast()
    assert forecast.point.mean() == pytest.approx(1.0, rel=0.1)
    assert forecast.mean.mean() == pytest.approx(np.exp(1.125), rel=0.1)
