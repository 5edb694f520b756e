"""A faster compiler for functions that are only parts of kernels.

numba optimises each function that a kernel calls, with its own callees, and makes machine code of it. That
machine code is never run, because the kernel contains all of its functions and is optimised as a whole. This
compiler skips both steps: the loop compiles in much less time and runs at the same speed.
"""

from __future__ import annotations

from typing import Any

from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler


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
    """numba's compiler of one function, into a library that is only linked."""

    def __init__(self, typing: Any, target: Any, library: Any, *others: Any) -> None:
        library = _LinkOnlyLibrary(target.codegen(), "linked")
        super().__init__(typing, target, library, *others)
