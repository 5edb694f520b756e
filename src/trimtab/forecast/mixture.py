"""Online forecasts of many series: a mixture of smoothers, medians and an autoregressive filter.

Idea: no method is best on all traffic, and the best one is known only afterwards. So all run, and the mixture
weighs each by its recent error: weights ∝ (discounted absolute error halfway to the horizon)^−32, in units
of the mean error of all experts in the last few dozen steps. The best memory of errors is known only
afterwards too. So there are two such mixtures, with a short and with a long memory of errors, and the
forecast mixes both in the same way, by their own errors.
Absolute errors make the point forecast a median; with bursts the mean is larger, so `Forecast` has both.
Source: combination by past error, Bates and Granger (Operational Research Quarterly 20, 1969); that forgets,
Raftery, Kárný and Ettler (Technometrics 52, 2010); averaged over how fast it forgets, Dangl and Halling
(Journal of Financial Economics 106, 2012; the last two weigh by likelihood, not by a power of the error).
Intervals from the quantiles of past errors at the same lead (split conformal prediction: Vovk, Gammerman and
Shafer, Algorithmic Learning in a Random World, 2005; here on a sliding window).
Cost: O(experts + order · (order + horizon)) per series and step, compiled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from trimtab.errors import UsageError
from trimtab.forecast.mixture_kernels import LAST, NEXT, new_bank, paths, take_in, weigh

Floats: TypeAlias = npt.NDArray[np.float64]

WINDOW: Final = 256  # errors that quantiles are taken from
LEVELS: Final = (0.05, 0.1, 0.5, 0.9, 0.95)


@dataclass(frozen=True, slots=True)
class Smoother:
    """Parameters of exponential smoothing, see `recursions`: β = γ = 0 simple, γ = 0 double, else triple."""

    name: str
    alpha: float
    beta: float = 0.0
    phi: float = 0.0
    gamma: float = 0.0


NAIVE: Final = Smoother("naive", 1.0)
SEASONAL_NAIVE: Final = Smoother("seasonal naive", 0.0, gamma=1.0)
MEDIANS: Final = (0.03, 0.1, 0.3)
FILTER_NAME: Final = "autoregressive"
SMOOTHERS: Final = (
    NAIVE,
    *(Smoother(f"simple {alpha:g}", alpha) for alpha in (0.02, 0.05, 0.1, 0.2, 0.4, 0.7)),
    Smoother("damped 0.1", 0.1, 0.02, 0.98),
    Smoother("damped 0.4", 0.4, 0.1, 0.9),
)
SEASONAL: Final = (
    SEASONAL_NAIVE,
    Smoother("seasonal 0.01", 0.01, gamma=0.3),
    Smoother("seasonal 0.05", 0.05, gamma=0.1),
    Smoother("seasonal 0.2", 0.2, gamma=0.1),
    Smoother("seasonal 0.5", 0.5, gamma=0.3),
)


@dataclass(frozen=True, slots=True)
class Forecast:
    """The next steps: `point`, `mean` [series, horizon] and `quantiles` [series, horizon, levels].

    The point minimises the absolute error. The mean, larger on bursts, is the point plus the mean of
    its past errors.
    """

    point: Floats
    mean: Floats
    levels: tuple[float, ...]
    quantiles: Floats


class Forecaster:
    """Learns from one value of each series per step, and forecasts the next `horizon` steps.

    Args:
        series: number of series.
        horizon: steps ahead.
        period: steps of a season; 0 = no season.
        least: lower limit of forecasts, 0 for counts and rates.
        smoothers: the experts; default: `SMOOTHERS`, and `SEASONAL` if there is a period.
        medians: rates of the tracked medians; default: `MEDIANS`, or none beside given smoothers.
        has_filter: whether the autoregressive filter is one more expert.

    Raises:
        UsageError: an argument outside its range.
    """

    def __init__(
        self,
        series: int = 1,
        *,
        horizon: int = 1,
        period: int = 0,
        least: float = -np.inf,
        smoothers: Sequence[Smoother] | None = None,
        medians: Sequence[float] | None = None,
        has_filter: bool = True,
    ) -> None:
        _refuse_below(1, series, "series")
        _refuse_below(1, horizon, "horizon")
        _refuse_below(0, period, "period")
        chosen = smoothers if smoothers is not None else SMOOTHERS + (SEASONAL if period > 1 else ())
        rates = medians if medians is not None else (MEDIANS if smoothers is None else ())
        if not chosen and not rates and not has_filter:
            raise UsageError("no method at all", field="smoothers", expected="at least one, or the filter")
        tracked = (f"median {rate:g}" for rate in rates)
        self.names = (*(s.name for s in chosen), *tracked, *((FILTER_NAME,) if has_filter else ()))
        rows = np.array([(s.alpha, s.beta, s.phi, s.gamma) for s in chosen]).reshape(len(chosen), 4)
        self._bank = new_bank(rows, rates, has_filter, series, horizon, period, float(least), WINDOW)
        self._weights = np.zeros((len(self.names), series))
        self._paths = np.zeros((len(self.names), horizon, series))

    def update(self, values: npt.ArrayLike) -> None:
        """Learn from the next value of each series [series], or from several steps [steps, series].

        nan = no value. Raises UsageError.
        """
        rows = np.array(values, np.float64, order="C")  # a copy: what is missing is filled in
        rows = rows if rows.ndim == 2 else rows.reshape(1, -1)
        if rows.shape[1] != self.series:
            expected = f"{self.series}, one for each series"
            raise UsageError("wrong number of values", field="values", value=rows.shape[1], expected=expected)
        if self.steps == 0 and not np.isfinite(rows[:1]).all():
            first = int(np.argmin(np.isfinite(rows[0])))
            raise UsageError("no number", field=f"values[{first}]", expected="a finite first value")
        take_in(self._bank, rows)

    @property
    def series(self) -> int:
        """Number of series."""
        return int(self._bank.work.shape[1])

    @property
    def steps(self) -> int:
        """Number of steps learned from."""
        return int(self._bank.steps[0])

    def weights(self) -> Floats:
        """Weights of the experts (`names`) [series, experts], summing to 1."""
        weigh(self._bank, self._weights)
        return self._weights.T.copy()

    def paths(self) -> Floats:
        """Forecast of each expert [series, experts, horizon]."""
        paths(self._bank, self._paths)
        return self._paths.transpose(2, 0, 1).copy()

    def forecast(self, levels: Sequence[float] = LEVELS) -> Forecast:
        """The mixture's forecast, with these quantiles. Raises UsageError before the first value."""
        if self.steps == 0:
            raise UsageError("nothing seen yet", field="series", expected="at least one value")
        if not all(0.0 < level < 1.0 for level in levels):
            raise UsageError(
                "cannot be used", field="levels", value=tuple(levels), expected="between 0 and 1"
            )
        near = _nearness(self._bank.horizon)
        point = (self.weights()[..., None] * self.paths()).sum(axis=1)
        bias = np.stack([self._mean_error(k) for k in (NEXT, LAST)])  # [LEADS, series]
        mean = np.maximum(
            point + near * bias[NEXT][:, None] + (1.0 - near) * bias[LAST][:, None], self._bank.least
        )
        spread = np.stack([self._error_quantiles(k, levels) for k in (NEXT, LAST)])  # [LEADS, series, levels]
        at = near[None, :, None]
        errors = at * spread[NEXT][:, None] + (1.0 - at) * spread[LAST][:, None]
        return Forecast(point, mean, tuple(levels), np.maximum(point[:, :, None] + errors, self._bank.least))

    def _mean_error(self, lead: int) -> Floats:
        """Mean of past errors [series]; 0 without errors."""
        count = min(int(self._bank.scored[lead]), WINDOW)
        return self._bank.errors[lead, : max(1, count)].mean(axis=0)  # type: ignore[no-any-return]

    def _error_quantiles(self, lead: int, levels: Sequence[float]) -> Floats:
        """Quantiles of past errors [series, levels], wider for few errors; nan without errors."""
        count = min(int(self._bank.scored[lead]), WINDOW)
        if count == 0:
            return np.full((self.series, len(levels)), np.nan)
        ordered: Floats = np.sort(self._bank.errors[lead, :count], axis=0)
        quantiles: Floats = ordered[_ranks(count, np.asarray(levels))].T
        return quantiles


def _ranks(count: int, levels: Floats) -> npt.NDArray[np.int64]:
    """Positions of quantiles in `count` sorted errors; the next error counts, on the far side."""
    above = np.ceil((count + 1) * levels) - 1
    below = np.floor((count + 1) * levels) - 1
    return np.clip(np.where(levels < 0.5, below, above), 0, count - 1).astype(np.int64)


def _nearness(horizon: int) -> Floats:
    """From 1 at the next step to 0 at the horizon [horizon], by the square root, as of a random walk."""
    root = np.sqrt(np.arange(1, horizon + 1))
    return np.ones(1) if horizon == 1 else (root[-1] - root) / (root[-1] - 1.0)


def _refuse_below(least: int, value: int, field: str) -> None:
    if value != int(value) or value < least:
        raise UsageError(
            "cannot be used", field=field, value=value, expected=f"a whole number, at least {least}"
        )
