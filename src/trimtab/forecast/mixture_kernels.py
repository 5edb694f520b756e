"""The compiled part of the mixture: one pass over all series per step.

The score of an expert is its discounted absolute error halfway to the horizon. Its weight is
(least error / its error)^32. Errors count in units of the recent mean error of all experts, so that a quiet
stretch counts as much as a volatile one, and an outlier at most as much as 1 / (1 − DISCOUNT_UNIT) values.
The error halfway stands for the errors at all leads, at the cost of one. There are two memories
of errors, a short and a long one. Each makes a mixture. The two are scored and weighed like experts, by
the long memory. Until the short one forgets, both are equal. Errors of the mixture are kept for the next
step and of the horizon.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from trimtab.compiled.kernel import helper, kernel
from trimtab.forecast.recursions import (
    FILTER,
    MEAN,
    MIDDLE,
    ORDER,
    PARAMETERS,
    SEASON,
    TRACKER,
    filter_path,
    filter_step,
    smooth,
    smooth_ahead,
    track,
)

NEXT, LAST, LEADS = range(3)  # the leads at which the mixture's own errors are kept
TOTAL, LEAST, SUMS = range(LEADS, LEADS + 3)  # what is summed up for each memory, after the forecasts
DISCOUNTS = (0.993, 0.999)  # of past errors, per step, one for each memory
LONG = DISCOUNTS[-1]  # that of the memories' own errors
MEMORIES = len(DISCOUNTS)
EARLY = 0.9  # of the first of them, which soon counts for little
DISCOUNT_UNIT = 0.97  # of the mean error of all experts, which is the unit of errors
TINY = 1e-12


class Bank(NamedTuple):
    """State of the experts of all series: smoothers, trackers of medians, and the filter if there is one."""

    parameters: Any  # [smoothers, PARAMETERS]
    rates: Any  # [trackers]
    horizon: int
    least: float  # no forecast is below
    steps: Any  # [1], values seen
    smoothers: Any  # [smoothers, SEASON + period, series]
    trackers: Any  # [trackers, TRACKER, series]
    filters: Any  # [series, FILTER], or [series, 0] without
    made: Any  # [horizon, experts, series]: forecasts for halfway, by the step they were made
    recalled: Any  # [horizon, MEMORIES, series]: what the mixture of each memory forecast for halfway
    mixed: Any  # [horizon, LEADS, series]: the mixture's forecasts
    losses: Any  # [MEMORIES, experts, series], in units
    memory_losses: Any  # [MEMORIES, series], in units: of the memories' mixtures
    units: Any  # [series], recent mean error of all experts
    errors: Any  # [LEADS, window, series]: last errors of the mixture
    scored: Any  # [LEADS]: how many errors there were
    sums: Any  # [MEMORIES, SUMS, series]
    work: Any  # [4, series]
    tape: Any  # [ORDER + horizon]: path of a filter


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
    """A bank before the first value; `parameters` [smoothers, PARAMETERS], `rates` [trackers]."""
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
        np.zeros((horizon, experts, series)),
        np.zeros((horizon, MEMORIES, series)),
        np.zeros((horizon, LEADS, series)),
        np.zeros((MEMORIES, experts, series)),
        np.zeros((MEMORIES, series)),
        np.zeros(series),
        np.zeros((LEADS, window, series)),
        np.zeros(LEADS, np.int64),
        np.zeros((MEMORIES, SUMS, series)),
        np.zeros((4, series)),
        np.zeros(ORDER + horizon),
    )


@helper(inline=True)
def _halfway(bank: Any) -> int:
    """The lead at which experts are scored."""
    return int((bank.horizon + 1) // 2)


@kernel
def take_in(bank: Any, rows: Any) -> None:
    """Learn from values [steps, series], step by step."""
    for i in range(len(rows)):
        _take_in_step(bank, rows[i])


@helper
def _take_in_step(bank: Any, values: Any) -> None:
    """Score, learn and forecast for one value of each series; the mixture's forecast replaces nan."""
    step = bank.steps[0]
    if step > 0:
        expected = bank.mixed[(step - 1) % bank.horizon, NEXT]
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
    _look_ahead(bank)


