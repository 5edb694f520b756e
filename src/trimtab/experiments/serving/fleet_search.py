"""The cheapest mix of nodes that meets objectives, by few tests of mixes.

A mix is a count of nodes for each type. One more node of any type is taken never to harm: then a mix that
fails does so with fewer nodes too, and those need no test. First each type alone is searched by halving. Then
the most expensive mixes below the best price are tested, those of most capacity first: one that meets the
objectives lowers the price, one that fails rules out all mixes below it. When none is left, the best is
proven.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Mix: TypeAlias = tuple[int, ...]
IntArray = NDArray[np.int64]


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
    *,
    nodes_max: int,
    usd_max: float,
    is_over: Callable[[], bool],
    left: Callable[[int], None] | None = None,
) -> Found:
    """Search the mixes of at most `nodes_max` nodes that cost at most `usd_max`.

    Args:
        prices: of a node of each type, above 0.
        is_met: tests a mix.
        could_meet: which of some mixes [mixes, types] could meet the objectives at all.
        capacity: of some mixes [mixes, types], in any unit.
        nodes_max: most nodes.
        usd_max: most that a mix may cost.
        is_over: whether the time is used up.
        left: told how many mixes are left after each test.
    """
    usd = np.array(prices, dtype=float)
    best: Mix | None = None
    for alone in _each_alone(usd, is_met, could_meet, nodes_max, usd_max, is_over):
        if alone is not None and (best is None or _cost(usd, alone) < _cost(usd, best)):
            best = alone
    limit_usd = usd_max if best is None else _cost(usd, best)
    mixes = _mixes(usd, nodes_max, limit_usd, is_strict=best is not None)
    mixes = mixes[could_meet(mixes)] if len(mixes) else mixes
    while len(mixes):
        if is_over():
            return Found(best, False, len(mixes))
        tops = mixes[_are_highest(mixes)]
        mix: Mix = tuple(int(n) for n in tops[np.argmax(capacity(tops))])
        if is_met(mix):
            best = mix
            mixes = mixes[weighted(mixes, usd) < _cost(usd, mix) - 1e-9]
        else:
            mixes = mixes[(mixes > np.array(mix)).any(axis=1)]
        if left is not None:
            left(len(mixes))
    return Found(best, True, 0)


def _cost(usd: NDArray[np.float64], mix: Mix) -> float:
    return float((usd * mix).sum())


def weighted(mixes: IntArray, of_type: NDArray[Any]) -> NDArray[Any]:
    """The sum over types of counts times a number of each type, [mixes]; alike on every processor."""
    summed: NDArray[Any] = (mixes * of_type).sum(axis=1)
    return summed


def _each_alone(
    usd: NDArray[np.float64],
    is_met: Callable[[Mix], bool],
    could_meet: Callable[[IntArray], NDArray[np.bool_]],
    nodes_max: int,
    usd_max: float,
    is_over: Callable[[], bool],
) -> Iterator[Mix | None]:
    """The least number of nodes of each type alone that meets the objectives; None where none does."""
    for t in range(len(usd)):
        most = min(nodes_max, int(usd_max / usd[t] + 1e-9) if usd_max < np.inf else nodes_max)

        def mix(count: int, t: int = t) -> Mix:
            return tuple(count if other == t else 0 for other in range(len(usd)))

        counts = np.array([mix(count) for count in range(1, most + 1)], dtype=np.int64).reshape(-1, len(usd))
        able = np.flatnonzero(could_meet(counts)) if len(counts) else np.zeros(0, dtype=np.int64)
        if not len(able) or is_over():
            yield None
            continue
        low, high = int(able[0]) + 1, int(able[0]) + 1
        while high < most and not is_met(mix(high)):
            low, high = high + 1, min(most, 2 * high)
        if high >= most and not is_met(mix(most)):
            yield None
            continue
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if is_met(mix(middle)) else (middle + 1, high)
        yield mix(high)


def _mixes(usd: NDArray[np.float64], nodes_max: int, limit_usd: float, *, is_strict: bool) -> IntArray:
    """All mixes of 1 to `nodes_max` nodes below a price, [mixes, types]."""
    most = [int(min(nodes_max, limit_usd / price + 1e-9)) for price in usd]
    rows = []
    for first in itertools.product(*(range(n + 1) for n in most[:-1])):
        spent, count = float((usd[:-1] * first).sum()), sum(first)
        room = int(min(float(nodes_max - count), (limit_usd - spent) / usd[-1] + 1e-9))
        if room < 0:
            continue
        last = np.arange(room + 1)
        rows.append(np.column_stack([np.tile(first, (room + 1, 1)), last]))
    mixes = np.concatenate(rows).astype(np.int64)
    cost = weighted(mixes, usd)
    kept = (cost < limit_usd - 1e-9) if is_strict else (cost <= limit_usd + 1e-9)
    chosen: IntArray = mixes[kept & (mixes.sum(axis=1) > 0)]
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
