"""A value that changes with a file, to notice that it was written anew."""

from __future__ import annotations

from pathlib import Path


def file_stamp(path: Path) -> tuple[int, int]:
    """Size and modification time of the file. Zeros without a file."""
    found = path.stat() if path.exists() else None
    return (0, 0) if found is None else (found.st_size, found.st_mtime_ns)
