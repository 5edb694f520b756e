"""Quantities of Kubernetes, such as 500m, 4Gi or 1e3, as whole numbers."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Any, Final

from trimtab.errors import UsageError

_TEXT = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([eE][+-]?\d+)|([numkKMGTPE]i?))?")
_FACTOR: Final = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "k": Fraction(1000),
    **{letter: Fraction(1000**i) for i, letter in enumerate("MGTPE", 2)},
    **{f"{letter}i": Fraction(1024**i) for i, letter in enumerate("KMGTPE", 1)},
}
_MOST = 1 << 62  # sums of a cluster stay whole 64-bit numbers
_EXPECTED = "a quantity of Kubernetes, such as 8, 500m or 4Gi"


def whole(quantity: Any, field: str, *, per: int = 1) -> int:
    """A quantity times `per`, rounded up, as the scheduler of Kubernetes does. `field` is named in errors.

    Raises UsageError for what is no quantity, is negative or is too large.
    """
    match = _TEXT.fullmatch(str(quantity))
    factor = None if match is None else _factor(match[2], match[3])
    if match is None or factor is None:
        raise UsageError("is no quantity", field=field, value=quantity, expected=_EXPECTED)
    amount = math.ceil(Fraction(match[1]) * factor * per)
    if not 0 <= amount < _MOST:
        raise UsageError("is negative or too large", field=field, value=quantity, expected=_EXPECTED)
    return amount


def _factor(exponent: str | None, suffix: str | None) -> Fraction | None:
    if exponent is not None:
        power = int(exponent[1:])
        return Fraction(10) ** power if abs(power) <= 18 else None
    return _FACTOR.get(suffix) if suffix else Fraction(1)
