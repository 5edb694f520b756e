"""The online recursions: exponential smoothing with trend and seasons, medians, an autoregressive filter.

Smoothing is the additive damped method of Holt (1957), Winters (1960) and Gardner and McKenzie (1985), in the
form of Hyndman, Koehler, Ord and Snyder, Forecasting with Exponential Smoothing (2008), as error corrections:
    e = y − (level + φ trend + season),
    level ← level + φ trend + α e,  trend ← φ trend + β e,  season ← season + γ e.
So α, β, γ mean: simple (β = γ = 0), double (γ = 0), triple; α = 1 alone is naive, γ = 1 alone seasonal naive.
A median is tracked by steps of a set share of the mean deviation, up or down (stochastic approximation:
Robbins and Monro, Annals of Mathematical Statistics 22, 1951). The filter is recursive least squares with
forgetting (Haykin, Adaptive Filter Theory, 1986) on deviations from a slow mean. Cost of a step: O(1), O(1)
and O(order²) for each series. Smoothers and medians have the series as their last axis: the processor takes
several at once; a filter has its numbers side by side, for the same reason.
"""

from __future__ import annotations

from typing import Any, Final

from trimtab.compiled.kernel import helper

ALPHA, BETA, PHI, GAMMA, PARAMETERS = range(5)
LEVEL, TREND, SEASON = range(3)  # SEASON: where the seasons begin, one for each step of the period

MIDDLE, SPREAD, TRACKER = range(3)
SPREAD_RATE: Final = 0.02

ORDER: Final = 8
MEAN, REACH, RECENT = 0, 1, 2
COEFFICIENT = RECENT + ORDER
INVERSE = COEFFICIENT + ORDER  # of the matrix of correlations, row by row
WORK = INVERSE + ORDER * ORDER
FILTER = WORK + ORDER  # how many numbers a filter keeps
FORGET: Final = 0.998
GROW: Final = 1.0 / FORGET
MEAN_RATE: Final = 0.01
REACH_DECAY: Final = 0.999  # of the largest deviation seen, which forecasts don't leave


@helper
def smooth_ahead(state: Any, parameters: Any, step: int, lead: int, least: float, out: Any) -> None:
    """Forecasts of value `step` + lead − 1 (from 0) into `out` [series], by smoothers after `step` values.

    `state` [SEASON + period, series].
    """
    reach, power = 0.0, 1.0  # reach: what a trend of 1 adds up to
    for _ in range(lead):
        power *= parameters[PHI]
        reach += power
    level, trend = state[LEVEL], state[TREND]
    season = state[SEASON + (step + lead - 1) % (state.shape[0] - SEASON)]
    for s in range(len(out)):
        value = level[s] + reach * trend[s] + season[s]
        out[s] = value if value > least else least


@helper
def smooth(state: Any, parameters: Any, step: int, values: Any) -> None:
    """Learn from value number `step` (from 0) of each series [series].

    In the first period, seasons are the values less the level.
    """
    period = state.shape[0] - SEASON
    level, trend, season = state[LEVEL], state[TREND], state[SEASON + step % period]
    alpha, beta, phi, gamma = parameters[ALPHA], parameters[BETA], parameters[PHI], parameters[GAMMA]
    if step == 0:
        for s in range(len(values)):
            level[s] = values[s]
        return
    for s in range(len(values)):
        slope = phi * trend[s]
        error = values[s] - (level[s] + slope + season[s])
        level[s] = level[s] + slope + alpha * error
        trend[s] = slope + beta * error
        season[s] = season[s] + gamma * error
    if step < period and gamma > 0.0:
        for s in range(len(values)):
            season[s] = values[s] - level[s]


@helper
def track(state: Any, rate: float, step: int, values: Any) -> None:
    """Move the medians of all series towards value number `step`; `state` [TRACKER, series]."""
    middle, spread = state[MIDDLE], state[SPREAD]
    pace, share = max(rate, 1.0 / (step + 1.0)), max(SPREAD_RATE, 1.0 / (step + 1.0))
    for s in range(len(values)):
        if step == 0:
            middle[s] = values[s]
        deviation = values[s] - middle[s]
        spread[s] = spread[s] + share * (abs(deviation) - spread[s])
        side = 1.0 if deviation > 0.0 else (-1.0 if deviation < 0.0 else 0.0)
        middle[s] = middle[s] + side * pace * spread[s]


@helper
def filter_path(filters: Any, s: int, steps: int, tape: Any) -> None:
    """Forecasts of series s, each an input of the next: deviations from the mean, into `tape` from ORDER on.

    `filters` [series, FILTER]; `tape` [at least ORDER + steps] begins with the last deviations, oldest first.
    """
    reach = filters[s, REACH]
    for i in range(ORDER):
        tape[ORDER - 1 - i] = filters[s, RECENT + i]
    for h in range(steps):
        value = 0.0
        for i in range(ORDER):  # the newest last: the others need not wait for it
            value += filters[s, COEFFICIENT + ORDER - 1 - i] * tape[h + i]
        tape[ORDER + h] = min(max(value, -reach), reach)


@helper
def filter_step(filters: Any, s: int, step: int, value: float) -> None:
    """Learn from value number `step` of series s; the first value initialises the mean."""
    if step == 0:
        filters[s, MEAN] = value
        return
    deviation = value - filters[s, MEAN]
    if filters[s, REACH] == 0.0 and deviation != 0.0:  # the first deviation sets the scale
        for i in range(ORDER):
            filters[s, INVERSE + i * ORDER + i] = 1.0 / (deviation * deviation)
    if step > ORDER and filters[s, REACH] > 0.0:
        _learn(filters, s, deviation)
    filters[s, REACH] = max(abs(deviation), REACH_DECAY * filters[s, REACH])
    for i in range(ORDER - 1, 0, -1):
        filters[s, RECENT + i] = filters[s, RECENT + i - 1]
    filters[s, RECENT] = deviation
    filters[s, MEAN] += max(MEAN_RATE, 1.0 / (step + 1.0)) * deviation


@helper
def _learn(filters: Any, s: int, deviation: float) -> None:
    """One step of recursive least squares."""
    strength, error = FORGET, deviation
    for i in range(ORDER):
        gain = 0.0
        for j in range(ORDER):
            gain += filters[s, INVERSE + j * ORDER + i] * filters[s, RECENT + j]
        filters[s, WORK + i] = gain
        strength += gain * filters[s, RECENT + i]
        error -= filters[s, COEFFICIENT + i] * filters[s, RECENT + i]
    share = 1.0 / strength
    for i in range(ORDER):
        gain = filters[s, WORK + i] * share
        filters[s, COEFFICIENT + i] += gain * error
        for j in range(ORDER):
            at = INVERSE + i * ORDER + j
            filters[s, at] = (filters[s, at] - gain * filters[s, WORK + j]) * GROW
