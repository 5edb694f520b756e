"""A request's body while it comes in: in memory while it is small, in a temporary file else."""

from __future__ import annotations

import asyncio
import errno
import os
import tempfile
from typing import IO, Any, Protocol

READ_BYTES = 262_144


class Reads(Protocol):
    """What reads a long body as it is, in bounded memory."""

    def feed(self, chunk: bytes, /) -> Any:
        """The next bytes."""


class Body:
    """The bytes of one request's body."""

    __slots__ = ("_file", "_memory_bytes", "_pieces", "in_memory", "size")

    def __init__(self, memory_bytes: int) -> None:
        self._memory_bytes = memory_bytes
        self._pieces: list[bytes] = []
        self._file: IO[bytes] | None = None
        self.size = 0
        self.in_memory = 0  # bytes of it that are held in memory

    @property
    def spooled(self) -> bool:
        """It is in a file: it can be sent once."""
        return self._file is not None

    def add(self, piece: bytes) -> int:
        """Take a piece; return by how much the bytes in memory have changed. Raises OSError (disk full)."""
        self.size += len(piece)
        if self._file is not None:
            _write(self._file, piece)
            return 0
        if self.in_memory + len(piece) <= self._memory_bytes:
            self._pieces.append(piece)
            self.in_memory += len(piece)
            return len(piece)
        self._file = tempfile.TemporaryFile(prefix="trimtab-body-", buffering=0)  # noqa: SIM115 closed by `close`
        for one in (*self._pieces, piece):
            _write(self._file, one)
        self._pieces.clear()
        freed, self.in_memory = self.in_memory, 0
        return -freed

    def whole(self) -> bytes | None:
        """All of it, if it is in memory."""
        if self._file is not None:
            return None
        pieces = self._pieces
        if len(pieces) > 1:
            self._pieces = pieces = [b"".join(pieces)]
        return pieces[0] if pieces else b""

    def rewind(self) -> None:
        """Read the file from its beginning."""
        if self._file is not None:
            self._file.seek(0)

    def read(self) -> bytes:
        """The file's next piece; b"" at its end."""
        return b"" if self._file is None else self._file.read(READ_BYTES)

    async def show(self, *readers: Reads) -> None:
        """Let these read the whole file; others have the loop between two pieces."""
        self.rewind()
        while piece := self.read():
            for reader in readers:
                reader.feed(piece)
            await asyncio.sleep(0)

    def file(self) -> IO[bytes]:
        """The file once more, for a thread: this one may be closed meanwhile. Raises OSError."""
        assert self._file is not None
        return os.fdopen(os.dup(self._file.fileno()), "rb", buffering=0)

    def close(self) -> None:
        """Let go of it all."""
        self._pieces.clear()
        self.in_memory = 0
        if self._file is not None:
            self._file.close()
            self._file = None


def _write(file: IO[bytes], piece: bytes) -> None:
    """Write all of it. A disk that fills up takes a part first, and raises for the rest only."""
    left = memoryview(piece)
    while left:
        written = file.write(left)
        if not written:
            raise OSError(errno.ENOSPC, "nothing more is written")
        left = left[written:]
