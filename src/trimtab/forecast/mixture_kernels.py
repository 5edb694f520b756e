"""The compiled part of the mixture: one pass over all series per step.

Every expert is scored at two leads, the next step and the horizon, by its discounted absolute error. Its
weight at a lead is (least error / its error)^16, interpolated between the two; so is the spread of past
errors.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from trimtab.domain.kernel import helper, kernel
from trimtab.forecast.recursions import (
    FILTER,
    MIDDLE,
    PARAMETERS,
    SEASON,
    TRACKER,
    filter_ahead,
    filter_step,
    smooth,
    smooth_ahead,
    track,
)

NEXT, LAST, LEADS = range(3)  # the leads at which experts are scored
DISCOUNT = 0.985  # of past errors, per step
EARLY = 0.9  # of the first of them, which soon counts for little
TINY = 1e-12


class Bank(NamedTuple):
    """All numbers of some series and experts: smoothers, trackers of medians, and perhaps the filter."""

    parameters: Any  # [smoothers, PARAMETERS]
    rates: Any  # [trackers]
    horizon: int
    least: float  # no forecast is below
    steps: Any  # [1], values seen
    smoothers: Any  # [smoothers, SEASON + period, series]
    trackers: Any  # [trackers, TRACKER, series]
    filters: Any  # [series, FILTER], or [series, 0] without
    made: (
        Any  # [horizon, experts + 1, LEADS, series]: forecasts by the step they were made; last: the mixture
    )
    losses: Any  # [experts, LEADS, series]
    errors: Any  # [LEADS, window, series]: last errors of the mixture
    scored: Any  # [LEADS]: how many errors there were
    work: Any  # [2, series]


def new_bank(
    parameters: Any,
    rates: Any,
    has_filter: bool,
    series: int,
    horizon: int,
    period: int,
    least: float,
    window: int,
) -> Bank:
    """A bank that has seen nothing; `parameters` [smoothers, PARAMETERS], `rates` [trackers]."""
    smoothers, trackers = len(parameters), len(rates)
    experts = smoothers + trackers + has_filter
    return Bank(
        np.ascontiguousarray(parameters, np.float64).reshape(smoothers, PARAMETERS),
        np.array(rates, np.float64),
        horizon,
        least,
        np.zeros(1, np.int64),
        np.zeros((smoothers, SEASON + max(1, period), series)),
        np.zeros((trackers, TRACKER, series)),
        np.zeros((series, FILTER if has_filter else 0)),
        np.zeros((horizon, experts + 1, LEADS, series)),
        np.zeros((experts, LEADS, series)),
        np.zeros((LEADS, window, series)),
        np.zeros(LEADS, np.int64),
        np.zeros((2, series)),
    )


@kernel
def take_in(bank: Any, values: Any) -> None:
    """Score, learn and forecast for a value of each series; the mixture's forecast stands in for nan."""
    step, mixture = bank.steps[0], bank.made.shape[1] - 1
    if step > 0:
        expected = bank.made[(step - 1) % bank.horizon, mixture, NEXT]
        for s in range(len(values)):
            if not np.isfinite(values[s]):
                values[s] = expected[s]
    _score(bank, step, values)
    for e in range(len(bank.parameters)):
        smooth(bank.smoothers[e], bank.parameters[e], step, values)
    for e in range(len(bank.rates)):
        track(bank.trackers[e], bank.rates[e], step, values)
    if bank.filters.shape[1] > 0:
        for s in range(len(values)):
            filter_step(bank.filters, s, step, values[s])
    bank.steps[0] = step + 1
    for k in range(LEADS):
        _look_ahead(bank, k)


