"""Fingerprints of kernels: two kernels with one fingerprint compile to the same machine code.

A kernel's machine code contains the functions that it calls and the constants that it reads, from any file.
Its fingerprint hashes exactly these, found by their names in its bytecode. So an edit changes only the
fingerprints of kernels that use the edited code, and a comment changes none, except in this package.
"""

from __future__ import annotations

import functools
import hashlib
import platform
import sys
import types
from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import llvmlite
import numba
import numpy as np
from numba.core.registry import CPUDispatcher

_LIBRARIES = sys.stdlib_module_names | {"llvmlite", "numba", "numpy", "scipy"}
_PLAIN = (type(None), bool, int, float, complex, str, bytes, np.generic, np.dtype, numba.types.Type)


@functools.cache
def machine(processor: str) -> str:
    """Hash of the library versions and the processor for which machine code is made."""
    python, numpy = sys.implementation.cache_tag, np.__version__.partition(".")[0]
    versions = (python, platform.machine(), numba.__version__, llvmlite.__version__, numpy)
    return hashlib.sha256(repr((versions, processor)).encode()).hexdigest()[:16]


@functools.cache
def fingerprint(function: Any) -> str:
    """Hash of all code and constants in the machine code of this function."""
    found: dict[Any, bytes] = {}
    waiting = [_source(function)]
    while waiting:
        source = waiting.pop()
        if source not in found:
            found[source], called = _own(source)
            waiting += called
    first, *others = found.values()
    return hashlib.sha256(_compiler() + first + b"".join(sorted(others))).hexdigest()[:16]


@functools.cache
def _compiler() -> bytes:
    """Hash of this package, because it determines how kernels are compiled."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.read_bytes())
    return digest.digest()


def _source(function: Any) -> Any:
    return function.py_func if isinstance(function, CPUDispatcher) else function


@functools.cache
def _own(function: types.FunctionType) -> tuple[bytes, tuple[Any, ...]]:
    """Hash of a function's own code and constants, and the functions that it calls."""
    called: list[Any] = []
    codes = list(_nested(function.__code__))
    digest = hashlib.sha256(f"{function.__module__} {function.__qualname__}".encode())
    for code in codes:
        digest.update(code.co_code + repr((code.co_varnames, code.co_names)).encode())
        digest.update("".join(_text(c, called) for c in code.co_consts[_docstrings(code) :]).encode())
    if function.__module__.partition(".")[0] != __package__.partition(".")[0]:
        digest.update(str(function.__code__.co_firstlineno).encode())  # errors in users' kernels name lines
    for name, value in _read(function, codes):
        digest.update(f"{name}={_text(value, called)};".encode())
    return digest.digest(), tuple(called)


def _nested(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _nested(constant)


def _docstrings(code: types.CodeType) -> int:
    """Number of leading constants that are documentation."""
    return int(bool(code.co_consts) and isinstance(code.co_consts[0], str))


def _read(function: types.FunctionType, codes: Iterable[types.CodeType]) -> Iterator[tuple[str, Any]]:
    """Names that a function reads from outside, with their values."""
    names = sorted({name for code in codes for name in code.co_names})
    scope = function.__globals__
    for name in names:
        if name in scope:
            yield name, scope[name]
            if isinstance(scope[name], types.ModuleType) and not _is_library(scope[name].__name__):
                members = vars(scope[name])
                yield from ((f"{name}.{n}", members[n]) for n in names if n in members)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        yield name, cell.cell_contents
    for k, value in enumerate(function.__defaults__ or ()):
        yield str(k), value


def _text(value: Any, called: list[Any]) -> str:
    """The text of a value in a hash; functions are added to `called`."""
    if isinstance(value, CPUDispatcher):
        called.append(value.py_func)
        return f"{value.py_func.__qualname__} {sorted(value.targetoptions.items())}"
    if isinstance(value, _PLAIN):
        return f"{type(value).__name__} {value!r}"
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
    if isinstance(value, tuple | list):
        return f"{type(value).__name__}({','.join(_text(v, called) for v in value)})"
    if isinstance(value, frozenset):
        return f"{sorted(_text(v, called) for v in value)}"
    if isinstance(value, Enum):
        return f"{value!r}"
    if isinstance(value, types.CodeType):
        return value.co_name
    return _text_of_named(value, called)


def _text_of_named(value: Any, called: list[Any]) -> str:
    """`_text` for modules, classes, and functions for which numba has a compiled form."""
    name = getattr(value, "__qualname__", getattr(value, "__name__", type(value).__qualname__))
    module = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", "")
    if isinstance(value, types.ModuleType) or _is_library(module or ""):
        return f"{module}.{name}" + _text_of_intrinsic(value, called)
    if isinstance(value, type) and issubclass(value, Enum):
        return f"{[(member.name, member.value) for member in value]}"
    if isinstance(value, type) and issubclass(value, tuple) and hasattr(value, "_fields"):
        return f"{name}{value._fields}"
    return f"{module}.{name} {_file_hash(module)}" + _text_of_intrinsic(value, called)


def _text_of_intrinsic(value: Any, called: list[Any]) -> str:
    """`_text` for the function behind an intrinsic, whose closure may hold types."""
    made_by = getattr(value, "_defn", None)
    if isinstance(made_by, types.FunctionType):
        called.append(made_by)
        return f" {made_by.__module__}"
    return ""


def _is_library(module: str) -> bool:
    return module.partition(".")[0] in _LIBRARIES


@functools.cache
def _file_hash(module: str) -> str:
    file = getattr(sys.modules.get(module), "__file__", None)
    return hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else ""
