"""Kernels: small functions that run compiled by numba or as plain Python, with exactly equal results.

`@kernel` compiles lazily and caches on disk. `interpreted(f)` is the same function as plain Python, helpers
included. Nothing here uses fastmath: it would break the equality.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any, TypeVar, cast, overload

import numba
from numba.core.registry import CPUDispatcher
from numba.core.types import IntegerLiteral

from trimtab.compiled.kernel_cache import KernelCache
from trimtab.compiled.numba_extras import LinkOnlyCompiler

F = TypeVar("F", bound=Callable[..., Any])


@overload
def kernel(function: F) -> F: ...
@overload
def kernel(*, nogil: bool) -> Callable[[F], F]: ...
def kernel(function: F | None = None, *, nogil: bool = False) -> Any:
    """Mark a function as a kernel that Python may call: cached on disk.

    `nogil`: other Python threads may run during a call.
    """
    if function is None:
        return functools.partial(kernel, nogil=nogil)
    options = {"nopython": True, "boundscheck": None, "error_model": "python", "nogil": nogil}
    return Kernel(function, targetoptions=options)


class Kernel(CPUDispatcher):
    """A function whose compiled form Python calls."""

    def __init__(self, py_func: Any, *given: Any, **named: Any) -> None:
        super().__init__(py_func, *given, **named)
        self._cache = KernelCache(py_func)


_NARROW = {getattr(numba, f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32)}


def _widened(kind: Any) -> Any:
    """int64 for any narrower integer: without this each width of a record field needs its own compilation."""
    return numba.int64 if kind in _NARROW or isinstance(kind, IntegerLiteral) else kind


class Helper(CPUDispatcher):
    """A function whose compiled form kernels call. Plain Python calls its source."""

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """numba's template, with integers widened by the caller: one machine code for all integer widths."""
        named = {name: _widened(kind) for name, kind in kws.items()}
        return super().get_call_template(tuple(map(_widened, args)), named)

    def __call__(self, *args: Any) -> Any:
        """Run the source."""
        return self.py_func(*args)


@overload
def helper(function: F) -> F: ...
@overload
def helper(*, inline: bool) -> Callable[[F], F]: ...
def helper(function: F | None = None, *, inline: bool = False) -> Any:
    """Mark a function that kernels call. It has no compiled wrappers for Python, which compile slowly.

    `inline` asks LLVM to inline it into its callers (hot, small functions).
    """
    if function is None:
        return functools.partial(helper, inline=inline)
    options = {
        "nopython": True,
        "boundscheck": None,
        "error_model": "python",
        "forceinline": inline,
        "no_cpython_wrapper": True,
        "no_cfunc_wrapper": True,
    }
    return Helper(function, targetoptions=options, pipeline_class=LinkOnlyCompiler)


_INDEX_BITS = (1 << 31) - 1  # mask with enough bits for every index


@helper(inline=True)
def plain(i: int) -> int:
    """A non-negative index in a form that compilers see as non-negative: kernels then skip wraparound."""
    return i & _INDEX_BITS


def is_kernel(function: object) -> bool:
    """Whether `function` was marked with `@kernel` (or compiled by numba itself)."""
    return isinstance(function, CPUDispatcher)


_plain: dict[Any, Any] = {}


def interpreted(function: F) -> F:
    """The same kernel as plain Python. Every kernel that it calls becomes plain Python too, recursively."""
    if not is_kernel(function):
        return function
    if function not in _plain:
        source = cast(Any, function).py_func
        names = source.__code__.co_names
        scope = dict(source.__globals__)
        _plain[function] = types.FunctionType(source.__code__, scope, source.__name__, source.__defaults__)
        scope.update({n: interpreted(scope[n]) for n in names if n in scope and is_kernel(scope[n])})
    return cast(F, _plain[function])
