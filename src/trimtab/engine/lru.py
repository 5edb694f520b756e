"""Bounded least-recently-used caches, several in one set of arrays.

Cache q holds at most `capacity` keys. `place[key, q]` is 1 + the position of the key's entry within the
cache, or 0 for an absent key. Entries are linked from the newest use to the oldest, so every operation is
O(1).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from trimtab.compiled.kernel import helper

CACHE = np.dtype(
    [("newest", "i4"), ("oldest", "i4"), ("length", "i4"), ("capacity", "i4"), ("begin", "i8")], align=True
)
CACHED = np.dtype([("key", "i4"), ("newer", "i4"), ("older", "i4")], align=True)


class Caches(NamedTuple):
    """Empty caches as arrays."""

    place: np.ndarray  # i4 [keys, caches]
    caches: np.ndarray  # CACHE [caches]
    entries: np.ndarray  # CACHED [caches × capacity]


def new_caches(count: int, capacity: int, keys: int) -> Caches:
    """`count` caches of equal capacity, for keys 0 … keys − 1."""
    caches = np.zeros(count, CACHE)
    caches["newest"] = caches["oldest"] = -1
    caches["capacity"], caches["begin"] = capacity, np.arange(count) * capacity
    return Caches(np.zeros((keys, count), "i4"), caches, np.zeros(count * capacity, CACHED))


@helper(inline=True)
def _unlink(caches: Any, entries: Any, q: int, i: int) -> None:
    at = caches.begin[q] + i
    newer, older = entries.newer[at], entries.older[at]
    if newer < 0:
        caches.newest[q] = older
    else:
        entries.older[caches.begin[q] + newer] = older
    if older < 0:
        caches.oldest[q] = newer
    else:
        entries.newer[caches.begin[q] + older] = newer


@helper(inline=True)
def _link_as_newest(caches: Any, entries: Any, q: int, i: int) -> None:
    at, before = caches.begin[q] + i, caches.newest[q]
    entries.newer[at] = -1
    entries.older[at] = before
    if before < 0:
        caches.oldest[q] = i
    else:
        entries.newer[caches.begin[q] + before] = i
    caches.newest[q] = i


@helper
def use(place: Any, caches: Any, entries: Any, q: int, key: int) -> bool:
    """Make this key the newest of cache q; returns whether the cache held it before."""
    i = place[key, q] - 1
    if i >= 0:
        _unlink(caches, entries, q, i)
        _link_as_newest(caches, entries, q, i)
        return True
    i = caches.length[q]
    if i < caches.capacity[q]:
        caches.length[q] = i + 1
    else:
        i = caches.oldest[q]
        _unlink(caches, entries, q, i)
        place[entries.key[caches.begin[q] + i], q] = 0
    entries.key[caches.begin[q] + i] = key
    place[key, q] = i + 1
    _link_as_newest(caches, entries, q, i)
    return False


@helper
def clear(place: Any, caches: Any, entries: Any, q: int) -> None:
    """Empty cache q."""
    for i in range(caches.length[q]):
        place[entries.key[caches.begin[q] + i], q] = 0
    caches.length[q] = 0
    caches.newest[q] = -1
    caches.oldest[q] = -1
