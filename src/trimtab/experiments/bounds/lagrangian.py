"""B1: the Lagrangian bound of slot capacity on the sum of completion times, for non-preemptive service.

Idea: let slots of group g cost λ_g(t) per second. Every request then picks its cheapest run by itself,
    h_r = min over g and start s ≥ e_rg of  s + p_rg − a_r + ∫ λ_g over [s, s + p_rg),
and Σ_r h_r − Σ_g m_g ∫ λ_g bounds the sum of completion times from below, for any λ ≥ 0.
Proof: in a feasible schedule at most m_g requests run on group g at any time, so what its runs pay is at most
what its slots earn, Σ_r ∫ λ ≤ Σ_g m_g ∫ λ_g. Add this non-positive difference to the total completion, then
minimise request by request. The same holds for the requests of any subset, since they respect the capacity
alone: the k that finish cost at least the sum of the k smallest h_r − Σ_g m_g ∫ λ_g.

Source: Lagrangian relaxation of machine capacity (Luh and Hoitomt, IEEE Trans. Automatic Control 38(7), 1993,
§III) in the time-indexed formulation of Dyer and Wolsey (Discrete Applied Mathematics 26, 1990). Prices climb
by subgradients with the step of Held, Wolfe and Crowder (Mathematical Programming 6, 1974) and the direction
of Camerini, Fratta and Maffioli (Mathematical Programming Study 3, 1975).
Deviations: prices are constant on intervals but starts are continuous, so the minimum is taken exactly, at
the earliest start or where a start meets a price drop or an end meets a price rise. Prices climb on a coarse
grid first and are handed to grids twice as fine (the same function, hence never a step back).
Cost: O(iterations · requests · groups · intervals a request may wait), in practice a few intervals.
"""

from __future__ import annotations

import heapq
from typing import Any, NamedTuple, cast

import numpy as np

from trimtab.compiled.kernel import helper, kernel
from trimtab.experiments.bounds.instance import FloatArray, Instance

REFINEMENTS = 5  # how often the grid of prices is halved
MOMENTUM = 0.8  # share of the last direction that the next one keeps
PATIENCE = 3  # steps without gain before the step is shortened
SHORTEN_FRAC = 0.6
LENGTHEN_FRAC = 2.0  # a finer grid has room again
CLIMB_ON = 50_000  # requests, evenly spaced, that prices are found on; any prices bound the whole


class LagrangianBound(NamedTuple):
    """`minima_s` [requests] are the h_r, `capacity_s` is Σ m ∫ λ; the bound is the sum of h_r less that."""

    minima_s: FloatArray
    capacity_s: float


class _Prices(NamedTuple):
    level: FloatArray  # [groups, intervals], seconds of completion time per slot-second
    value_s: float  # the bound at these prices
    step_frac: float


