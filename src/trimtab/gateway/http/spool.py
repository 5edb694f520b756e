"""A request's body while it arrives: in memory while it is small, else in a temporary file."""

from __future__ import annotations

import asyncio
import errno
import os
import tempfile
from collections import deque
from types import TracebackType
from typing import IO, Any, Protocol, Self

READ_BYTES = 262_144


class Reads(Protocol):
    """A reader of a long body in bounded memory."""

    def feed(self, chunk: bytes, /) -> Any:
        """Process the next bytes."""


class SpooledBytes:
    """Reads a file from its beginning, with one range replaced. It has its own file descriptor."""

    def __init__(self, file_fd: int, size: int, change: tuple[int, int, bytes] | None) -> None:
        """`change`: (start, end, replacement bytes)."""
        self._fd = os.dup(file_fd)
        start, end, instead = change or (0, 0, b"")
        self._left: deque[tuple[int, int] | bytes] = deque([(0, start), instead, (end, size)])

    def read(self, most: int = READ_BYTES) -> bytes:
        """The next bytes, at most `most`, possibly fewer; b"" at the end. Raises OSError."""
        while self._left:
            part = self._left.popleft()
            if isinstance(part, bytes):
                piece, part = part[:most], part[most:]
            else:
                at, end = part
                piece = os.pread(self._fd, min(most, end - at), at)
                part = (at + len(piece), end)
            if piece:
                self._left.appendleft(part)
                return piece
        return b""

    def close(self) -> None:
        """Close the file descriptor."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Body:
    """The bytes of one request's body."""

    __slots__ = ("_change", "_file", "_memory_bytes", "_pieces", "_reading", "in_memory", "size")

    def __init__(self, memory_bytes: int) -> None:
        self._memory_bytes = memory_bytes
        self._pieces: list[bytes] = []
        self._file: IO[bytes] | None = None
        self._change: tuple[int, int, bytes] | None = None
        self._reading: SpooledBytes | None = None
        self.size = 0
        self.in_memory = 0  # bytes held in memory

    @property
    def spooled(self) -> bool:
        """Whether the body is in a file, so that it can be sent only once."""
        return self._file is not None

    def add(self, piece: bytes) -> int:
        """Add a piece. Returns the change of the bytes in memory. Raises OSError (disk full)."""
        size = len(piece)
        self.size += size
        if self._file is not None:
            _write(self._file, piece)
            return 0
        in_memory = self.in_memory + size
        if in_memory <= self._memory_bytes:
            self._pieces.append(piece)
            self.in_memory = in_memory
            return size
        self._file = tempfile.TemporaryFile(prefix="trimtab-body-", buffering=0)  # noqa: SIM115 closed by `close`
        for one in (*self._pieces, piece):
            _write(self._file, one)
        self._pieces.clear()
        freed, self.in_memory = self.in_memory, 0
        return -freed

    def whole(self) -> bytes | None:
        """The whole body if it is in memory, else None."""
        if self._file is not None:
            return None
        pieces = self._pieces
        if len(pieces) > 1:
            self._pieces = pieces = [b"".join(pieces)]
        return pieces[0] if pieces else b""

    def change(self, start: int, end: int, instead: bytes) -> None:
        """Replace the bytes from `start` to `end` for all later readers of the file. Allowed once."""
        assert self._change is None
        self._change = (start, end, instead)
        self.size += len(instead) - (end - start)

    def rewind(self) -> None:
        """Start reading the file from its beginning."""
        if self._reading is not None:
            self._reading.close()
        self._reading = None if self._file is None else self.file()

    def read(self) -> bytes:
        """The next piece of the file; b"" at its end."""
        return b"" if self._reading is None else self._reading.read()

    async def show(self, *readers: Reads) -> None:
        """Feed the whole file to the readers. Other tasks can run between two pieces."""
        self.rewind()
        while piece := self.read():
            for reader in readers:
                reader.feed(piece)
            await asyncio.sleep(0)

    def file(self) -> SpooledBytes:
        """A second reader of the file, for a thread: this body may be closed meanwhile. Raises OSError."""
        assert self._file is not None
        in_file = self._file.tell()  # writing has ended, so this is the file's size
        return SpooledBytes(self._file.fileno(), in_file, self._change)

    def close(self) -> None:
        """Free the memory and the file."""
        self._pieces.clear()
        self.in_memory = 0
        if self._reading is not None:
            self._reading.close()
            self._reading = None
        if self._file is not None:
            self._file.close()
            self._file = None


def _write(file: IO[bytes], piece: bytes) -> None:
    """Write the whole piece. On a full disk the first write is partial, and only the next one raises."""
    left = memoryview(piece)
    while left:
        written = file.write(left)
        if not written:
            raise OSError(errno.ENOSPC, "nothing more is written")
        left = left[written:]
