"""Compiles kernels ahead of their use, or loads them from the cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from trimtab.compiled.compile_errors import explained
from trimtab.compiled.numba_extras import preload_numba
from trimtab.errors import KernelError


def is_compiled(function: Any, signature: Any = None) -> bool:
    """Whether the cache holds this kernel, for one signature or for any. Loading it is then fast."""
    return bool(function._cache.holds(signature))


def compile_by_use(kernels: Sequence[Any], use: Callable[[], object]) -> None:
    """Compile these kernels by a call that uses all of them, unless they are in the cache."""
    if not all(map(is_compiled, kernels)):
        use()


def compile_kernel(function: Any, signature: Any) -> Any:
    """Compile a kernel for one signature, or load it from the disk; returns the kernel.

    Raises KernelError if numba can't compile it.
    """
    if not function.signatures:
        preload_numba()
        try:
            function.compile(signature)
        except Exception as error:  # numba raises errors of many kinds
            raise KernelError(explained(function, error)) from error
        function.disable_compile()
    return function


def free_llvm_module(function: Any) -> None:
    """Free the LLVM module of a kernel that no other kernel calls: several MiB for the event loop.

    Only linking needs the module. The machine code stays.
    """
    for compiled in function.overloads.values():
        library = compiled.library
        module = getattr(library, "_shared_module", None)
        if module is not None and module is not library._final_module:
            module.close()
            library._shared_module = None
