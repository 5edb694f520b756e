"""Checks of a history before a forecast."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from trimtab.errors import UsageError

FEWEST: Final = 3  # values; from two points any line would do


def checked_history(
    values: npt.ArrayLike, *, horizon: int = 1, file: str | None = None, field: str = "history"
) -> npt.NDArray[np.float64]:
    """The history [steps] as an array of numbers. Raises UsageError, naming file, field and row.

    A constant history is valid: it is its own forecast.
    """
    history = np.ascontiguousarray(values, np.float64)
    if history.ndim != 1 or len(history) < FEWEST:
        few, least = "too short to forecast from", f"at least {FEWEST} values"
        raise UsageError(few, file=file, field=field, value=f"{history.size} values", expected=least)
    finite = np.isfinite(history)
    if not finite.all():
        row = int(np.argmin(finite))
        where = f"{field}, value {row + 1}"
        raise UsageError(
            "no number", file=file, field=where, value=float(history[row]), expected="a finite number"
        )
    if horizon >= len(history):
        least = f"less than the {len(history)} values of the history"
        raise UsageError("too far ahead", file=file, field="horizon", value=horizon, expected=least)
    return history
