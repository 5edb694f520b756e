"""Bundles of arrays, declared once: a NamedTuple whose annotations give the contents of each field.

    class Table(NamedTuple):
        weights: Annotated[Any, array("f8", "nodes")]
        quota: Annotated[Any, array("f8", "classes", "nodes")]

These annotations define the tuple, its type in kernels (`tables.table_of`), and its allocation (`allocate`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, get_type_hints

import numpy as np

CACHE_LINE = 64  # bytes

B = TypeVar("B", bound=tuple[Any, ...])


class ArrayField(NamedTuple):
    """A C-ordered array; `axes` names its axes."""

    dtype: np.dtype
    axes: tuple[str, ...]


class RecordField(NamedTuple):
    """A single record."""

    dtype: np.dtype


class ListField(NamedTuple):
    """A list of bundles of one type."""

    bundle: type


Field = ArrayField | RecordField | ListField


def array(dtype: Any, *axes: str) -> ArrayField:
    """Declares an array."""
    return ArrayField(np.dtype(dtype), axes)


@functools.cache
def fields_of(bundle: type) -> Mapping[str, Field]:
    """The declarations of a bundle's fields, by name."""
    hints = get_type_hints(bundle, include_extras=True)
    return {name: hint.__metadata__[0] for name, hint in hints.items()}


def arrays_of(bundle: type) -> dict[str, ArrayField]:
    """The array fields of a bundle."""
    return {name: field for name, field in fields_of(bundle).items() if isinstance(field, ArrayField)}


def zeros(dtype: np.dtype, shape: Sequence[int]) -> np.ndarray:
    """An array of zeros that begins at a cache line: scans of aligned records touch fewer lines."""
    size = math.prod(shape) * dtype.itemsize
    raw = np.zeros(size + CACHE_LINE, "u1")
    begin = -raw.ctypes.data % CACHE_LINE
    return raw[begin : begin + size].view(dtype).reshape(shape)


def allocate(bundle: type[B], lengths: Mapping[str, int], given: Mapping[str, Any]) -> B:
    """A bundle of the given fields, and of zeros for all other fields. `lengths` are those of the axes."""
    made = {
        name: zeros(field.dtype, [lengths[axis] for axis in field.axes])
        for name, field in arrays_of(bundle).items()
        if name not in given
    }
    return bundle(**made, **given)
