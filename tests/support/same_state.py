"""Equality of two runs, bit for bit, over every array of their states."""

from __future__ import annotations

import numpy as np

from trimtab.engine.state import State


def _bits(array: np.ndarray) -> dict[str, bytes]:
    """The array's bytes without padding, by field."""
    names = array.dtype.names
    return {name: array[name].tobytes() for name in names} if names else {"": array.tobytes()}


def differences(a: State, b: State) -> list[str]:
    """Names of the arrays and fields in which two states differ in any bit; memories included."""
    found = []
    for name, x, y in zip(a._fields, a, b, strict=True):
        if isinstance(x, np.ndarray):
            bits_x, bits_y = _bits(x), _bits(y)
            found += [f"{name}.{field}" for field in bits_x if bits_x[field] != bits_y[field]]
    for name in ("memories", "order_memories"):
        for mine, theirs in zip(getattr(a, name), getattr(b, name), strict=True):
            found += [name for x, y in zip(mine, theirs, strict=True) if x.tobytes() != y.tobytes()]
    return found
