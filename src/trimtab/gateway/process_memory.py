"""The garbage collector of a process that serves, and how much memory it has."""

from __future__ import annotations

import ctypes
import gc
import mmap
from contextlib import suppress
from pathlib import Path


def collect_later() -> None:
    """No garbage is looked for until `freeze`: what is imported stays, and looking through it takes long."""
    gc.disable()


def freeze() -> None:
    """What is there now stays: the collector need not look at it again. Free memory is given back.

    So are LLVM's pages: what loads kernels is not used again before the next policy.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    gc.enable()
    with suppress(OSError, AttributeError):  # another C library than glibc
        ctypes.CDLL(None).malloc_trim(0)
    with suppress(OSError, AttributeError):  # another system than Linux
        _unmap_code("libllvmlite")


def _unmap_code(library: str) -> None:
    """Let the pages of a library's machine code go. They are the file's: running it reads them again."""
    madvise = ctypes.CDLL(None).madvise
    for line in Path("/proc/self/maps").read_text().splitlines():
        if " r-xp " in line and line.rpartition("/")[2].startswith(library):
            begin, end = (int(address, 16) for address in line.split()[0].split("-"))
            madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), mmap.MADV_DONTNEED)
