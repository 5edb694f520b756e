"""Memory of a serving process: garbage collection, and release of free memory."""

from __future__ import annotations

import ctypes
import gc
import mmap
from contextlib import suppress
from pathlib import Path


def collect_later() -> None:
    """Disable garbage collection until `freeze`: imported objects stay, and scanning them takes long."""
    gc.disable()


def freeze() -> None:
    """Exclude all current objects from garbage collection, and return free memory to the system.

    LLVM's pages are released too: the code that loads kernels is not needed before the next policy.
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
    """Release the pages of a library's machine code. They are file-backed: a later call reads them again."""
    madvise = ctypes.CDLL(None).madvise
    for line in Path("/proc/self/maps").read_text().splitlines():
        if " r-xp " in line and line.rpartition("/")[2].startswith(library):
            begin, end = (int(address, 16) for address in line.split()[0].split("-"))
            madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), mmap.MADV_DONTNEED)
