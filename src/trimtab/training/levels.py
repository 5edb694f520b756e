"""Numbers of GPUs for which there are speed estimates."""

from __future__ import annotations

import numpy as np

from trimtab.domain.allocator import Speed


def levels_within(speed: Speed, most: int) -> int:
    """The largest level up to `most`; 0 = none. Without levels any number is one."""
    levels = speed.levels
    if not len(levels):
        return max(most, 0)
    at = int(np.searchsorted(levels, most, side="right"))
    return int(levels[at - 1]) if at else 0
