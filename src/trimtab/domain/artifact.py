"""Learned weights as a value: arrays with a name and a hash, read from a safetensors file or made in memory.

The format (https://huggingface.co/docs/safetensors, version 0.4): 8 bytes with the length of the header, a
header in JSON that gives type, shape and place of each array, then the arrays, row by row. A file may come
from anyone, so everything in it is checked before it is used.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import UsageError

SUFFIX: Final = ".safetensors"
NONE: Final = "none"  # as a parameter's text: no weights
_EXPECTED: Final = f"a {SUFFIX} file of `trimtab learn export`"
_MOST_BYTES: Final = 1 << 28
_MOST_AXES: Final = 8
_LENGTH_BYTES: Final = 8
_META: Final = "__metadata__"
_TYPES: Final[Mapping[str, np.dtype[Any]]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "I64": np.dtype("<i8"),
    "U8": np.dtype("u1"),
}

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class Artifact:
    """Arrays by name, with what their maker says of them. Equal if their content is; hashes and pickles.

    Attributes:
        name: for tables; of a file, its name without the ending.
        arrays: name → array, read-only.
        meta: key → text, such as the version of the features that the weights were trained on.
        path: of the file that it was read from, as it was given; "" if it was made in memory.
        sha256: of the file's content.
    """

    name: str
    arrays: Mapping[str, NDArray[Any]]
    meta: Mapping[str, str] = field(default_factory=dict)
    path: str = ""
    sha256: str = field(init=False)

    def __post_init__(self) -> None:
        frozen = {key: np.ascontiguousarray(array).copy() for key, array in sorted(self.arrays.items())}
        for key, array in frozen.items():
            array.flags.writeable = False
            if not np.isfinite(array).all():
                self._refuse("has numbers that are not finite", key)
        object.__setattr__(self, "arrays", MappingProxyType(frozen))
        object.__setattr__(self, "meta", MappingProxyType(dict(sorted(self.meta.items()))))
        object.__setattr__(self, "sha256", hashlib.sha256(self.content()).hexdigest())

    @classmethod
    def read(cls, path: str, field: str | None = None) -> Artifact:
        """From a safetensors file; `field` is the parameter that names it. Raises UsageError."""
        try:
            size = Path(path).stat().st_size
            if size > _MOST_BYTES:
                raise _problem(path, field, "is too large", size, f"at most {_MOST_BYTES:,} bytes")
            content = Path(path).read_bytes()
        except OSError as error:
            raise _problem(path, field, f"can't be read: {error.strerror}") from error
        arrays, meta = _parsed(content, path, field)
        if not arrays:
            raise _problem(path, field, "has no arrays")
        return cls(Path(path).stem, arrays, meta, path)

    @classmethod
    def parsed(cls, content: bytes, name: str) -> Artifact:
        """From the content of a safetensors file that came otherwise. Raises UsageError."""
        return cls(name, *_parsed(content, name, None))

    def content(self) -> bytes:
        """As a safetensors file; the same bytes for equal content."""
        header: dict[str, Any] = {_META: dict(self.meta)} if self.meta else {}
        data, end = [], 0
        for key, array in self.arrays.items():
            name = next((name for name, dtype in _TYPES.items() if array.dtype == dtype), None)
            if name is None:
                self._refuse(f"is of type {array.dtype}", key)
            data.append(array.astype(array.dtype.newbyteorder("<")).tobytes())
            begin, end = end, end + len(data[-1])
            header[key] = {"dtype": name, "shape": list(array.shape), "data_offsets": [begin, end]}
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-len(text) % _LENGTH_BYTES)  # so that arrays are aligned
        return len(text).to_bytes(_LENGTH_BYTES, "little") + text + b"".join(data)

    def floats(self, key: str, shape: tuple[int, ...]) -> Floats:
        """An array as float64. Raises UsageError if it is missing or has another shape."""
        array = self.arrays.get(key)
        if array is None:
            self._refuse("is missing", key, expected=f"an array of shape {list(shape)}")
        if array.shape != shape:
            self._refuse("has the wrong shape", key, list(array.shape), f"{list(shape)}")
        return np.asarray(array, np.float64)

    def _refuse(self, problem: str, key: str, value: object = None, expected: str = _EXPECTED) -> NoReturn:
        raise UsageError(problem, file=self.path or self.name, field=key, value=value, expected=expected)

    def __bool__(self) -> bool:
        """Whether there are arrays."""
        return bool(self.arrays)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Artifact) and other.sha256 == self.sha256

    def __hash__(self) -> int:
        return hash(self.sha256)

    def __repr__(self) -> str:
        """Name and the begin of the hash."""
        return f"{self.name}@{self.sha256[:12]}" if self else NONE

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles with its arrays, so that other processes need no file."""
        return Artifact, (self.name, dict(self.arrays), dict(self.meta), self.path)


