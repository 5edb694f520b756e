"""Declared types: whether a value of one may be given where another is expected, and what does not fit one.

Imports little, because every worker process loads it.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple

_UNIONS = (typing.Union, types.UnionType)
ITEMS: Final = 1000  # of a list, that are looked at: evenly over all of it


class Misfit(NamedTuple):
    """A part of a value that is not of its declared type."""

    path: str  # "" = the value itself
    found: Any  # its type
    wanted: Any


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
    here, there = class_of(given), class_of(wanted)
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


def class_of(kind: Any) -> Any:
    """The class of a declared type; None = it is none."""
    if kind is None:
        return type(None)
    origin = typing.get_origin(kind) or kind
    return origin if isinstance(origin, type) else None


def _arguments_fit(given: Any, wanted: Any) -> bool:
    mine, theirs = typing.get_args(given), typing.get_args(wanted)
    if typing.get_origin(given) is typing.get_origin(wanted) and len(mine) == len(theirs):
        return all(fits(a, b) for a, b in zip(mine, theirs, strict=True))
    if class_of(given) is list and len(mine) == len(theirs) == 1:
        return fits(mine[0], theirs[0])
    return True


def misfit(value: Any, wanted: Any, path: str = "") -> Misfit | None:
    """The first part of a builtin value that does not fit a declared type; None = all of it fits.

    Others, such as NumPy's numbers, may stand for what they are not.
    """
    if typing.get_origin(wanted) in _UNIONS:
        found = [misfit(value, one, path) for one in typing.get_args(wanted)]
        return None if None in found else Misfit(path, type(value), wanted)
    if type(value).__module__ != "builtins":
        return None
    if not fits(type(value), wanted):
        return Misfit(path, type(value), wanted)
    for part, kind, at in _parts(value, typing.get_args(wanted), path):
        if (bad := misfit(part, kind, at)) is not None:
            return bad
    return None


def _parts(value: Any, kinds: tuple[Any, ...], path: str) -> Iterator[tuple[Any, Any, str]]:
    """The items of a builtin collection, with their declared types and where they are."""
    if not isinstance(value, Collection) or isinstance(value, str | bytes | bytearray | memoryview):
        return
    step = max(1, len(value) // ITEMS)
    if isinstance(value, Mapping) and len(kinds) == 2:
        for key, item in islice(value.items(), 0, None, step):
            yield key, kinds[0], f"{path} key {key!r}"
            yield item, kinds[1], f"{path}[{key!r}]"
    elif isinstance(value, tuple) and len(kinds) > 1 and kinds[-1] is not Ellipsis:
        for k, (item, kind) in enumerate(zip(value, kinds, strict=False)):
            yield item, kind, f"{path}[{k}]"
    elif kinds and not isinstance(value, Mapping):
        for k, item in enumerate(islice(value, 0, None, step)):
            yield item, kinds[0], f"{path}[{k * step}]"


def shown(kind: Any) -> str:
    """A type as it is written."""
    return getattr(kind, "__name__", str(kind)) if not typing.get_args(kind) else str(kind)