def lagrangian_bound(instance: Instance, iterations: int, intervals: int) -> LagrangianBound:
    """Climb for `iterations` steps, the last of them on a grid of at least `intervals` intervals."""
    target_s, horizon_s = list_schedule(*instance)
    sample, weight = _sample(instance)
    coarse = -(-intervals // 2**REFINEMENTS)
    prices = _Prices(np.zeros((instance.slots.size, coarse)), -np.inf, 1.0)
    if horizon_s > 0:
        for stage, steps in enumerate(_steps_per_stage(iterations)):
            level = np.repeat(prices.level, 2, axis=1) if stage else prices.level
            step_frac = prices.step_frac * LENGTHEN_FRAC if stage else prices.step_frac
            prices = _climb(
                sample, weight, prices._replace(level=level, step_frac=step_frac), target_s, horizon_s, steps
            )
    width_s = max(horizon_s, 1.0) / prices.level.shape[1]
    minima_s, _ = cheapest_runs(instance, prices.level, width_s)
    return LagrangianBound(minima_s, _capacity_s(instance, prices.level, width_s))


def _steps_per_stage(iterations: int) -> list[int]:
    """Steps of each stage, falling linearly: coarse steps are cheap and move far."""
    shares = np.arange(REFINEMENTS + 2, 1, -1)
    edges = np.rint(np.append(0, np.cumsum(shares)) / shares.sum() * iterations)
    return [int(steps) for steps in np.diff(edges)]


def _sample(instance: Instance) -> tuple[Instance, int]:
    """Every k-th request, and k, for which it stands."""
    k = -(-len(instance.arrival_s) // CLIMB_ON)
    arrival_s, service_s, release_s = (row[::k].copy() for row in instance[:3])
    return Instance(arrival_s, service_s, release_s, instance.slots), k


def _climb(
    instance: Instance, weight: int, start: _Prices, target_s: float, horizon_s: float, steps: int
) -> _Prices:
    """Deflected subgradient ascent on one grid; returns the best prices met, `start` included.

    Each request of `instance` stands for `weight` of them.

    After `PATIENCE` steps without gain it returns to the best prices with a shorter step, and leaves them on
    the last subgradient, because their own was tried.
    """
    best, level, step_frac = start, start.level, start.step_frac
    width_s = horizon_s / level.shape[1]
    slots = instance.slots[:, None].astype(np.float64)
    direction, since_gain = np.zeros_like(level), 0
    for _ in range(steps):
        minima_s, busy_s = cheapest_runs(instance, level, width_s)
        value_s = weight * float(minima_s.sum()) - _capacity_s(instance, level, width_s)
        since_gain = 0 if value_s > best.value_s else since_gain + 1
        if since_gain == 0:
            best = _Prices(level, value_s, step_frac)
        elif since_gain == PATIENCE:
            level, direction, since_gain = best.level, np.zeros_like(level), 0
            step_frac *= SHORTEN_FRAC
        direction = _deflected(weight * busy_s - slots * width_s, level, direction)
        length_s = float(np.sum(direction**2 / slots)) / width_s
        if length_s == 0 or value_s >= target_s:
            break
        step = step_frac * (target_s - value_s) / length_s
        level = np.maximum(level + step * direction / (slots * width_s), 0.0)
    return best._replace(step_frac=step_frac)


def _deflected(subgradient: FloatArray, level: FloatArray, direction: FloatArray) -> FloatArray:
    """The next direction. Prices at zero that would fall do not count in the step's length."""
    return np.where((level <= 0) & (subgradient < 0), 0.0, subgradient) + MOMENTUM * direction


def _capacity_s(instance: Instance, level: FloatArray, width_s: float) -> float:
    return float((instance.slots * level.sum(axis=1)).sum()) * width_s


def cheapest_runs(instance: Instance, level: FloatArray, width_s: float) -> tuple[FloatArray, FloatArray]:
    """The minima h_r [requests] at these prices, and the slot-seconds in use [groups, intervals]."""
    paid = np.hstack([np.zeros((level.shape[0], 1)), np.cumsum(level, axis=1)]) * width_s
    tables = (instance.arrival_s, instance.service_s, instance.release_s, level, paid)
    return cast(tuple[FloatArray, FloatArray], cheapest_runs_kernel(*tables, width_s))


@kernel
def cheapest_runs_kernel(
    arrival_s: Any, service_s: Any, release_s: Any, level: Any, paid: Any, width_s: Any
) -> Any:
    """`cheapest_runs`, compiled; `paid` [groups, intervals + 1]: the cost of a slot up to each interval."""
    requests, groups = service_s.shape
    minima_s = np.empty(requests)
    busy_s = np.zeros(level.shape)  # within the interval where a run starts or ends
    spill_s = np.zeros(level.shape)  # change of what every later interval is used
    for r in range(requests):
        cost, group, start_s = np.inf, 0, 0.0
        for g in range(groups):
            found, at_s = _cheapest_run(level[g], paid[g], width_s, release_s[r, g], service_s[r, g], cost)
            if found < cost:
                cost, group, start_s = found, g, at_s
        minima_s[r] = cost - arrival_s[r]
        _occupy(busy_s[group], spill_s[group], width_s, start_s, 1.0)
        _occupy(busy_s[group], spill_s[group], width_s, start_s + service_s[r, group], -1.0)
    _spread(busy_s, spill_s)
    return minima_s, busy_s


@helper
def _cheapest_run(level: Any, paid: Any, width_s: Any, earliest_s: Any, service_s: Any, ceiling: Any) -> Any:
    """(finish + price, start) of the cheapest run on one group; (ceiling, 0) if none is below the ceiling.

    The cost is piecewise linear in the start, so it is least at the earliest start, where the start meets a
    drop of the price, or where the end meets a rise. A run costs at least its finish: that ends the scans.
    """
    best, start_s = ceiling, 0.0
    end_s = earliest_s + service_s
    if end_s >= best:
        return best, start_s
    cost = end_s + _paid_until(level, paid, width_s, end_s) - _paid_until(level, paid, width_s, earliest_s)
    if cost < best:
        best, start_s = cost, earliest_s
    last = level.size
    for edge in range(int(earliest_s / width_s) + 1, last + 1):
        finish_s = edge * width_s + service_s
        if finish_s >= best:
            break
        if edge == last or level[edge] < level[edge - 1]:
            cost = finish_s + _paid_until(level, paid, width_s, finish_s) - paid[edge]
            if cost < best:
                best, start_s = cost, edge * width_s
    for edge in range(int(end_s / width_s) + 1, last):
        finish_s = edge * width_s
        if finish_s >= best:
            break
        if level[edge] > level[edge - 1]:
            cost = finish_s + paid[edge] - _paid_until(level, paid, width_s, finish_s - service_s)
            if cost < best:
                best, start_s = cost, finish_s - service_s
    return best, start_s


@helper
def _paid_until(level: Any, paid: Any, width_s: Any, time_s: Any) -> Any:
    """∫ λ from 0 to `time_s`; the price is zero after the last interval."""
    interval = int(time_s / width_s)
    if interval >= level.size:
        return paid[level.size]
    return paid[interval] + (time_s - interval * width_s) * level[interval]


@helper
def _occupy(busy_s: Any, spill_s: Any, width_s: Any, time_s: Any, sign: Any) -> Any:
    """Add (or subtract) one slot in use from `time_s` on."""
    interval = int(time_s / width_s)
    if interval < busy_s.size:
        busy_s[interval] += sign * ((interval + 1) * width_s - time_s)
        spill_s[interval] += sign * width_s


@helper
def _spread(busy_s: Any, spill_s: Any) -> Any:
    for g in range(busy_s.shape[0]):
        running_s = 0.0
        for interval in range(busy_s.shape[1]):
            busy_s[g, interval] += running_s
            running_s += spill_s[g, interval]


@kernel
def list_schedule(arrival_s: Any, service_s: Any, release_s: Any, slots: Any) -> Any:
    """Total completion and last finish when each request, in order of arrival, takes its earliest finish.

    Any feasible schedule serves as the target of the climb and as the horizon of the prices.
    """
    requests, groups = service_s.shape
    free_s = [[0.0] * slots[g] for g in range(groups)]
    total_s, horizon_s = 0.0, 0.0
    for r in range(requests):
        finish_s, group = np.inf, 0
        for g in range(groups):
            end_s = max(free_s[g][0], release_s[r, g]) + service_s[r, g]
            if end_s < finish_s:
                finish_s, group = end_s, g
        heapq.heapreplace(free_s[group], finish_s)
        total_s += finish_s - arrival_s[r]
        horizon_s = max(horizon_s, finish_s)
    return total_s, horizon_s
