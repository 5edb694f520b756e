"""Large values as files in memory that all worker processes of a machine read."""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import secrets
import shutil
import tempfile
from pathlib import Path

from trimtab.live.stage_backend import Ref, ValueLost, digest_of

INLINE_BYTES = 65_536  # smaller values travel in messages
_PREFIX = "trimtab-values-"
_SHARED_MEMORY = Path("/dev/shm")
_MIN_FREE_BYTES = 1 << 30


def make_spool() -> Path:
    """A new folder, in shared memory if it has room. Removes those that killed hosts left behind."""
    root = _SHARED_MEMORY
    if not (os.access(root, os.W_OK) and shutil.disk_usage(root).free >= _MIN_FREE_BYTES):
        root = Path(tempfile.gettempdir())
    for left in root.glob(f"{_PREFIX}*"):
        owner = left.name.removeprefix(_PREFIX).partition("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists() and Path("/proc/self").exists():
            shutil.rmtree(left, ignore_errors=True)
    spool = root / f"{_PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
    spool.mkdir(mode=0o700)
    return spool


class Spool:
    """Reads and writes values: small ones in their references, large ones as files."""

    def __init__(self, folder: str | Path, inline_bytes: float = INLINE_BYTES) -> None:
        self._folder, self._inline_bytes = Path(folder), inline_bytes
        self._numbers = itertools.count()

    @property
    def free_bytes(self) -> int:
        """The free bytes where the files are."""
        return shutil.disk_usage(self._folder).free

    def write(self, data: bytes) -> Ref:
        """Keep a value. Raises OSError if there is no room."""
        return self.keep(Ref(digest_of(data), len(data), data))

    def keep(self, ref: Ref) -> Ref:
        """Keep a value that its reference carries. Raises OSError if there is no room."""
        if ref.data is None or len(ref.data) <= self._inline_bytes:
            return ref
        path = self._folder / f"{os.getpid()}-{next(self._numbers)}"
        try:
            path.write_bytes(ref.data)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        return Ref(ref.digest, ref.size_bytes, None, str(path))

    def read(self, ref: Ref) -> bytes | memoryview:
        """The bytes of a value; a large one is not copied. Raises ValueLost."""
        if ref.data is not None:
            return ref.data
        try:
            with open(ref.place, "rb") as file:
                return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except (OSError, ValueError) as error:
            raise ValueLost(f"{ref.digest}: {error}") from error

    def drop(self, ref: Ref) -> None:
        """Delete a value."""
        if ref.place:
            with contextlib.suppress(OSError):
                os.unlink(ref.place)

    def remove(self) -> None:
        """Delete all values."""
        shutil.rmtree(self._folder, ignore_errors=True)
