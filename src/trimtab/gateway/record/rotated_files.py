"""The files of a recording: rotated by size, only the newest are kept, whole lines only. Calls block."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from trimtab.traces.gateway_format import FILE_NAME, file_name


class RotatedFiles:
    """Writes blocks of whole lines. Only the owner may read the files, because they show tenants' traffic.

    `first_lines` gives the lines at the beginning of every file.
    """

    def __init__(
        self,
        folder: Path,
        recording: str,
        max_bytes: int,
        max_files: int,
        first_lines: Callable[[], bytes],
    ) -> None:
        self._folder, self._recording = folder, recording
        self._max_bytes, self._max_files, self._first_lines = max_bytes, max_files, first_lines
        self._seq = 0
        self._file_fd = -1
        self._size_bytes = 0

    @property
    def path(self) -> Path:
        """The current file."""
        return self._folder / file_name(self._recording, 0, self._seq)

    def needs_head(self) -> bool:
        """Whether the next block begins a file. Then the caller prepares the result of `first_lines`."""
        return self._file_fd < 0 or self._size_bytes >= self._max_bytes

    def write(self, block: bytes) -> None:
        """Append a block. Raises OSError; then the file holds no part of the block."""
        if self._file_fd >= 0 and self._size_bytes >= self._max_bytes:
            self.close()
        if self._file_fd < 0:
            self._begin()
        self._append(block)

    def close(self) -> None:
        """Close the current file. A later write begins another."""
        if self._file_fd >= 0:
            file_fd, self._file_fd = self._file_fd, -1
            os.close(file_fd)

    def _begin(self) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._seq += 1
        self._file_fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._size_bytes = 0
        try:
            self._append(self._first_lines())
        except OSError:
            self.close()
            self.path.unlink(missing_ok=True)  # a file without a head could not be read
            raise
        self._delete_old()

    def _append(self, block: bytes) -> None:
        left = memoryview(block)
        try:
            while left:
                left = left[os.write(self._file_fd, left) :]
        except OSError:
            os.ftruncate(self._file_fd, self._size_bytes)
            os.lseek(self._file_fd, self._size_bytes, os.SEEK_SET)
            raise
        self._size_bytes += len(block)

    def _delete_old(self) -> None:
        """Delete all but the newest files, including files of earlier recordings."""
        names = sorted(entry.name for entry in self._folder.iterdir() if FILE_NAME.fullmatch(entry.name))
        for name in names[: -self._max_files]:
            (self._folder / name).unlink(missing_ok=True)