@helper
def _score(bank: Any, step: int, values: Any) -> None:
    """Errors of the forecasts for this step: the experts' halfway, the mixture's at both ends."""
    if step >= _halfway(bank):
        _learn(bank, step, values, (step - _halfway(bank)) % bank.horizon)
    for k in range(LEADS):
        ago = 1 if k == NEXT else bank.horizon
        if step >= ago:
            guess = bank.mixed[(step - ago) % bank.horizon, k]
            errors = bank.errors[k, bank.scored[k] % bank.errors.shape[1]]
            for s in range(len(values)):
                errors[s] = values[s] - guess[s]
            bank.scored[k] += 1


@helper
def _learn(bank: Any, step: int, values: Any, slot: int) -> None:
    """Update the unit of errors, then the losses by the errors, in that unit, of the forecasts in `slot`."""
    made, total, units = bank.made[slot], bank.work[0], bank.units
    total[:] = 0.0
    for e in range(len(made)):
        guess = made[e]
        for s in range(len(values)):
            total[s] = total[s] + abs(values[s] - guess[s])
    pace = max(1.0 - DISCOUNT_UNIT, 1.0 / (step - _halfway(bank) + 1))
    for s in range(len(values)):
        units[s] = units[s] + pace * (np.true_divide(total[s], len(made)) - units[s])
        total[s] = np.true_divide(1.0, units[s] + TINY)
    for k in range(MEMORIES):
        for e in range(len(made)):
            _move(bank.losses[k, e], _rate(DISCOUNTS[k], step), values, made[e], total)
        _move(bank.memory_losses[k], _rate(LONG, step), values, bank.recalled[slot, k], total)


@helper(inline=True)
def _rate(discount: float, step: int) -> float:
    """Weight of the error at `step` in a loss."""
    return max(1.0 - discount, 1.0 - EARLY if step < 2 else 1.0 / step)


@helper
def _move(losses: Any, rate: float, values: Any, guess: Any, scale: Any) -> None:
    """Move the losses towards the errors of a forecast, each times its `scale`."""
    for s in range(len(values)):
        losses[s] = losses[s] + rate * (abs(values[s] - guess[s]) * scale[s] - losses[s])


@helper
def _look_ahead(bank: Any) -> None:
    """Forecasts of the experts for halfway and of the mixture at both ends, kept until they can be scored."""
    slot, halfway = (bank.steps[0] - 1) % bank.horizon, _halfway(bank)
    made, recalled, sums = bank.made[slot], bank.recalled[slot], bank.sums
    recalled[:] = 0.0
    sums[:] = 0.0
    for k in range(MEMORIES):
        _least_losses(bank.losses[k], sums[k, LEAST])
    for e in range(len(made)):
        near = made[e] if halfway == 1 else bank.work[2]
        far = made[e] if bank.horizon == 1 else bank.work[3]
        if e == len(bank.parameters) + len(bank.rates):
            _filters_ahead(bank, near, made[e], far)
        else:
            expert_ahead(bank, e, halfway, made[e])
            if halfway > 1:
                expert_ahead(bank, e, 1, near)
            if bank.horizon > 1:
                expert_ahead(bank, e, bank.horizon, far)
        for k in range(MEMORIES):
            _add_weighted(bank.losses[k, e], near, made[e], far, sums[k], recalled[k])
    _mix_memories(bank, recalled, bank.mixed[slot])


@helper
def _add_weighted(losses: Any, near: Any, middle: Any, far: Any, sums: Any, to_middle: Any) -> None:
    """Add an expert's forecast, times its weight, to the sums of a memory."""
    to_next, to_last, total, least = sums[NEXT], sums[LAST], sums[TOTAL], sums[LEAST]
    for s in range(len(total)):
        weight = _weight(losses[s], least[s])
        to_next[s] = to_next[s] + weight * near[s]
        to_middle[s] = to_middle[s] + weight * middle[s]
        to_last[s] = to_last[s] + weight * far[s]
        total[s] = total[s] + weight


