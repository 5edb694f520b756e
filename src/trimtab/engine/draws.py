"""Counter-based random numbers: u(seed, request, attempt, i), never consumed in sequence.

Two policies get the same number for the same draw of the same request, independent of all other draws (common
random numbers). Mixing is SplitMix64's finaliser (Steele, Lea, Flood: "Fast splittable pseudorandom number
generators", OOPSLA 2014, §3), applied once per counter.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trimtab.compiled.kernel import helper

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S11 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)
_UNIT = 1.0 / 9007199254740992.0  # 2^-53


@helper(inline=True)
def _mix(x: Any) -> Any:
    x = (x ^ (x >> _S30)) * _M1
    x = (x ^ (x >> _S27)) * _M2
    return x ^ (x >> _S31)


@helper(inline=True)
def stream(seed: int, serial: int, attempt: int) -> Any:
    """Initial state for the draws of one decision."""
    x = _mix(np.uint64(seed) + _GOLDEN)
    x = _mix(x ^ (np.uint64(serial) * _M1 + _GOLDEN))
    return _mix(x + np.uint64(attempt) * _M2)


@helper(inline=True)
def uniform(state: Any, i: int) -> float:
    """Draw i of a stream: a double in [0, 1) with 53 random bits."""
    return float(_mix(state + np.uint64(i + 1) * _GOLDEN) >> _S11) * _UNIT
