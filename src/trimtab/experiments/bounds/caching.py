"""The highest number of hits of any cache on a sequence of uses, with full knowledge of the sequence.

A cache need not store a requested item. A hit requires the item to stay in the cache between two of its uses.
So a hit is an interval during which the item takes its size of the cache at every step.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trimtab.domain.cluster import Floats, Ints

_ROUNDING = 1e-12  # what sums of sizes may be off by, in the bound's favour


def belady_hits(keys: Sequence[int], capacity: int) -> int:
    """Most hits of any cache of `capacity` items of one size on this sequence of uses; exact.

    László Belády, "A study of replacement algorithms for a virtual-storage computer", IBM Systems Journal
    5(2), 1966: drop the key whose next use is farthest away, the requested key included.
    O(uses × capacity).
    """
    following = _next_uses(np.asarray(keys))
    held, hits = dict[int, int](), 0
    for key, next_use in zip(keys, following.tolist(), strict=True):
        hits += key in held
        held[key] = next_use
        if len(held) > capacity:
            del held[max(held, key=held.__getitem__)]
    return hits


def volume_bound_hits(keys: Sequence[int], size: Floats, capacity: float) -> int:
    """No cache of this capacity has more hits on these uses of items of `size` [items]; O(uses · log uses).

    Daniel Berger, Nathan Beckmann, Mor Harchol-Balter: "Practical bounds on optimal caching with variable
    object sizes", SIGMETRICS 2018 (PFOO-L, for hits of equal worth): the capacity need not hold at every
    step, but for the sum over all steps; then the intervals of least size × length are the most.
    """
    uses = np.asarray(keys)
    begin, end = _intervals(uses, size, capacity)
    volume = np.sort(size[uses[begin]] * (end - begin))
    in_all = capacity * (len(uses) - 1) * (1.0 + _ROUNDING)
    return int(np.searchsorted(np.cumsum(volume), in_all, side="right"))


def feasible_hits(keys: Sequence[int], size: Floats, capacity: float) -> int:
    """Hits of one feasible cache that knows all uses: it takes intervals by size × length while they fit.

    With `volume_bound_hits` it brackets the most hits, which are hard to find for unequal sizes.
    O(uses × lengths of intervals).
    """
    uses = np.asarray(keys)
    begin, end = _intervals(uses, size, capacity)
    taken, hits = np.zeros(len(uses)), 0
    for i in np.argsort(size[uses[begin]] * (end - begin), kind="stable"):
        span, needed = taken[begin[i] : end[i]], size[uses[begin[i]]]
        if span.max() + needed <= capacity:
            span += needed
            hits += 1
    return hits


def _next_uses(keys: Ints) -> Ints:
    """Position of the next use of the same key, [uses]; len(keys) if there is none."""
    by_key = np.argsort(keys, kind="stable")
    following = np.full(len(keys), len(keys), np.int64)
    same = keys[by_key[1:]] == keys[by_key[:-1]]
    following[by_key[:-1][same]] = by_key[1:][same]
    return following


def _intervals(keys: Ints, size: Floats, capacity: float) -> tuple[Ints, Ints]:
    """Intervals between uses of items that fit into the cache: begin and end, both [intervals]."""
    following = _next_uses(keys)
    begin = np.flatnonzero((following < len(keys)) & (size[keys] <= capacity))
    return begin, following[begin]
