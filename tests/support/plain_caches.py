"""Caches written down plainly, as the oracle of the compiled ones."""

from __future__ import annotations

from collections import OrderedDict


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