@helper
def _mix_memories(bank: Any, recalled: Any, mixed: Any) -> None:
    """Divide the sums of each memory by their weights, and mix the results at both ends into `mixed`."""
    total, least = bank.work[0], bank.work[1]
    _least_losses(bank.memory_losses, least)
    total[:] = 0.0
    mixed[:] = 0.0
    for k in range(MEMORIES):
        losses, sums, middle = bank.memory_losses[k], bank.sums[k], recalled[k]
        for s in range(len(total)):
            weight = _weight(losses[s], least[s])
            middle[s] = np.true_divide(middle[s], sums[TOTAL, s])
            mixed[NEXT, s] = mixed[NEXT, s] + weight * np.true_divide(sums[NEXT, s], sums[TOTAL, s])
            mixed[LAST, s] = mixed[LAST, s] + weight * np.true_divide(sums[LAST, s], sums[TOTAL, s])
            total[s] = total[s] + weight
    for s in range(len(total)):
        mixed[NEXT, s] = np.true_divide(mixed[NEXT, s], total[s])
        mixed[LAST, s] = np.true_divide(mixed[LAST, s], total[s])


@helper
def _filters_ahead(bank: Any, near: Any, middle: Any, far: Any) -> None:
    """Forecasts of the filters for the next step, halfway and the horizon, each into [series]."""
    halfway, tape = _halfway(bank), bank.tape
    for s in range(len(near)):
        filter_path(bank.filters, s, bank.horizon, tape)
        mean = bank.filters[s, MEAN]
        near[s] = max(mean + tape[ORDER], bank.least)
        middle[s] = max(mean + tape[ORDER + halfway - 1], bank.least)
        far[s] = max(mean + tape[ORDER + bank.horizon - 1], bank.least)


@helper
def expert_ahead(bank: Any, e: int, lead: int, out: Any) -> None:
    """Forecast of expert e, a smoother or a median, `lead` steps ahead, into `out` [series]."""
    if e < len(bank.parameters):
        smooth_ahead(bank.smoothers[e], bank.parameters[e], bank.steps[0], lead, bank.least, out)
        return
    tracker = e - len(bank.parameters)
    for s in range(len(out)):
        out[s] = max(bank.trackers[tracker, MIDDLE, s], bank.least)


@helper
def _least_losses(losses: Any, least: Any) -> None:
    """The least of some losses [any, series] into `least` [series]."""
    least[:] = np.inf
    for i in range(len(losses)):
        each = losses[i]
        for s in range(len(least)):
            least[s] = each[s] if each[s] < least[s] else least[s]


@helper(inline=True)
def _weight(loss: float, least: float) -> float:
    """(least / loss)^32, and 1 if both are 0. The division never raises, so the loop can be vectorised."""
    ratio = np.true_divide(least + TINY, loss + TINY)
    ratio = ratio * ratio
    ratio = ratio * ratio
    ratio = ratio * ratio
    ratio = ratio * ratio
    return float(ratio * ratio)


@kernel
def weigh(bank: Any, weights: Any) -> None:
    """Weights of the experts, summing to 1, into `weights` [experts, series]."""
    total, least, trust, both = bank.work[0], bank.work[1], bank.work[2], bank.work[3]
    weights[:] = 0.0
    both[:] = 0.0
    for k in range(MEMORIES):
        losses = bank.losses[k]
        _least_losses(losses, least)
        _least_losses(bank.memory_losses, trust)
        total[:] = 0.0
        for e in range(len(weights)):
            for s in range(len(total)):
                total[s] = total[s] + _weight(losses[e, s], least[s])
        for s in range(len(total)):
            trust[s] = _weight(bank.memory_losses[k, s], trust[s])
            both[s] = both[s] + trust[s]
        for e in range(len(weights)):
            for s in range(len(total)):
                weights[e, s] += trust[s] * np.true_divide(_weight(losses[e, s], least[s]), total[s])
    for e in range(len(weights)):
        for s in range(len(total)):
            weights[e, s] /= both[s]


@kernel
def paths(bank: Any, path: Any) -> None:
    """Forecasts of every expert into `path` [experts, horizon, series]."""
    recursions = len(bank.parameters) + len(bank.rates)
    for e in range(recursions):
        for h in range(path.shape[1]):
            expert_ahead(bank, e, h + 1, path[e, h])
    for e in range(recursions, len(path)):  # the filter, if there is one
        for s in range(path.shape[2]):
            filter_path(bank.filters, s, bank.horizon, bank.tape)
            for h in range(path.shape[1]):
                path[e, h, s] = max(bank.filters[s, MEAN] + bank.tape[ORDER + h], bank.least)
