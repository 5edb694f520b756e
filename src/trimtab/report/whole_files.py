"""Atomic writes of files: write under another name in the same folder, then rename."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from trimtab.errors import UsageError


def write_text(path: Path, text: str) -> Path:
    """Write `text` to `path` atomically. Raises UsageError on failure."""
    return write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> Path:
    """Write `content` to `path` atomically; leaves nothing else. Raises UsageError on failure."""
    with refusals_of(path):
        part = stage_bytes(path, content)
        try:
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    return path


def check_writable(folder: Path, names: Iterable[str] = ()) -> None:
    """Check, before any work, that results can be written there, so named; leaves none. Raises UsageError."""
    for name in names:
        with refusals_of(folder / name):
            if (folder / name).is_dir():
                raise IsADirectoryError(None, "Is a directory")
    with refusals_of(folder):
        is_new = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        probe = part_of(folder / "results")
        probe.touch()
        probe.unlink()
        if is_new:
            folder.rmdir()


def check_file(path: Path) -> Path:
    """Check, before any work, that a file can be written there; leaves none. Raises UsageError."""
    with refusals_of(path):
        if path.is_dir():
            raise IsADirectoryError(None, "Is a directory")
        probe = part_of(path)
        probe.touch()
        probe.unlink()
    return path


def stage_bytes(path: Path, content: bytes) -> Path:
    """Write and sync `content` to a temporary file beside `path`, to be renamed. Raises OSError."""
    part = part_of(path)
    try:
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        part.unlink(missing_ok=True)
        raise
    return part


def part_of(path: Path) -> Path:
    """Temporary name beside `path`, of this process."""
    return path.with_name(f".{path.name}.{os.getpid()}.part")


@contextmanager
def refusals_of(path: Path, field: str = "out") -> Iterator[None]:
    """Turn an OSError (no permission, full disk) into a UsageError that names `path` and its option."""
    try:
        yield
    except OSError as error:
        problem = f"can't write there: {error.strerror or error}"
        raise UsageError(
            problem, field=field, value=str(path), expected="a writable folder with room on its disk"
        ) from error


def size_bytes(path: Path) -> int:
    """Size of a file, or of all files of a folder."""
    if path.is_dir():
        return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return path.stat().st_size
