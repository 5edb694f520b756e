"""Conditions that a table must satisfy before anything is computed from it."""

from __future__ import annotations

from trimtab.errors import UsageError


def require(condition: bool, field: str, expected: str, value: object = None) -> None:
    """Raise UsageError, which names the table, unless the condition holds."""
    if not condition:
        raise UsageError("cannot be used", field=field, value=value, expected=expected)
