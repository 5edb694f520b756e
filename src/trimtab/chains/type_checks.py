"""Checks of declared types when a chain is built."""

from __future__ import annotations

import collections.abc
import typing
from typing import Any

from trimtab.errors import ChainError
from trimtab.live.declared_types import class_of, fits, shown


def check_fits(given: Any, wanted: Any, where: str) -> None:
    """Raise ChainError if a value of type `given` can't be meant for `wanted`. What is unknown fits."""
    if not fits(given, wanted):
        raise ChainError("a value of another type", field=where, value=shown(given), expected=shown(wanted))


def item_type(given: Any, where: str) -> Any:
    """The type of the items of a list type. Raises ChainError for what has no items."""
    kind = class_of(given)
    if given is Any or kind is None:
        return Any
    if kind in (str, bytes) or not issubclass(kind, collections.abc.Iterable):
        raise ChainError("maps over what is no list", field=where, value=shown(given), expected="a list")
    arguments = typing.get_args(given)
    return arguments[0] if arguments and not issubclass(kind, collections.abc.Mapping) else Any
