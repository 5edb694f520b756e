"""Bits of integers, the same in kernels and in plain Python."""

from __future__ import annotations

from typing import Any

from numba.cpython.unsafe.numbers import trailing_zeros
from numba.extending import overload


def lowest_bit(bits: int) -> int:
    """Position of the lowest set bit of an integer above 0 that fits 64 bits."""
    return (bits & -bits).bit_length() - 1


@overload(lowest_bit)
def _lowest_bit(_bits: int) -> Any:
    def found(_bits: int) -> int:
        return int(trailing_zeros(_bits))  # type: ignore[call-arg]

    return found
