"""Functions of `math` over arrays: NumPy's own differ in the last bit from processor to processor."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray


def elementwise(function: Callable[[float], float], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Apply a function of one number to each element of an array."""
    return np.array([function(x) for x in values.ravel().tolist()]).reshape(values.shape)
