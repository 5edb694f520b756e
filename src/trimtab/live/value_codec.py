"""Values of stages as bytes, and back."""

from __future__ import annotations

import io
import pickle
import types
from collections import ChainMap
from typing import Any, ClassVar

import cloudpickle

_MAIN = b"__main__"
_NO_FILE = "<dynamic-code>"  # in cloudpickle's place of the name of a file


class Unserialisable(Exception):  # noqa: N818 - reads as the sentence it prints
    """A value that cannot be serialised; the text says what stands in the way."""


def encode(value: Any) -> bytes:
    """The value's bytes. What `__main__` defines goes along by value, as workers have another `__main__`."""
    try:
        data = pickle.dumps(value, 5)
        if _MAIN not in data:
            return data
    except Exception:  # what plain pickle refuses, such as a lambda, may still go by value
        pass
    try:
        return pickled(value)
    except Exception as error:
        raise Unserialisable(f"{type(value).__name__}: {error}") from error


class _Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]  # cloudpickle has no types
    """Code keeps the name of its file, which cloudpickle leaves out: errors in workers tell it."""

    dispatch_table: ClassVar[Any] = ChainMap(
        {types.CodeType: lambda code: _with_file(code)}, cloudpickle.CloudPickler.dispatch_table
    )


def _with_file(code: types.CodeType) -> tuple[Any, ...]:
    made, arguments, *rest = cloudpickle.CloudPickler.dispatch_table[types.CodeType](code)
    own = tuple(code.co_filename if argument == _NO_FILE else argument for argument in arguments)
    return made, own, *rest


def pickled(value: Any) -> bytes:
    """The bytes of a value, with the functions and classes in it that workers cannot import."""
    data = io.BytesIO()
    _Pickler(data, 5).dump(value)
    return data.getvalue()


def decode(data: bytes | memoryview) -> Any:
    """The value of these bytes."""
    return pickle.loads(data)


def at_path(value: Any, path: tuple[str | int, ...]) -> Any:
    """The part of a value at a path: keys and indices of mappings and sequences, else attributes."""
    for key in path:
        value = getattr(value, key) if isinstance(key, str) and not _has_keys(value) else value[key]
    return value


def items_of(value: Any) -> list[Any]:
    """The items of a list that is mapped over. Raises TypeError for a table, whose items are its columns."""
    if hasattr(value, "columns") and hasattr(value, "__len__"):
        raise TypeError(
            f"{type(value).__module__}.{type(value).__name__} is a table, which is mapped over in blocks: "
            "return `trimtab.chains.blocks(table, rows)`"
        )
    return list(value)


def _has_keys(value: Any) -> bool:
    return hasattr(value, "keys") and hasattr(value, "__getitem__")
