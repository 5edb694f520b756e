"""Multiple-choice knapsacks that share a few resources: one option for each item at most, at the least cost.

Idea: with a price for each resource every item chooses on its own, which bounds the cost from below; with few
resources the best prices are found by cutting an ellipsoid around them (Shor). The choices at those prices
are repaired and improved one by one. What is left between cost and bound decides which options may differ in
a better solution at all; a dynamic programme over those (states: units taken of each resource) finds it, or
proves that there is none. Beyond `width` states it keeps the best of them: then the bound says how far the
solution may be from the optimum.
Source: Kellerer, Pferschy and Pisinger, Knapsack Problems, 2004, §11 (multiple-choice knapsack, relaxation
and core) and §9; Shor, Cut-off method with space extension, Cybernetics 13, 1977. From memory.
Deviations: each option takes one resource only; reduction and dynamic programme are for several resources
at once, with the prices of the relaxation.
Cost: O(items · options) for each of some hundred prices, then O(items in the core · options · width).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from trimtab.compiled.kernel import helper, kernel

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

WIDTHS: Final = (64, 400, 2_500, 20_000)  # states of the dynamic programme, tried in turn
MOST_STATES: Final = 4_000_000  # of all its items together
_EPS: Final = 1e-9
_BINS: Final = 256  # of costs, to find the best states
_EMPTY: Final = np.int64(-1)


@dataclass(frozen=True)
class Choices:
    """A programme: each item takes an option or none.

    Attributes:
        cost: [items, options]; inf = the item can't take it.
        skip_cost: [items] of no option; inf = it has to take one.
        units: [options] of the resource that an option takes.
        resource: [options] which one.
        capacity: [resources] units.
        step: all costs are multiples of it; 0 = not known. With it optima are proven sooner.
    """

    cost: Floats
    skip_cost: Floats
    units: Ints
    resource: Ints
    capacity: Ints
    step: float = 0.0


@dataclass(frozen=True, slots=True)
class Chosen:
    """The choice of an option for each item."""

    option: Ints  # [items]; -1 = none
    cost: float
    bound: float  # no solution costs less

    @property
    def gap_frac(self) -> float:
        """Distance to the bound, over the cost."""
        return (self.cost - self.bound) / max(abs(self.cost), _EPS)


def choose(problem: Choices, gap_frac: float = 0.0, widths: tuple[int, ...] = WIDTHS) -> Chosen | None:
    """The best choice, or one within `gap_frac` of it; None if no way is found to fit items that can't skip.

    Widths with more than `MOST_STATES` states are left out: the bound says how far the best may be.
    """
    items, options = problem.cost.shape
    if not items:
        return Chosen(np.zeros(0, np.int64), 0.0, 0.0)
    cost = np.empty((items, options + 1))  # the last option is none
    cost[:, :-1], cost[:, -1] = problem.cost, problem.skip_cost
    units = np.append(problem.units, 0).astype(np.int64)
    resource = np.append(problem.resource, 0).astype(np.int64)
    capacity = problem.capacity.astype(np.int64)
    tolerance = problem.step / 8 if problem.step > 0 else 1e-7 * max(1.0, float(np.min(cost, axis=1).sum()))
    price = np.zeros(len(capacity))
    bound = _prices(cost, units, resource, capacity, price, tolerance)
    option = np.zeros(items, np.int64)
    if not _settled(cost, units, resource, capacity, price, option):
        return None
    best = _cost_of(cost, option)
    for width in widths:
        if width * items > MOST_STATES:
            break
        allowed = max(_least_gain(problem.step), gap_frac * abs(best))
        if best - bound < allowed:
            break
        found = np.zeros(items, np.int64)
        reached, is_whole = _core(
            cost, units, resource, capacity, price, bound, best - _least_gain(problem.step), width, found
        )
        if reached < best - _EPS:
            option, best = found, _cost_of(cost, found)
        if is_whole:
            bound = best
            break
    if problem.step > 0 and bound > best - problem.step + _EPS:
        bound = best
    return Chosen(np.where(option == options, -1, option), best, min(bound, best))


def _least_gain(step: float) -> float:
    """The least saving of a better solution."""
    return step - _EPS if step > 0 else _EPS


def _cost_of(cost: Floats, option: Ints) -> float:
    return math.fsum(cost[np.arange(len(option)), option].tolist())


@helper
def _best_option(cost: Any, item: Any, units: Any, resource: Any, price: Any) -> Any:
    """The option with the least cost and price of an item, and their sum."""
    best, least = 0, math.inf
    for c in range(units.size):
        value = cost[item, c] + price[resource[c]] * units[c]
        if value < least:
            best, least = c, value
    return best, least


@kernel
def _prices(cost: Any, units: Any, resource: Any, capacity: Any, price: Any, tolerance: Any) -> Any:
    """The highest bound that prices give; the best of them go into `price`."""
    items, n = cost.shape[0], max(capacity.size, 2)
    most = 1e-6
    for i in range(items):
        first = 0.0
        for c in range(units.size):
            if units[c] > 0 and cost[i, c] < math.inf:
                worst = cost[i, units.size - 1]
                if worst == math.inf:
                    for d in range(units.size):
                        if cost[i, d] < math.inf:
                            first = max(first, cost[i, d])
                    worst = 2.0 * abs(first) + 1.0
                most = max(most, (worst - cost[i, c]) / units[c])
    centre, slope, image = np.full(n, most / 2), np.zeros(n), np.zeros(n)
    shape = np.eye(n) * (n * most * most / 4)
    best = -math.inf
    at = np.zeros(capacity.size)
    for _ in range(40 * n * n + 200):
        outside = -1
        for t in range(n):
            if centre[t] < 0.0 and (outside < 0 or centre[t] < centre[outside]):
                outside = t
        slope[:] = 0.0
        missing = 0.0
        if outside >= 0:
            slope[outside] = 1.0
            missing = -centre[outside]
        else:
            value = 0.0
            for t in range(capacity.size):
                at[t] = centre[t]
                slope[t] = -capacity[t]
                value -= centre[t] * capacity[t]
            for i in range(items):
                c, least = _best_option(cost, i, units, resource, at)
                value += least
                slope[resource[c]] += units[c]
            if value > best:
                best = value
                price[:] = at
            missing = best - value
        length = 0.0
        for t in range(n):
            image[t] = 0.0
            for s in range(n):
                image[t] += shape[t, s] * slope[s]
            length += image[t] * slope[t]
        length = math.sqrt(max(length, 0.0))
        if length <= tolerance and outside < 0:
            break
        if length <= 1e-14:
            break
        depth = min(missing / length, 0.9999)
        move = (1.0 + n * depth) / (n + 1.0)
        wider = n * n * (1.0 - depth * depth) / (n * n - 1.0)
        flatter = 2.0 * (1.0 + n * depth) / ((n + 1.0) * (1.0 + depth))
        for t in range(n):
            centre[t] += move * image[t] / length
        for t in range(n):
            for s in range(n):
                shape[t, s] = wider * (shape[t, s] - flatter * image[t] * image[s] / (length * length))
    return best


@kernel
def _settled(cost: Any, units: Any, resource: Any, capacity: Any, price: Any, option: Any) -> Any:
    """The best options at these prices, changed one by one until they fit, then while that saves."""
    items, options = cost.shape
    over = -capacity
    for i in range(items):
        c, _ = _best_option(cost, i, units, resource, price)
        option[i] = c
        over[resource[c]] += units[c]
    while True:
        excess = 0
        for t in range(capacity.size):
            excess += max(over[t], 0)
        best_item, best_option, least = -1, -1, 0.0 if excess == 0 else math.inf
        for i in range(items):
            old = option[i]
            relieves = over[resource[old]] > 0 and units[old] > 0
            if excess > 0 and not relieves:
                continue
            for c in range(options):
                if cost[i, c] == math.inf or c == old:
                    continue
                t, s = resource[c], resource[old]
                if excess > 0:
                    now = over[s] - units[old] + (units[c] if t == s else 0)
                    saved = over[s] - max(now, 0)
                    if t != s and over[t] + units[c] > 0 and units[c] > 0:
                        saved -= over[t] + units[c] - max(over[t], 0)
                    if saved <= 0:
                        continue
                    more = cost[i, c] - cost[i, old] + price[t] * units[c] - price[s] * units[old]
                    score = (max(more, 0.0) + 1e-12) / saved
                else:
                    free = -over[t] + (units[old] if t == s else 0)
                    if units[c] > free:
                        continue
                    score = cost[i, c] - cost[i, old]
                    if score > -1e-9:
                        continue
                if score < least:
                    best_item, best_option, least = i, c, score
        if best_item < 0:
            return excess == 0
        old = option[best_item]
        over[resource[old]] -= units[old]
        over[resource[best_option]] += units[best_option]
        option[best_item] = best_option


@helper
def _slot(table: Any, keys: Any, key: Any) -> Any:
    """Where the key is in the table, or would be."""
    mask = table.size - 1
    at = (key * 0x9E3779B97F4A7C1 >> 20) & mask
    while table[at] >= 0 and keys[table[at]] != key:
        at = (at + 1) & mask
    return at


@kernel
def _core(
    cost: Any, units: Any, resource: Any, capacity: Any, price: Any, bound: Any, limit: Any, width: Any,
    option: Any,
) -> Any:  # fmt: skip
    """A solution of cost `limit` or less, into `option`; its cost, and whether every state was kept.

    A solution costs the bound, and the excess of each of its options over its item's best, and the price of
    what it leaves free. Items whose other options have too much excess are fixed.
    """
    items, options = cost.shape
    kinds = capacity.size
    budget = limit - bound + 1e-9
    free = capacity.copy()
    core = np.zeros(items, np.int64)
    first = np.zeros(items + 1, np.int64)
    pairs = 0
    count = 0
    candidate = np.zeros(items * options, np.int64)
    excess = np.zeros(items * options)
    for i in range(items):
        c, least = _best_option(cost, i, units, resource, price)
        begin = pairs
        for d in range(options):
            more = cost[i, d] + price[resource[d]] * units[d] - least
            if more <= budget:
                candidate[pairs], excess[pairs] = d, more
                pairs += 1
        if pairs == begin + 1:
            option[i] = c
            free[resource[c]] -= units[c]
            pairs = begin
        else:
            core[count] = i
            count += 1
            first[count] = pairs
    least_units = np.zeros((count + 1, kinds), np.int64)  # that the items from here on take at least
    most_units = np.zeros((count + 1, kinds), np.int64)
    for k in range(count - 1, -1, -1):
        for t in range(kinds):
            low, high = 1 << 60, 0
            for p in range(first[k], first[k + 1]):
                taken = units[candidate[p]] if resource[candidate[p]] == t else 0
                low, high = min(low, taken), max(high, taken)
            least_units[k, t] = least_units[k + 1, t] + low
            most_units[k, t] = most_units[k + 1, t] + high
    for t in range(kinds):
        if free[t] < least_units[0, t]:
            return math.inf, True
    radix = np.ones(kinds, np.int64)
    for t in range(1, kinds):
        radix[t] = radix[t - 1] * (capacity[t - 1] + 1)
    widest = 1
    for k in range(count):
        widest = max(widest, first[k + 1] - first[k])
    size = 1
    while size < 2 * widest * width:
        size *= 2
    table = np.full(size, _EMPTY)
    parent = np.zeros((count, width), np.int32)
    taken_pair = np.zeros((count, width), np.int32)
    left, other_left = np.zeros((width, kinds), np.int64), np.zeros((widest * width, kinds), np.int64)
    spent, other_spent = np.zeros(width), np.zeros(widest * width)
    other_key = np.zeros(widest * width, np.int64)
    other_from, other_pair = np.zeros(widest * width, np.int64), np.zeros(widest * width, np.int64)
    other_total = np.zeros(widest * width)
    bins = np.zeros(_BINS + 1, np.int64)
    left[0] = free
    states = 1
    is_whole = True
    for k in range(count):
        n = 0
        table[:] = _EMPTY
        for s in range(states):
            for p in range(first[k], first[k + 1]):
                d = candidate[p]
                own = resource[d]
                total = spent[s] + excess[p]
                fits = total <= budget
                key = 0
                for t in range(kinds):
                    rest = left[s, t] - (units[d] if t == own else 0)
                    if rest < least_units[k + 1, t]:
                        fits = False
                        break
                    total += price[t] * max(rest - most_units[k + 1, t], 0)
                    key += rest * radix[t]
                if not fits or total > budget:
                    continue
                at = _slot(table, other_key, key)
                row = table[at]
                if row < 0:
                    row = n
                    table[at] = n
                    n += 1
                    other_key[row] = key
                    for t in range(kinds):
                        other_left[row, t] = left[s, t] - (units[d] if t == own else 0)
                elif spent[s] + excess[p] >= other_spent[row]:
                    continue
                other_spent[row] = spent[s] + excess[p]
                other_total[row] = total
                other_from[row], other_pair[row] = s, p
        most = budget
        if n > width:
            is_whole = False
            bins[:] = 0
            scale = _BINS / max(budget, 1e-12)
            for row in range(n):
                bins[int(min(other_total[row] * scale, _BINS - 1.0))] += 1
            kept, b = 0, 0
            while b < _BINS and kept + bins[b] <= width:
                kept += bins[b]
                b += 1
            most = b / scale if kept > 0 else budget
        states = 0
        for row in range(n):
            if states < width and (n <= width or other_total[row] < most or most == budget):
                left[states] = other_left[row]
                spent[states] = other_spent[row]
                parent[k, states], taken_pair[k, states] = other_from[row], other_pair[row]
                states += 1
        if states == 0:
            return math.inf, is_whole
    best, least = -1, math.inf
    for s in range(states):
        total = spent[s]
        for t in range(kinds):
            total += price[t] * left[s, t]
        if total < least:
            best, least = s, total
    if least > budget:
        return math.inf, is_whole
    for k in range(count - 1, -1, -1):
        option[core[k]] = candidate[taken_pair[k, best]]
        best = parent[k, best]
    return bound + least, is_whole


KERNELS: Final = (_prices, _settled, _core)
