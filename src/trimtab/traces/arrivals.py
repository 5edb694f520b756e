"""Arrival processes: when requests come. Functions of a generator, and the same as checked configuration.

Every function returns n arrival times in seconds, increasing, shape [n].
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, model_validator

from trimtab.compiled.elementwise import elementwise

FloatArray: TypeAlias = npt.NDArray[np.float64]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def arrivals_poisson(rng: np.random.Generator, rate_per_s: float, n: int) -> FloatArray:
    """Poisson process: exponential inter-arrival times."""
    return np.cumsum(rng.exponential(1.0 / rate_per_s, n))


def arrivals_gamma(rng: np.random.Generator, rate_per_s: float, cv: float, n: int) -> FloatArray:
    """Renewal process with Gamma inter-arrival times of mean 1 / rate and coefficient of variation `cv`."""
    shape = 1.0 / cv**2
    return np.cumsum(rng.gamma(shape, 1.0 / (rate_per_s * shape), n))


def arrivals_mmpp(
    rng: np.random.Generator, rates_per_s: tuple[float, ...], sojourns_s: tuple[float, ...], n: int
) -> FloatArray:
    """Markov-modulated Poisson process, stationary from time 0.

    State k lasts an exponential time of mean `sojourns_s[k]` with arrivals at `rates_per_s[k]` (0 allowed);
    then each other state follows with equal probability, so that state k holds for the share
    `sojourns_s[k] / sum(sojourns_s)` of the time.

    Source: Fischer and Meier-Hellstern, "The Markov-modulated Poisson process (MMPP) cookbook", Performance
    Evaluation 18 (1993), §1.
    """
    rates, sojourns = np.asarray(rates_per_s), np.asarray(sojourns_s)
    state = int(rng.choice(len(sojourns), p=sojourns / sojourns.sum()))
    stays = int(1.2 * n / _mean_rate(rates, sojourns) / sojourns.mean()) + 16

    def batch(start_s: float) -> tuple[FloatArray, float]:
        nonlocal state
        states = _jumps(rng, state, len(rates), stays)
        state = int(states[-1])
        return _stays(rng, rates[states[:-1]], sojourns[states[:-1]], start_s)

    return _until(batch, n)


def arrivals_diurnal(
    rng: np.random.Generator,
    rate_per_s: float,
    peak_to_trough: float,
    period_s: float,
    peak_at_s: float,
    n: int,
) -> FloatArray:
    """Poisson process whose rate is a cosine of mean `rate_per_s` with a peak at `peak_at_s`.

    Source: thinning, Lewis and Shedler, Naval Research Logistics Quarterly 26 (1979), Algorithm 1.
    """
    swing_frac = (peak_to_trough - 1.0) / (peak_to_trough + 1.0)
    peak_per_s = rate_per_s * (1.0 + swing_frac)

    def batch(start_s: float) -> tuple[FloatArray, float]:
        candidates = start_s + arrivals_poisson(rng, peak_per_s, n + 16)
        phase = 2.0 * np.pi * (candidates - peak_at_s) / period_s
        accept_frac = (1.0 + swing_frac * elementwise(math.cos, phase)) / (1.0 + swing_frac)
        return candidates[rng.random(len(candidates)) < accept_frac], float(candidates[-1])

    return _until(batch, n)


def _until(batch: Callable[[float], tuple[FloatArray, float]], n: int) -> FloatArray:
    """The first n arrivals of consecutive batches; a batch starts at a time and says when it ended."""
    parts, found, end_s = [np.empty(0)], 0, 0.0
    while found < n:
        part, end_s = batch(end_s)
        parts.append(part)
        found += len(part)
    return np.concatenate(parts)[:n]


def _mean_rate(rates_per_s: FloatArray, sojourns_s: FloatArray) -> float:
    return float((rates_per_s * sojourns_s).sum() / sojourns_s.sum())


def _jumps(rng: np.random.Generator, state: int, states: int, stays: int) -> npt.NDArray[np.int64]:
    """The present state and the next ones [stays + 1], never the same twice in a row."""
    steps = rng.integers(1, states, stays)
    return (state + np.concatenate(([0], np.cumsum(steps)))) % states


def _stays(
    rng: np.random.Generator, rates_per_s: FloatArray, sojourns_s: FloatArray, start_s: float
) -> tuple[FloatArray, float]:
    """Arrivals in consecutive stays: a Poisson number in each, uniform within it."""
    lasts_s = rng.exponential(sojourns_s)
    ends_s = start_s + np.cumsum(lasts_s)
    counts = rng.poisson(rates_per_s * lasts_s)
    offset_s = rng.random(int(counts.sum())) * np.repeat(lasts_s, counts)
    return np.sort(np.repeat(ends_s - lasts_s, counts) + offset_s), float(ends_s[-1])


class _Spec(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PoissonArrivals(_Spec):
    """`arrivals_poisson` as configuration."""

    process: Literal["poisson"]
    rate_per_s: Positive = Field(description="mean arrivals per second")

    @property
    def mean_rate_per_s(self) -> float:
        """Long-run arrival rate."""
        return self.rate_per_s

    def draw(self, rng: np.random.Generator, n: int) -> FloatArray:
        """Arrival times in seconds [n]."""
        return arrivals_poisson(rng, self.rate_per_s, n)


class GammaArrivals(_Spec):
    """`arrivals_gamma` as configuration; `cv` > 1 is burstier than Poisson."""

    process: Literal["gamma"]
    rate_per_s: Positive = Field(description="mean arrivals per second")
    cv: Positive = Field(description="coefficient of variation of the gaps; Poisson = 1")

    @property
    def mean_rate_per_s(self) -> float:
        """Long-run arrival rate."""
        return self.rate_per_s

    def draw(self, rng: np.random.Generator, n: int) -> FloatArray:
        """Arrival times in seconds [n]."""
        return arrivals_gamma(rng, self.rate_per_s, self.cv, n)


class MmppArrivals(_Spec):
    """`arrivals_mmpp` as configuration: one rate and one mean sojourn for each state."""

    process: Literal["mmpp"]
    rates_per_s: tuple[Annotated[float, Field(ge=0, allow_inf_nan=False)], ...] = Field(
        min_length=2, description="arrivals per second in each state"
    )
    sojourns_s: tuple[Positive, ...] = Field(min_length=2, description="mean seconds in each state")

    @model_validator(mode="after")
    def _one_sojourn_each(self) -> MmppArrivals:
        if len(self.rates_per_s) != len(self.sojourns_s):
            raise ValueError("rates_per_s and sojourns_s must have the same length")
        if not any(self.rates_per_s):
            raise ValueError("at least one of rates_per_s must be greater than 0")
        return self

    @property
    def mean_rate_per_s(self) -> float:
        """Long-run arrival rate."""
        return _mean_rate(np.asarray(self.rates_per_s), np.asarray(self.sojourns_s))

    def draw(self, rng: np.random.Generator, n: int) -> FloatArray:
        """Arrival times in seconds [n]."""
        return arrivals_mmpp(rng, self.rates_per_s, self.sojourns_s, n)


class DiurnalArrivals(_Spec):
    """`arrivals_diurnal` as configuration; starts in the trough unless `peak_at_s` says otherwise."""

    process: Literal["diurnal"]
    rate_per_s: Positive = Field(description="mean arrivals per second")
    peak_to_trough: float = Field(ge=1, allow_inf_nan=False, description="highest rate ÷ lowest rate")
    period_s: Positive = Field(86_400.0, description="length of a cycle")
    peak_at_s: float | None = Field(
        None, allow_inf_nan=False, description="time of the highest rate; default: half a period"
    )

    @property
    def mean_rate_per_s(self) -> float:
        """Long-run arrival rate."""
        return self.rate_per_s

    def draw(self, rng: np.random.Generator, n: int) -> FloatArray:
        """Arrival times in seconds [n]."""
        peak_at_s = self.period_s / 2.0 if self.peak_at_s is None else self.peak_at_s
        return arrivals_diurnal(rng, self.rate_per_s, self.peak_to_trough, self.period_s, peak_at_s, n)


ArrivalSpec = Annotated[
    PoissonArrivals | GammaArrivals | MmppArrivals | DiurnalArrivals, Field(discriminator="process")
]
