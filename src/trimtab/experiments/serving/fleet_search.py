"""The cheapest mix of nodes that meets objectives, by few tests of mixes.

A mix is a count of nodes for each type. One more node of any type is taken never to harm: then a mix that
fails does so with fewer nodes too, and those need no test. First each type alone is searched by halving, or
each pair of a type that reads prompts and one that makes tokens. Where a mix needs nodes of several pools,
each pool alone is searched next, with as many nodes of all other types as any mix has: nodes of a pool that
fail even so do with fewer others too. Then the most expensive mixes below the best price are tested, those of
most capacity first: one that meets the objectives lowers the price, and next come mixes at most as expensive
as half of those left; one that fails rules out all mixes below it. When none is left, the best is proven.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import UsageError

Mix: TypeAlias = tuple[int, ...]
IntArray = NDArray[np.int64]
MIXES_MAX: Final = 10_000_000
SAME_USD: Final = 1e-9  # what prices of mixes may differ by from rounding


@dataclass(frozen=True, slots=True)
class Found:
    """The cheapest mix that meets the objectives, None if none does; whether no cheaper one can."""

    best: Mix | None
    is_proven: bool
    untested: int


def cheapest_mix(
    prices: Sequence[float],
    is_met: Callable[[Mix], bool],
    could_meet: Callable[[IntArray], NDArray[np.bool_]],
    capacity: Callable[[IntArray], NDArray[np.float64]],
    needed: float,
    *,
    unpaid: Callable[[IntArray], NDArray[np.float64]],
    unpaid_max: float,
    nodes_max: int,
    usd_max: float,
    is_over: Callable[[], bool],
    left: Callable[[int], None] | None = None,
    directions: Sequence[Mix],
    pools: Sequence[Sequence[int]] = (),
) -> Found:
    """Search the mixes of at most `nodes_max` nodes that cost at most `usd_max`.

    Args:
        prices: of a node of each type, above 0.
        is_met: tests a mix.
        could_meet: which of some mixes [mixes, types] could meet the objectives at all.
        capacity: of some mixes [mixes, types]; an estimate, which only says what to test first.
        needed: capacity that the work needs.
        unpaid: what of the prices of some mixes [mixes, types] is not paid, as of nodes that are down; one
            more node must not make a mix cheaper.
        unpaid_max: most that `unpaid` may give.
        nodes_max: most nodes.
        usd_max: most that a mix may cost.
        is_over: whether the time is used up.
        left: told how many mixes are left after each test.
        directions: mixes whose multiples are searched first, such as a node of each type.
        pools: types of each pool, if there are several.

    Raises UsageError if there are more than `MIXES_MAX` of them.
    """
    usd = np.array(prices, dtype=float)

    def cost(mixes: IntArray) -> NDArray[np.float64]:
        of_mixes: NDArray[np.float64] = weighted(mixes, usd) - unpaid(mixes)
        return of_mixes

    def cost_of(mix: Mix) -> float:
        return float(cost(np.array([mix]))[0])

    def fits(mixes: IntArray) -> NDArray[np.bool_]:
        return capacity(mixes) >= needed

    along = _along(directions, cost, is_met, could_meet, fits, nodes_max, usd_max, is_over)
    met = [mix for mix in along if mix is not None]
    best = min(met, key=cost_of, default=None)
    limit_usd = usd_max if best is None else cost_of(best)
    _refuse_too_many(usd, nodes_max, limit_usd + unpaid_max)
    mixes = _mixes(usd, nodes_max, limit_usd + unpaid_max)
    mixes = mixes[cost(mixes) < limit_usd + (SAME_USD if best is None else -SAME_USD)]
    mixes = mixes[could_meet(mixes)] if len(mixes) else mixes
    for pool in pools:
        mixes = _with_enough(mixes, pool, met, is_met, capacity, is_over)
    was_met = len(pools) > 0
    while len(mixes):
        if is_over():
            return Found(best, False, len(mixes))
        costs = cost(mixes)
        tops = mixes[costs <= np.median(costs)] if was_met else mixes
        tops = tops[_are_highest(tops)]
        mix: Mix = tuple(int(n) for n in tops[np.argmax(capacity(tops))])
        was_met = is_met(mix)
        if was_met:
            best = mix
            mixes = mixes[cost(mixes) < cost_of(mix) - SAME_USD]
        else:
            mixes = mixes[(mixes > np.array(mix)).any(axis=1)]
        if left is not None:
            left(len(mixes))
    return Found(best, True, 0)


def weighted(mixes: IntArray, of_type: NDArray[Any]) -> NDArray[Any]:
    """The sum over types of counts times a number of each type, [mixes]; alike on every processor."""
    summed: NDArray[Any] = (mixes * of_type).sum(axis=1)
    return summed


def _with_enough(
    mixes: IntArray,
    pool: Sequence[int],
    met: Sequence[Mix],
    is_met: Callable[[Mix], bool],
    capacity: Callable[[IntArray], NDArray[np.float64]],
    is_over: Callable[[], bool],
) -> IntArray:
    """The mixes whose nodes of a pool are enough beside the most nodes of all other types.

    Those of a mix in `met` are. Tests are between the largest capacity that fails and the least that does
    not, where they rule out most.
    """
    if not len(mixes):
        return mixes
    is_of_pool = np.isin(np.arange(mixes.shape[1]), pool)
    parts, part_of = np.unique(np.where(is_of_pool, mixes, mixes.max(axis=0)), axis=0, return_inverse=True)
    capacities = capacity(parts)
    low, high = 0.0, float(capacities.max())
    is_unknown, is_enough = np.ones(len(parts), dtype=bool), np.ones(len(parts), dtype=bool)
    for mix in met:
        is_unknown &= (parts[:, is_of_pool] < np.array(mix)[is_of_pool]).any(axis=1)
    while is_unknown.any() and not is_over():
        left = np.flatnonzero(is_unknown)
        chosen = left[np.argmin(np.abs(capacities[left] - (low + high) / 2))]
        if is_met(tuple(parts[chosen].tolist())):
            high = min(high, float(capacities[chosen]))
            is_unknown &= (parts < parts[chosen]).any(axis=1)
        else:
            low = max(low, float(capacities[chosen]))
            is_less = is_unknown & (parts <= parts[chosen]).all(axis=1)
            is_unknown &= ~is_less
            is_enough &= ~is_less
    enough: IntArray = mixes[is_enough[part_of]]
    return enough


def _along(
    directions: Sequence[Mix],
    cost: Callable[[IntArray], NDArray[np.float64]],
    is_met: Callable[[Mix], bool],
    could_meet: Callable[[IntArray], NDArray[np.bool_]],
    fits: Callable[[IntArray], NDArray[np.bool_]],
    nodes_max: int,
    usd_max: float,
    is_over: Callable[[], bool],
) -> Iterator[Mix | None]:
    """The least multiple of each direction that meets the objectives; None where none does.

    The first test is of the least that fits, as runs with too few nodes take long.
    """
    for direction in directions:

        def mix(count: int, direction: Mix = direction) -> Mix:
            return tuple(count * n for n in direction)

        counts = np.array([mix(count) for count in range(1, nodes_max // sum(direction) + 1)], dtype=np.int64)
        counts = counts[cost(counts) <= usd_max + SAME_USD]
        most = len(counts)
        able = np.flatnonzero(could_meet(counts)) if len(counts) else np.zeros(0, dtype=np.int64)
        if not len(able) or is_over():
            yield None
            continue
        first = able[fits(counts[able])]
        low, high = int(able[0]) + 1, int(first[0] if len(first) else able[-1]) + 1
        while high < most and not is_met(mix(high)):
            low, high = high + 1, min(most, 2 * high)
        if high >= most and not is_met(mix(most)):
            yield None
            continue
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if is_met(mix(middle)) else (middle + 1, high)
        yield mix(high)


def _refuse_too_many(usd: NDArray[np.float64], nodes_max: int, limit_usd: float) -> None:
    types = len(usd)
    count = math.comb(nodes_max + types, types)
    if limit_usd < np.inf:  # no more than the volume of a simplex around them
        count = min(count, int(np.prod((limit_usd + usd.sum()) / usd) / math.factorial(types)))
    if count > MIXES_MAX:
        raise UsageError(
            "too many mixes of nodes to search",
            field="--max-nodes",
            value=nodes_max,
            expected=f"a lower one, a lower --max-usd-per-hour, or fewer than {types} node types: "
            f"{count:.2g} mixes, at most {MIXES_MAX:.2g} can be searched",
        )


def _mixes(usd: NDArray[np.float64], nodes_max: int, limit_usd: float) -> IntArray:
    """All mixes of 1 to `nodes_max` nodes up to a price, [mixes, types]."""
    mixes: IntArray = np.zeros((1, 0), dtype=np.int64)
    for t, price in enumerate(usd):
        spent = weighted(mixes, usd[:t])
        room = np.minimum(nodes_max - mixes.sum(axis=1), (limit_usd - spent) / price + 1e-9).astype(np.int64)
        counts = room + 1
        first = np.cumsum(counts) - counts  # position of each mix's first continuation
        added = np.arange(counts.sum()) - np.repeat(first, counts)
        mixes = np.column_stack([np.repeat(mixes, counts, axis=0), added])
    chosen: IntArray = mixes[mixes.sum(axis=1) > 0]
    return chosen


def _are_highest(mixes: IntArray) -> NDArray[np.bool_]:
    """Which mixes have no other of them with one more node of a single type."""
    base = int(mixes.max()) + 2
    digits = base ** np.arange(mixes.shape[1])
    keys = weighted(mixes, digits)
    there = np.zeros(base ** mixes.shape[1], dtype=bool)
    there[keys] = True
    highest = np.ones(len(mixes), dtype=bool)
    for digit in digits:
        highest &= ~there[keys + digit]
    return highest
