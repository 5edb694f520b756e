"""Kernels: small functions that run compiled by numba or as plain Python, with exactly equal results.

`@kernel` compiles lazily and caches on disk in a folder whose name hashes trimtab's own sources, the numba
version and the processor, since numba itself does not notice an edit in a helper's file. `interpreted(f)` is
the same function as plain Python, helpers included. Nothing here uses fastmath: it would break the equality.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import stat
import sys
import tempfile
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast, overload

import llvmlite.binding as llvm
import numba
import platformdirs
from numba.core.errors import NumbaError
from numba.core.registry import CPUDispatcher, cpu_target
from numba.core.types import IntegerLiteral

from trimtab.compiled.link_only import LinkOnlyCompiler
from trimtab.errors import PolicyError

F = TypeVar("F", bound=Callable[..., Any])

PACKAGE = Path(__file__).resolve().parents[1]


def cache_root() -> Path:
    """Folder of all compiled kernels: `TRIMTAB_CACHE_DIR`, or the user's cache folder."""
    chosen = os.environ.get("TRIMTAB_CACHE_DIR")
    return Path(chosen) if chosen else platformdirs.user_cache_path("trimtab", appauthor=False)


def _fingerprint() -> str:
    digest = hashlib.sha256(f"{numba.__version__} {llvm.get_host_cpu_name()}".encode())
    for source in sorted(PACKAGE.rglob("*.py")):
        text = source.read_bytes()
        if b"@kernel" in text or b"@helper" in text or source.parent.name in ("compiled", "domain"):
            digest.update(source.name.encode() + text)
    return digest.hexdigest()[:16]


@functools.cache
def cache_folder() -> Path:
    """The folder of kernels compiled from these very sources; a temporary one where it can't be written."""
    folder = cache_root() / f"kernels-{_fingerprint()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(folder)
    except OSError:
        folder = _private_folder() / folder.name
        folder.mkdir(exist_ok=True)
    return folder


def _private_folder() -> Path:
    """A temporary folder that nobody else can write to: what is read from a cache is run."""
    folder = Path(tempfile.gettempdir()) / f"trimtab-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022
    return folder if is_own else Path(tempfile.mkdtemp(prefix="trimtab-"))


def prune_cache() -> int:
    """Delete kernels compiled from other sources; returns how many folders went."""
    stale = [f for f in cache_root().glob("kernels-*") if f != cache_folder()]
    for folder in stale:
        shutil.rmtree(folder, ignore_errors=True)
    return len(stale)


@overload
def kernel(function: F) -> F: ...
@overload
def kernel(*, nogil: bool) -> Callable[[F], F]: ...
def kernel(function: F | None = None, *, nogil: bool = False) -> Any:
    """Mark a function as a kernel that a host may call: cached on disk.

    `nogil` lets other threads of Python run meanwhile.
    """
    if function is None:
        return functools.partial(kernel, nogil=nogil)
    config: Any = numba.config
    before = config.CACHE_DIR  # read when caching is switched on; put back for others' functions
    config.CACHE_DIR = str(cache_folder())
    try:
        return numba.njit(cache=True, error_model="python", nogil=nogil)(function)
    finally:
        config.CACHE_DIR = before


_NARROW = {getattr(numba, f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32)}


def _widened(kind: Any) -> Any:
    """int64 for any narrower integer: fields of records come in many widths, and each would be compiled."""
    return numba.int64 if kind in _NARROW or isinstance(kind, IntegerLiteral) else kind


class Helper(CPUDispatcher):
    """A function that kernels call compiled, and that plain Python calls as plain Python."""

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """As numba's, for arguments that are converted by the caller: one machine code for all integers."""
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
    """Mark a function that kernels call: no compiled wrappers for Python, which cost more than the function.

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


def is_kernel(function: object) -> bool:
    """Whether `function` was marked with `@kernel` (or compiled by numba itself)."""
    return isinstance(function, CPUDispatcher)


def _marker(compiled: Any) -> Path:
    name = f"{compiled.__module__}.{compiled.__qualname__}".replace("<locals>", "local")
    return cache_folder() / f"{name}.compiled"


def is_compiled(function: Any) -> bool:
    """Whether this kernel was compiled on this machine from these sources: loading it takes a moment only."""
    return _marker(function).exists()


def mark_compiled(function: Any) -> None:
    """Note that this kernel is in the cache now."""
    _marker(function).touch()


def compile_by_use(function: Any, use: Callable[[], object]) -> None:
    """Compile a kernel and all that is used with it here and now, unless they are in the cache."""
    if not is_compiled(function):
        use()
        mark_compiled(function)


@functools.cache
def preload_numba() -> None:
    """Let numba load what it loads at its first use, but for scipy: it only sees whether that is there.

    Stand-ins tell it so, which saves a quarter of a second and 25 MiB. A kernel that multiplies matrices
    finds the real one when it is compiled.
    """
    names = [name for name in ("scipy.linalg", "scipy.linalg.cython_blas") if name not in sys.modules]
    sys.modules.update({name: types.ModuleType(name) for name in names})
    try:
        cpu_target.target_context.refresh()
    finally:
        for name in names:
            del sys.modules[name]


def compile_kernel(function: Any, signature: Any) -> Any:
    """Compile a kernel for one signature, or load it from the disk; returns the kernel.

    Raises PolicyError where numba can't compile it.
    """
    if not function.signatures:
        preload_numba()
        try:
            function.compile(signature)
        except (NumbaError, AttributeError) as error:  # the latter where a module lacks a name
            raise PolicyError(f"kernel {function.__qualname__!r} does not compile: {error}") from error
        function.disable_compile()
        mark_compiled(function)
    return function


def free_llvm_module(function: Any) -> None:
    """Let go of what others would be linked with, of a kernel that no other calls: 7 MiB of the loop's.

    It was read beside the machine code, which stays.
    """
    for compiled in function.overloads.values():
        library = compiled.library
        module = getattr(library, "_shared_module", None)
        if module is not None and module is not library._final_module:
            module.close()
            library._shared_module = None


_plain: dict[Any, Any] = {}


def interpreted(function: F) -> F:
    """The same kernel as plain Python: every kernel that it calls is replaced by its source, recursively."""
    if not is_kernel(function):
        return function
    if function not in _plain:
        source = cast(Any, function).py_func
        names = source.__code__.co_names
        scope = dict(source.__globals__)
        _plain[function] = types.FunctionType(source.__code__, scope, source.__name__, source.__defaults__)
        scope.update({n: interpreted(scope[n]) for n in names if n in scope and is_kernel(scope[n])})
    return cast(F, _plain[function])
