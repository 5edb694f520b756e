"""Validation errors of single fields, such as names of things that do not exist."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from difflib import get_close_matches
from typing import Final, NamedTuple

from pydantic import ValidationError
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from trimtab.errors import UsageError

Path = tuple[str | int, ...]

_KIND: Final = "field_error"
_SHOWN = 8  # names in a message


class FieldError(NamedTuple):
    """One value that does not fit the rest of the file."""

    path: Path
    value: object
    expected: str

    def details(self) -> ErrorDetails:
        """As pydantic tells what it finds."""
        return {"type": _KIND, "loc": self.path, "msg": self.expected, "input": self.value}


def raise_field_errors(field_errors: Iterable[FieldError], title: str) -> None:
    """Raise one ValidationError for all of them, if there are any; for validators of a whole model."""
    details = [_detail(field_error) for field_error in field_errors]
    if details:
        raise ValidationError.from_exception_data(title, details)


def _detail(field_error: FieldError) -> InitErrorDetails:
    kind = PydanticCustomError(_KIND, "{expected}", {"expected": field_error.expected})
    return InitErrorDetails(type=kind, loc=field_error.path, input=field_error.value)


def known(path: Path, name: str, names: Collection[str], kind: str) -> Iterator[FieldError]:
    """A field error where the name is none of these."""
    if name not in names:
        yield FieldError(path, name, f"a known {kind}: {nearest(name, names)}")


def nearest(name: object, names: Collection[str]) -> str:
    """The known names, for a message: the nearest ones, else the first few and how many more."""
    close = get_close_matches(str(name), list(names), n=3, cutoff=0.6)
    if close:
        return f"perhaps {listed(close)}"
    if not names:
        return "there are none"
    more = len(names) - _SHOWN
    return f"one of {listed(list(names)[:_SHOWN])}{f' and {more} more' if more > 0 else ''}"


def listed(names: Collection[str]) -> str:
    """Names for a message, quoted."""
    return ", ".join(repr(name) for name in names)


def require(condition: bool, field: str, expected: str, value: object = None) -> None:
    """Raise UsageError, which names the table, unless the condition holds; before anything is computed."""
    if not condition:
        raise UsageError("cannot be used", field=field, value=value, expected=expected)
