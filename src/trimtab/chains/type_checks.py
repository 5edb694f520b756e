"""Whether a value of one declared type may be given where another is expected."""

from __future__ import annotations

import collections.abc
import types
import typing
from typing import Any

from trimtab.errors import ChainError

_UNIONS = (typing.Union, types.UnionType)


def check_fits(given: Any, wanted: Any, where: str) -> None:
    """Raise ChainError if a value of type `given` can't be meant for `wanted`. What is unknown fits."""
    if not fits(given, wanted):
        raise ChainError("a value of another type", field=where, value=shown(given), expected=shown(wanted))


def fits(given: Any, wanted: Any) -> bool:
    """Whether a value of type `given` may be one of `wanted`."""
    if given in (Any, object) or wanted in (Any, object):
        return True
    if isinstance(given, str | typing.TypeVar) or isinstance(wanted, str | typing.TypeVar):
        return True
    if typing.get_origin(wanted) in _UNIONS:
        return any(fits(given, one) for one in typing.get_args(wanted))
    if typing.get_origin(given) in _UNIONS:
        return any(fits(one, wanted) for one in typing.get_args(given) if one is not type(None))
    return _classes_fit(given, wanted) and _arguments_fit(given, wanted)


def _classes_fit(given: Any, wanted: Any) -> bool:
    here, there = _class_of(given), _class_of(wanted)
    if here is None or there is None:
        return True
    if here in (int, bool) and there is float:
        return True
    if hasattr(there, "__total__") or hasattr(here, "__total__"):  # a TypedDict is a dict
        return issubclass(here, dict) and issubclass(there, dict)
    try:
        return issubclass(here, there)
    except TypeError:
        return True


def _class_of(kind: Any) -> Any:
    if kind is None:
        return type(None)
    origin = typing.get_origin(kind) or kind
    return origin if isinstance(origin, type) else None


def _arguments_fit(given: Any, wanted: Any) -> bool:
    mine, theirs = typing.get_args(given), typing.get_args(wanted)
    if typing.get_origin(given) is typing.get_origin(wanted) and len(mine) == len(theirs):
        return all(fits(a, b) for a, b in zip(mine, theirs, strict=True))
    if _class_of(given) is list and len(mine) == len(theirs) == 1:
        return fits(mine[0], theirs[0])
    return True


def item_type(given: Any, where: str) -> Any:
    """The type of the items of a list type. Raises ChainError for what has no items."""
    kind = _class_of(given)
    if given is Any or kind is None:
        return Any
    if kind in (str, bytes) or not issubclass(kind, collections.abc.Iterable):
        raise ChainError("maps over what is no list", field=where, value=shown(given), expected="a list")
    arguments = typing.get_args(given)
    return arguments[0] if arguments and not issubclass(kind, collections.abc.Mapping) else Any


def shown(kind: Any) -> str:
    """A type as it is written."""
    return getattr(kind, "__name__", str(kind)) if not typing.get_args(kind) else str(kind)
