"""Checks of the arguments of queueing formulas. Errors name the argument, its value and what was expected."""

from __future__ import annotations

from math import isfinite

from trimtab.errors import UsageError


def checked_servers(servers: int) -> int:
    """The value as a whole number above zero. Raises UsageError."""
    return checked_count(1, servers, "servers")


def checked_count(least: int, value: float, field: str) -> int:
    """The value as a whole number of at least `least`. Raises UsageError."""
    if not isfinite(value) or value != int(value) or value < least:
        expected = f"a whole number, at least {least}"
        raise UsageError("cannot be used", field=field, value=value, expected=expected)
    return int(value)


def checked_at_least(least: float, value: float, field: str) -> float:
    """The value as a finite number of at least `least`. Raises UsageError."""
    if not isfinite(value) or value < least:
        raise UsageError("cannot be used", field=field, value=value, expected=f"a number, at least {least:g}")
    return float(value)


def checked_positive(value: float, field: str) -> float:
    """The value as a finite number above zero. Raises UsageError."""
    if not isfinite(value) or value <= 0.0:
        raise UsageError("cannot be used", field=field, value=value, expected="a number above 0")
    return float(value)


def checked_frac(value: float, field: str) -> float:
    """The value as a probability above zero and at most one. Raises UsageError."""
    if not 0.0 < value <= 1.0:
        raise UsageError(
            "cannot be used", field=field, value=value, expected="a fraction, above 0 and at most 1"
        )
    return float(value)
