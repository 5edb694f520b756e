"""The cache of compiled kernels on disk: one folder for each machine, one entry for each fingerprint.

numba itself checks only whether the file of a kernel has changed. Here the name of an entry contains the
kernel's fingerprint. So entries of several versions can exist side by side, and none becomes stale.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import importlib.util
import os
import platform
import shutil
import stat
import tempfile
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numba
import platformdirs
from numba.core.caching import Cache, CompileResultCacheImpl, IndexDataCacheFile, _CacheLocator

from trimtab.compiled.fingerprint import fingerprint, machine
from trimtab.compiled.numba_extras import preload_numba


def cache_root() -> Path:
    """Folder of all compiled kernels: `TRIMTAB_CACHE_DIR`, or the user's cache folder."""
    chosen = os.environ.get("TRIMTAB_CACHE_DIR")
    return Path(chosen) if chosen else platformdirs.user_cache_path("trimtab", appauthor=False)


def folder_name(processor: str) -> str:
    """Name of the folder of the kernels for a processor, as numba calls it."""
    return f"kernels-{machine(processor)}"


SHIPPED = "trimtab_kernels"  # a package of kernels compiled beforehand
_X86, _ARM = ("x86-64-v3", "generic"), ("generic",)
LEVELS = {"x86_64": _X86, "AMD64": _X86, "aarch64": _ARM, "arm64": _ARM}  # for each, the fastest first
_V3 = ("avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "xsave")


def _shipped_folder() -> Path | None:
    """The folder of shipped kernels for the fastest level that this processor can run; None without one.

    Then numba compiles for their level, not for this processor: machine code of both kinds goes together.
    """
    if os.environ.get("NUMBA_CPU_NAME") or (spec := importlib.util.find_spec(SHIPPED)) is None:
        return None
    can = llvm.get_host_cpu_features()
    for level in LEVELS.get(platform.machine(), ()):
        folder = Path(str(spec.origin)).parent / folder_name(level)
        if folder.is_dir() and (level != "x86-64-v3" or all(can.get(feature) for feature in _V3)):
            vars(numba.config).update(CPU_NAME=level, CPU_FEATURES="")
            return folder
    return None


_SHIPPED_FOLDER = _shipped_folder()  # at import: numba reads its settings when the first kernel is declared


@functools.cache
def cache_folder() -> Path:
    """The folder of kernels compiled for this machine; a temporary folder if that one is not writable.

    Shipped kernels are copied into it, where they were made for the same versions of the libraries.
    """
    folder = cache_root() / folder_name(vars(numba.config)["CPU_NAME"] or llvm.get_host_cpu_name())
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(folder)
    except OSError:
        folder = _private_folder() / folder.name
        folder.mkdir(exist_ok=True)
    if _SHIPPED_FOLDER is not None:
        with contextlib.suppress(OSError):  # a full disk: what is lacking is compiled, and not kept
            _add_missing(_SHIPPED_FOLDER, folder)
    return folder


def _add_missing(shipped: Path, folder: Path) -> None:
    """Copy the kernels that a folder lacks: the code of each before its index, by which it is found."""
    has = set(os.listdir(folder))
    for index in shipped.glob("*.nbi"):
        if index.name not in has:
            for source in (*shipped.glob(f"{index.stem}.*.nbc.gz"), index):
                part, data = folder / f"{source.name}.{os.getpid()}", source.read_bytes()
                part.write_bytes(gzip.decompress(data) if source.suffix == ".gz" else data)
                part.replace(folder / source.name.removesuffix(".gz"))


def pack(folder: Path) -> None:
    """Compress the code in a folder of kernels, which is then one to ship."""
    for code in folder.glob("*.nbc"):
        code.with_name(f"{code.name}.gz").write_bytes(gzip.compress(code.read_bytes(), mtime=0))
        code.unlink()


def _private_folder() -> Path:
    """A temporary folder that no other user can write to, because cached machine code is executed."""
    folder = Path(tempfile.gettempdir()) / f"trimtab-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022
    return folder if is_own else Path(tempfile.mkdtemp(prefix="trimtab-"))


def prune_cache(before_s: float) -> int:
    """Delete kernels last used before this time, in seconds since 1970; returns the number deleted."""
    gone = 0
    for folder in cache_root().glob("kernels-*"):
        if folder != cache_folder():
            gone += len(list(folder.rglob("*.nbi")))
            shutil.rmtree(folder, ignore_errors=True)
    for index in cache_folder().glob("*.nbi"):
        if index.stat().st_mtime < before_s:
            for data in index.parent.glob(f"{index.stem}.*.nbc"):
                data.unlink(missing_ok=True)
            index.unlink(missing_ok=True)
            gone += 1
    return gone


class _Locator(_CacheLocator):
    """Gives numba the place of a kernel's entry."""

    def __init__(self, py_func: Any, py_file: str) -> None:
        self._py_file = py_file  # numba names it in warnings
        self._fingerprint = fingerprint(py_func)

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> _Locator:
        return cls(py_func, py_file)

    def get_cache_path(self) -> str:
        return str(cache_folder())

    def get_source_stamp(self) -> str:
        return self._fingerprint

    def get_disambiguator(self) -> str:
        return self._fingerprint


class _Entry(CompileResultCacheImpl):
    _locator_classes = [_Locator]  # noqa: RUF012 - numba's own is a list


class KernelCache(Cache):
    """The entry of one kernel, found at its first use. All functions that it calls must exist by then."""

    def __init__(self, py_func: Any) -> None:
        self._py_func = py_func
        self.enable()

    @functools.cached_property
    def _impl(self) -> _Entry:
        return _Entry(self._py_func)

    @functools.cached_property
    def _cache_file(self) -> IndexDataCacheFile:  # type: ignore[override]
        return IndexDataCacheFile(self.cache_path, self._impl.filename_base, fingerprint(self._py_func))

    @property
    def cache_path(self) -> str:
        """The folder."""
        return str(cache_folder())

    def holds(self, signature: Any = None) -> bool:
        """Whether the kernel is in the cache: for this signature, or for any.

        A positive answer counts as a use.
        """
        kept = self._cache_file._load_index()
        is_there = any(key[0].args == signature.args for key in kept) if signature else bool(kept)
        if is_there:
            self._note_use()
        return is_there

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Load the kernel for a signature; None if it is not in the cache."""
        preload_numba()
        found = super().load_overload(sig, target_context)
        if found is not None:
            self._note_use()
        return found

    def _note_use(self) -> None:
        with contextlib.suppress(OSError):  # another process has pruned it, or owns it
            os.utime(self._cache_file._index_path)
