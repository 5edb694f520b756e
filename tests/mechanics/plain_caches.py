"""Caches written down plainly, as the oracle of the compiled ones."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class PlainLru:
    """Least recently used, by an ordered dictionary."""

    def __init__(self, capacity: int) -> None:
        self._capacity, self._keys = capacity, OrderedDict[int, None]()

    def __contains__(self, key: int) -> bool:
        return key in self._keys

    def use(self, key: int) -> bool:
        """Whether the key was there; it is the newest now."""
        was_there = key in self._keys
        self._keys[key] = None
        self._keys.move_to_end(key)
        if len(self._keys) > self._capacity:
            self._keys.popitem(last=False)
        return was_there

    def clear(self) -> None:
        """Forget all."""
        self._keys.clear()

    def newest_first(self) -> list[int]:
        """What it holds."""
        return list(reversed(self._keys))


def belady_hits(keys: Sequence[int], capacity: int) -> int:
    """Most hits that any cache of so many keys can have on this sequence, which it is told in advance.

    László Belády, "A study of replacement algorithms for a virtual-storage computer", IBM Systems Journal
    5(2), 1966: drop the key whose next use is farthest away, the one asked for included.
    """
    next_use, last_seen = [len(keys)] * len(keys), dict[int, int]()
    for i in range(len(keys) - 1, -1, -1):
        next_use[i] = last_seen.get(keys[i], len(keys))
        last_seen[keys[i]] = i
    held, hits = dict[int, int](), 0
    for i, key in enumerate(keys):
        hits += key in held
        held[key] = next_use[i]
        if len(held) > capacity:
            del held[max(held, key=held.__getitem__)]
    return hits
