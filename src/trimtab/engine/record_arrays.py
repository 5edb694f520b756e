"""Whole records of arrays in one call, and ranges of their rows that are taken and given back."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection
from struct import Struct

import numpy as np


def record_struct(kind: np.dtype, written: Collection[str] | None = None) -> Struct:
    """A struct of these fields (None = all) in the order of their offsets. Other fields become zero."""
    codes, at = [], 0
    for name, (field, offset, *_) in (kind.fields or {}).items():  # in order of offsets
        is_written = written is None or name in written
        kind_of_one, many = field.base.char, math.prod(field.shape)
        code = f"{many}{'q' if kind_of_one == 'l' else kind_of_one}" if is_written else f"{field.itemsize}x"
        codes.append(f"{offset - at}x{code}")
        at = offset + field.itemsize
    return Struct("=" + "".join(codes) + f"{kind.itemsize - at}x")


class RowRanges:
    """The free ranges among `size` rows.

    A range that was given back serves the next request of the same length. Free neighbours become one range
    only when none is long enough.
    """

    def __init__(self, size: int) -> None:
        self._end, self._size = 0, size  # rows from `_end` on were never taken, or not since they were joined
        self._free: defaultdict[int, list[int]] = defaultdict(list)  # first rows, by length

    def take(self, count: int) -> int | None:
        """The first of `count` consecutive rows; None if there are not as many."""
        if same := self._free.get(count):
            return same.pop()
        if self._end + count > self._size:
            return self._split(count)
        first, self._end = self._end, self._end + count
        return first

    def free(self, first: int, count: int) -> None:
        """Give a range back."""
        self._free[count].append(first)

    def _split(self, count: int) -> int | None:
        """Join neighbours, then take from the shortest range that is long enough."""
        self._join()
        if self._end + count <= self._size:
            return self.take(count)
        longer = [length for length, firsts in self._free.items() if length >= count and firsts]
        if not longer:
            return None
        length = min(longer)
        first = self._free[length].pop()
        if length > count:
            self.free(first + count, length - count)
        return first

    def _join(self) -> None:
        ranges = sorted((first, length) for length, firsts in self._free.items() for first in firsts)
        self._free.clear()
        joined: list[list[int]] = []
        for first, length in ranges:
            if joined and sum(joined[-1]) == first:
                joined[-1][1] += length
            else:
                joined.append([first, length])
        if joined and sum(joined[-1]) == self._end:
            self._end = joined.pop()[0]
        for first, length in joined:
            self._free[length].append(first)
