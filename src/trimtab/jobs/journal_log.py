"""Records of a process that its database may not have yet: files beside the database.

There is one write for each turn of the event loop. It outlives its process at once, and costs much less
than a transaction. The next process that opens the journal stores the records of a killed process.
"""

from __future__ import annotations

import errno
import itertools
import os
import pickle
from collections.abc import Iterator, Set
from pathlib import Path
from struct import Struct
from typing import Any

Rows = list[tuple[Any, ...]]
_LENGTH = Struct("<I")
_MARK = ".noted-"


class JournalLog:
    """The files of one process. One grows at a time; it is removed when the database has its rows.

    Args:
        database: the database's file.
        owner: the id of this process.
    """

    def __init__(self, database: Path, owner: str) -> None:
        self._prefix, self._numbers = f"{database}{_MARK}{owner}-", itertools.count()
        self._file, self._path = -1, ""

    def write(self, rows: tuple[Rows, ...]) -> None:
        """Keep rows. They outlive this process when it returns. Raises OSError."""
        if self._file < 0:
            self._path = f"{self._prefix}{next(self._numbers):09d}"
            self._file = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND, 0o600)
        data = pickle.dumps(rows, 5)
        if os.write(self._file, _LENGTH.pack(len(data)) + data) < _LENGTH.size + len(data):
            raise OSError(errno.ENOSPC, "no room for the journal", self._path)

    def next_file(self) -> str:
        """Go on with a new file; returns the present one, to be removed once its rows are stored."""
        if self._file < 0:
            return ""
        os.close(self._file)
        self._file, path = -1, self._path
        return path


def left_files(database: Path, living: Set[str]) -> list[Path]:
    """The files of processes that live no more, in the order in which they were written."""
    found = database.parent.glob(f"{database.name}{_MARK}*")
    return sorted(path for path in found if _owner_of(path) not in living)


def _owner_of(path: Path) -> str:
    return path.name.partition(_MARK)[2].rpartition("-")[0]


def rows_in(path: Path) -> Iterator[tuple[Rows, ...]]:
    """The records of a file; none if another process has stored and removed it meanwhile.

    A write that its process did not finish was never acknowledged: it is left out.
    """
    try:
        data, at = path.read_bytes(), 0
    except FileNotFoundError:
        return
    while at + _LENGTH.size <= len(data):
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        if at + length > len(data):
            return
        yield pickle.loads(memoryview(data)[at : at + length])
        at += length
