"""Values under the digest of their content: in a folder, or at any URL that fsspec knows."""

from __future__ import annotations

import contextlib
import zlib
from pathlib import Path
from typing import Any, Final, Protocol

from trimtab.errors import MissingExtra
from trimtab.jobs.job_files import write_durably

SAMPLE_BYTES: Final = 65_536
WORTH_FRAC: Final = 0.9  # values that compress to more than this share are stored as they are
_RAW, _ZSTD, _ZLIB = b"\x00", b"\x01", b"\x02"  # the first byte of a file


class ValueStore(Protocol):
    """A store of bytes by digest. Calls block: use a thread."""

    def put(self, digest: str, data: bytes | memoryview) -> None:
        """Keep a value, durably. Raises OSError."""

    def get(self, digest: str) -> bytes:
        """A value. Raises FileNotFoundError."""

    def has(self, digest: str) -> bool:
        """Whether it has a value."""

    def drop(self, digest: str) -> None:
        """Forget a value."""


def value_store(place: str | Path) -> ValueStore:
    """The store at a folder or URL. Raises MissingExtra if its URL needs what is not installed."""
    if "://" not in str(place):
        return FolderStore(Path(place))
    try:
        import fsspec
    except ModuleNotFoundError as error:
        raise MissingExtra(
            "stores at URLs need fsspec", field="store", expected="pip install 'trimtab[chains]'"
        ) from error
    filesystem, folder = fsspec.core.url_to_fs(str(place))
    return RemoteStore(filesystem, folder)


class FolderStore:
    """A folder. A file gets its name when its content is whole."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, digest: str, data: bytes | memoryview) -> None:
        """Keep a value."""
        path = self._path(digest)
        if path.exists():
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, compressed(data))

    def get(self, digest: str) -> bytes:
        """A value."""
        return plain(self._path(digest).read_bytes())

    def has(self, digest: str) -> bool:
        """Whether it has a value."""
        return self._path(digest).exists()

    def drop(self, digest: str) -> None:
        """Forget a value."""
        self._path(digest).unlink(missing_ok=True)

    def _path(self, digest: str) -> Path:
        return self._folder / digest[:2] / digest


class RemoteStore:
    """A folder of a file system of fsspec's."""

    def __init__(self, filesystem: Any, folder: str) -> None:
        self._filesystem, self._folder = filesystem, folder

    def put(self, digest: str, data: bytes | memoryview) -> None:
        """Keep a value."""
        if not self.has(digest):
            self._filesystem.makedirs(f"{self._folder}/{digest[:2]}", exist_ok=True)
            self._filesystem.pipe_file(self._path(digest), b"".join(compressed(data)))

    def get(self, digest: str) -> bytes:
        """A value."""
        return plain(self._filesystem.cat_file(self._path(digest)))

    def has(self, digest: str) -> bool:
        """Whether it has a value."""
        return bool(self._filesystem.exists(self._path(digest)))

    def drop(self, digest: str) -> None:
        """Forget a value."""
        with contextlib.suppress(FileNotFoundError):
            self._filesystem.rm_file(self._path(digest))

    def _path(self, digest: str) -> str:
        return f"{self._folder}/{digest[:2]}/{digest}"


def compressed(data: bytes | memoryview) -> tuple[bytes, bytes | memoryview]:
    """The value for a file: compressed if a sample of it says that this pays."""
    kind, compress = _compressor()
    if len(compress(data[:SAMPLE_BYTES])) > WORTH_FRAC * min(len(data), SAMPLE_BYTES):
        return _RAW, data
    return kind, compress(data)


def plain(stored: bytes) -> bytes:
    """The value of a file."""
    kind, data = stored[:1], memoryview(stored)[1:]
    if kind == _ZSTD:
        import zstandard

        return zstandard.ZstdDecompressor().decompress(data)
    return zlib.decompress(data) if kind == _ZLIB else bytes(data)


def _compressor() -> tuple[bytes, Any]:
    try:
        import zstandard
    except ModuleNotFoundError:
        return _ZLIB, lambda data: zlib.compress(data, 1)
    return _ZSTD, zstandard.ZstdCompressor(level=3).compress