@helper
def _score(bank: Any, step: int, values: Any) -> None:
    """Errors of what was forecast for now, one step ago and a horizon ago."""
    rate = max(1.0 - DISCOUNT, 1.0 - EARLY if step < 2 else 1.0 / step)
    mixture = bank.made.shape[1] - 1
    for k in range(LEADS):
        ago = 1 if k == NEXT else bank.horizon
        if step < ago:
            continue
        made = bank.made[(step - ago) % bank.horizon]
        for e in range(mixture):
            losses, guess = bank.losses[e, k], made[e, k]
            for s in range(len(values)):
                losses[s] = losses[s] + rate * (abs(values[s] - guess[s]) - losses[s])
        errors, guess = bank.errors[k, bank.scored[k] % bank.errors.shape[1]], made[mixture, k]
        for s in range(len(values)):
            errors[s] = values[s] - guess[s]
        bank.scored[k] += 1


@helper
def _look_ahead(bank: Any, k: int) -> None:
    """Forecasts of all experts and of the mixture at one lead, kept until they can be scored."""
    made = bank.made[(bank.steps[0] - 1) % bank.horizon]
    lead = 1 if k == NEXT else bank.horizon
    mixture = made.shape[0] - 1
    mixed, total = made[mixture, k], bank.work[0]
    _least_losses(bank, k, bank.work[1])
    for s in range(len(mixed)):
        mixed[s] = 0.0
        total[s] = 0.0
    for e in range(mixture):
        guess = made[e, k]
        expert_ahead(bank, e, lead, guess)
        _add_weighted(bank.losses[e, k], bank.work[1], guess, mixed, total)
    for s in range(len(mixed)):
        mixed[s] = np.true_divide(mixed[s], total[s])


@helper
def _add_weighted(losses: Any, least: Any, guess: Any, mixed: Any, total: Any) -> None:
    for s in range(len(mixed)):
        weight = _weight(losses[s], least[s])
        mixed[s] = mixed[s] + weight * guess[s]
        total[s] = total[s] + weight


@helper
def expert_ahead(bank: Any, e: int, lead: int, out: Any) -> None:
    """What expert e forecasts `lead` steps ahead, into `out` [series]."""
    if e < len(bank.parameters):
        smooth_ahead(bank.smoothers[e], bank.parameters[e], bank.steps[0], lead, bank.least, out)
        return
    tracker = e - len(bank.parameters)
    if tracker < len(bank.rates):
        for s in range(len(out)):
            out[s] = max(bank.trackers[tracker, MIDDLE, s], bank.least)
        return
    for s in range(len(out)):
        out[s] = max(filter_ahead(bank.filters, s, lead), bank.least)


@helper
def _least_losses(bank: Any, k: int, least: Any) -> None:
    for s in range(len(least)):
        least[s] = np.inf
    for e in range(bank.losses.shape[0]):
        losses = bank.losses[e, k]
        for s in range(len(least)):
            least[s] = losses[s] if losses[s] < least[s] else least[s]


@helper(inline=True)
def _weight(loss: float, least: float) -> float:
    """(least / loss)^16, and 1 where both are nothing. The division never raises, so it can be vectorised."""
    ratio = np.true_divide(least + TINY, loss + TINY)
    ratio = ratio * ratio
    ratio = ratio * ratio
    ratio = ratio * ratio
    return float(ratio * ratio)


@kernel
def weigh(bank: Any, weights: Any) -> None:
    """Shares of the experts at both leads into `weights` [experts, LEADS, series]."""
    total = bank.work[0]
    for k in range(LEADS):
        _least_losses(bank, k, bank.work[1])
        for s in range(len(total)):
            total[s] = 0.0
        for e in range(weights.shape[0]):
            for s in range(len(total)):
                weights[e, k, s] = _weight(bank.losses[e, k, s], bank.work[1, s])
                total[s] = total[s] + weights[e, k, s]
        for e in range(weights.shape[0]):
            for s in range(len(total)):
                weights[e, k, s] /= total[s]


@kernel
def paths(bank: Any, path: Any) -> None:
    """Forecasts of every expert into `path` [experts, horizon, series]."""
    for e in range(path.shape[0]):
        for h in range(path.shape[1]):
            expert_ahead(bank, e, h + 1, path[e, h])