NO_ARTIFACT: Final = Artifact(NONE, {})


def _problem(
    path: str, field: str | None, problem: str, value: object = None, expected: str = _EXPECTED
) -> UsageError:
    return UsageError(problem, file=path, field=field, value=value, expected=expected)


def _parsed(content: bytes, path: str, field: str | None) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Arrays and metadata of a file's content."""
    length = int.from_bytes(content[:_LENGTH_BYTES], "little")
    begin = _LENGTH_BYTES + length
    if len(content) < _LENGTH_BYTES or begin > len(content):
        raise _problem(path, field, "is no safetensors file", value=f"{len(content)} bytes")
    try:
        header = json.loads(content[_LENGTH_BYTES:begin].decode(), object_pairs_hook=_each_once)
    except (ValueError, RecursionError) as error:
        raise _problem(path, field, f"has a header that is no JSON: {error}") from error
    if not isinstance(header, dict):
        raise _problem(path, field, "has a header that is no table of arrays")
    meta = header.pop(_META, {})
    if not isinstance(meta, dict) or not all(isinstance(value, str) for value in meta.values()):
        raise _problem(path, _META, "is not text by key", meta)
    arrays, places, data = {}, [], content[begin:]
    for key, entry in header.items():
        dtype, shape, (first, end) = _entry(key, entry, len(data), path)
        places.append((first, end))
        arrays[key] = np.frombuffer(data[first:end], dtype).reshape(shape)
    ends = [0, *(end for _, end in sorted(places))]
    if [first for first, _ in sorted(places)] != ends[:-1] or ends[-1] != len(data):
        raise _problem(path, field, "has arrays that overlap, or bytes of none")
    return arrays, meta


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key comes twice")
    return found


def _entry(key: str, entry: Any, size: int, path: str) -> tuple[np.dtype[Any], list[int], tuple[int, int]]:
    """Type, shape, and first and end byte of an array. Raises UsageError unless all fit each other."""
    entry = entry if isinstance(entry, dict) else {}
    dtype, shape, place = _TYPES.get(str(entry.get("dtype"))), entry.get("shape"), entry.get("data_offsets")
    if dtype is None:
        raise _problem(path, key, "has a type that is not read", entry.get("dtype"), ", ".join(_TYPES))
    if not _are_naturals(shape, _MOST_AXES) or not _are_naturals(place, 2) or len(place) != 2:
        raise _problem(path, key, "has no shape or no place", entry, "shape and data_offsets, whole numbers")
    first, end = place
    if not first <= end <= size or end - first != math.prod(shape) * dtype.itemsize:
        raise _problem(
            path, key, "has a place that does not fit", place, f"{shape} of {dtype} in {size} bytes"
        )
    return dtype, shape, (first, end)


def _are_naturals(values: Any, most: int) -> bool:
    is_list = isinstance(values, list) and len(values) <= most
    return is_list and all(type(value) is int and 0 <= value <= _MOST_BYTES for value in values)
