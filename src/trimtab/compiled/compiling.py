"""Compiles kernels ahead of their use, or loads them from the cache."""

from __future__ import annotations

import linecache
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from trimtab.compiled.numba_extras import preload_numba
from trimtab.errors import KernelError

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_DIGESTS = re.compile(r"#[0-9a-f]{16}\b")  # of table types
_PLACE = re.compile(
    r'File "(?P<file>[^"]+)", line (?P<line>\d+)|(?:at|from) (?P<at>\S[^\n]*?) \((?P<n>\d+)\)'
)
_NOISE = ("Failed in nopython mode pipeline", "During:", "File ")


def explained(function: Any, error: BaseException) -> str:
    """Message with the kernel, the place, the reason and the source line."""
    report = _DIGESTS.sub("", _COLOURS.sub("", str(error)))
    file, line = _place(function, report, getattr(error, "loc", None))
    source = linecache.getline(file, line).strip()
    where = f"{_shown(file)}:{line}"
    text = f"kernel {function.py_func.__qualname__} does not compile: {where}: {_reason(report)}"
    return f"{text}\n    {source}" if source else text


def _place(function: Any, report: str, fallback: Any) -> tuple[str, int]:
    """The innermost place in numba's report, else the error's own place, else the start of the kernel."""
    for match in _PLACE.finditer(report):
        file = os.path.abspath(match["file"] or match["at"])
        if Path(file).is_file():
            return file, int(match["line"] or match["n"])
    if fallback is not None and Path(fallback.filename).is_file():
        return fallback.filename, fallback.line
    code = function.py_func.__code__
    return code.co_filename, code.co_firstlineno


def _reason(report: str) -> str:
    lines = [line.strip() for line in report.splitlines()]
    telling = [line for line in lines if line and not line.startswith(_NOISE)] or [report.strip()]
    calls = [line.removeprefix(">>> ") for line in telling if line.startswith(">>> ")]
    if telling[0].startswith("No implementation of function") and calls:
        return f"no implementation of {calls[0]}"
    return _PLACE.sub("", telling[0]).strip().removesuffix("Raised").rstrip(" .,:")


def _shown(file: str) -> str:
    """The shorter of the absolute path and the one from here."""
    relative = os.path.relpath(file)
    return file if relative.startswith("..") else relative


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
