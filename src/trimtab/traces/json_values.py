"""Values of parsed JSON, checked: each raises TraceError that names file, field, value and expectation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from trimtab.errors import TraceError


def table_at(value: Any, field: str, file: str) -> Mapping[str, Any]:
    """An object; an empty one for null."""
    if value is not None and not isinstance(value, Mapping):
        raise TraceError("cannot be used", file=file, field=field, value=value, expected="an object")
    return value or {}


def tables_at(value: Any, field: str, file: str) -> list[Mapping[str, Any]]:
    """A list of objects; an empty one for null."""
    if value is not None and not isinstance(value, list):
        raise TraceError("cannot be used", file=file, field=field, value=value, expected="a list of objects")
    for k, entry in enumerate(value or ()):
        if not isinstance(entry, Mapping):
            raise TraceError(
                "cannot be used", file=file, field=f"{field}[{k}]", value=entry, expected="an object"
            )
    return value or []


def text_at(value: Any, field: str, file: str, expected: str = "a name") -> str:
    """Text that is not empty."""
    if not isinstance(value, str) or not value:
        raise TraceError("missing value", file=file, field=field, value=value, expected=expected)
    return value


def names_at(value: Any, field: str, file: str) -> list[str]:
    """A list of names; an empty one for null."""
    is_list = isinstance(value, list) and all(isinstance(name, str) and name for name in value)
    if value is not None and not is_list:
        raise TraceError("cannot be used", file=file, field=field, value=value, expected="a list of names")
    return value or []


def amount_at(value: Any, field: str, file: str) -> float:
    """A finite number, at least 0."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value < math.inf:
        raise TraceError(
            "value out of range", file=file, field=field, value=value, expected="a number, at least 0"
        )
    return float(value)
