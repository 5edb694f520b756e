"""What numba lacks: the lowest bit of an integer, a start without scipy, a compiler of parts of kernels."""

from __future__ import annotations

import functools
import sys
import types
from typing import Any

from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.registry import cpu_target
from numba.cpython.unsafe.numbers import trailing_zeros
from numba.extending import overload


def lowest_bit(bits: int) -> int:
    """Position of the lowest set bit of an integer above 0 that fits 64 bits."""
    return (bits & -bits).bit_length() - 1


@overload(lowest_bit)
def _lowest_bit(_bits: int) -> Any:
    def found(_bits: int) -> int:
        return int(trailing_zeros(_bits))  # type: ignore[call-arg]

    return found


@functools.cache
def preload_numba() -> None:
    """Load numba's modules now, but not scipy: numba only checks that scipy is installed.

    Stand-in modules pass the check, which saves start-up time and memory. A kernel that multiplies matrices
    finds the real modules when it is compiled.
    """
    names = [name for name in ("scipy.linalg", "scipy.linalg.cython_blas") if name not in sys.modules]
    sys.modules.update({name: types.ModuleType(name) for name in names})
    try:
        cpu_target.target_context.refresh()
    finally:
        for name in names:
            del sys.modules[name]


class _LinkOnlyLibrary(JITCodeLibrary):
    """Code that is neither optimised separately nor translated to machine code."""

    codegen = property(lambda self: self)

    def set_env(self, name: str, env: object) -> None:
        """No address to set: there is no machine code."""

    def get_pointer_to_function(self, name: str) -> int:
        """No address."""
        self._ensure_finalized()
        return 0

    def _optimize_final_module(self) -> None:
        """Left to the kernel."""

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True


class LinkOnlyCompiler(Compiler):
    """A faster compiler for functions that are only parts of kernels: into a library that is only linked.

    numba optimises each function that a kernel calls, with its own callees, and makes machine code of it.
    That machine code is never run, because the kernel contains all of its functions and is optimised as a
    whole. This compiler skips both steps: the loop compiles in much less time and runs at the same speed.
    """

    def __init__(self, typing: Any, target: Any, library: Any, *others: Any) -> None:
        library = _LinkOnlyLibrary(target.codegen(), "linked")
        super().__init__(typing, target, library, *others)
