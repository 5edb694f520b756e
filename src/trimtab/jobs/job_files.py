"""The files of jobs: inputs and results. A file gets its name only when its content is durable."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, Protocol

import orjson

from trimtab.errors import StoreUnavailable

SHORT_BYTES: Final = 65_536  # results up to this size are in memory until they are finished
_PIECE_BYTES = 1 << 20  # of a long input, in memory at a time
_PLACE = "place"  # the file that names a folder, wherever it is mounted
_NAME = re.compile(r"[A-Za-z0-9_-]+(\.[0-9]+)?\Z")


class TooLarge(Exception):  # noqa: N818 - reads as the sentence it prints
    """A result is longer than allowed."""


class NotKept(Exception):  # noqa: N818 - reads as the sentence it prints
    """The disk cannot store a result."""


@dataclass(frozen=True, slots=True)
class StoredResult:
    """A complete, durable result."""

    name: str  # in the folder of results
    content_type: str
    bytes: int


@dataclass(frozen=True, slots=True)
class StagedInput:
    """The input of a future job: complete and durable, in the folder of inputs."""

    name: str
    bytes: int


JobInput = bytes | StagedInput
"""Bytes in memory, or a staged file."""


class ResultFile:
    """A result that is being written. Calls block briefly: use a thread where that matters."""

    def __init__(self, path: Path, content_type: str, max_bytes: int) -> None:
        """Raises nothing: a short result is in memory until `finish`."""
        self.path, self.content_type, self.bytes = path, content_type, 0
        self._max_bytes = max_bytes
        self._part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
        self._start = bytearray()  # the first bytes, while there are no more than SHORT_BYTES
        self._file: BinaryIO | None = None

    @property
    def is_short(self) -> bool:
        """Whether all of it is in memory, so that a failed `finish` may be tried again."""
        return self.bytes <= SHORT_BYTES

    def write(self, data: bytes) -> None:
        """Append. Raises TooLarge, NotKept."""
        self.bytes += len(data)
        if self.bytes > self._max_bytes:
            raise TooLarge
        if self.is_short:
            self._start += data
            return
        with _kept():
            self._opened().write(data)

    def finish(self) -> StoredResult:
        """Store it durably under its name, after its description. Raises NotKept."""
        meta = orjson.dumps({"content_type": self.content_type, "bytes": self.bytes})
        try:
            with _kept():
                file = self._opened()
                file.flush()
                os.fsync(file.fileno())
                file.close()
                write_durably(_meta_path(self.path), (meta,))
                self._part.rename(self.path)
                _sync_folder(self.path.parent)
        except NotKept:
            self.discard()
            raise
        return StoredResult(self.path.name, self.content_type, self.bytes)

    def _opened(self) -> BinaryIO:
        if self._file is None:
            self._file = self._part.open("xb")
            self._file.write(self._start)
        return self._file

    def discard(self) -> None:
        """Delete the unfinished file. Never raises."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):  # a failed flush does not matter: the file is deleted
                file.close()
            self._part.unlink(missing_ok=True)


class Readable(Protocol):
    """The source of a long input, read from its beginning."""

    def read(self, most: int = ..., /) -> bytes:
        """The next bytes; b"" at the end."""


class JobFiles:
    """The folder of inputs and results; several processes may share it."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        """`max_bytes`: of one result."""
        self.folder, self._max_bytes = folder, max_bytes
        self._inputs, self._results = folder / "bodies", folder / "results"

    def open(self) -> str:
        """Make the folder and return its lasting name. Raises OSError."""
        for folder in (self._inputs, self._results):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        name = self.folder / _PLACE
        part = self.folder / f"{_PLACE}.{secrets.token_hex(4)}.part"
        if not name.exists():
            part.write_text(secrets.token_hex(16))
            with contextlib.suppress(FileExistsError):
                os.link(part, name)  # the first of several processes wins
            part.unlink()
        return name.read_text()

    def input(self, job_id: str) -> Path:
        """The path of a job's input."""
        return self._inputs / job_id

    def stage_input(self, file: Readable) -> StagedInput:
        """Copy a long input durably to the folder. On StoreUnavailable no file remains.

        The caller keeps it as a job's input or drops it. After a crash the sweeper deletes it.
        """
        path = self._inputs / f"{secrets.token_hex(16)}.staged"
        with _stored():
            write_durably(path, _pieces(file))
            return StagedInput(path.name, path.stat().st_size)

    def drop_staged(self, staged: StagedInput) -> None:
        """Delete a staged input that no job has taken. Never raises."""
        with contextlib.suppress(OSError):
            (self._inputs / staged.name).unlink(missing_ok=True)

    def keep_input(self, job_id: str, job_input: JobInput) -> None:
        """Make an input durable as this job's. Raises StoreUnavailable."""
        with _stored():
            if isinstance(job_input, StagedInput):
                (self._inputs / job_input.name).rename(self.input(job_id))
            else:
                write_durably(self.input(job_id), _pieces(job_input))
            _sync_folder(self._inputs)

    def drop_input(self, job_id: str) -> None:
        """Delete an input if it exists. Raises OSError."""
        self.input(job_id).unlink(missing_ok=True)

    def new_result(self, job_id: str, attempt: int, content_type: str) -> ResultFile:
        """Named by attempt: a run that was given up by mistake cannot touch the next one's file."""
        return ResultFile(self._results / f"{job_id}.{attempt}", content_type, self._max_bytes)

    def result(self, name: str) -> Path:
        """The path of a result."""
        if not _NAME.match(name):
            raise ValueError(f"not a result's name: {name!r}")
        return self._results / name

    def whole_result(self, job_id: str, attempt: int) -> StoredResult | None:
        """A result that was finished although the store does not know: the process died in between."""
        path = self._results / f"{job_id}.{attempt}"
        try:
            size = path.stat().st_size
            meta = orjson.loads(_meta_path(path).read_bytes())
            found = StoredResult(path.name, str(meta["content_type"]), int(meta["bytes"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return found if found.bytes == size else None

    def drop_result(self, name: str) -> None:
        """Delete a result if it exists. Raises OSError."""
        path = self.result(name)
        path.unlink(missing_ok=True)
        _meta_path(path).unlink(missing_ok=True)

    def sweep(self, older_than_s: float, inputs: set[str], results: set[str]) -> None:
        """Delete files of other jobs than these, where last written before `older_than_s` (since 1970)."""
        for folder, known in ((self._inputs, inputs), (self._results, results)):
            for path in folder.iterdir():
                if path.name.partition(".")[0] not in known and path.stat().st_mtime < older_than_s:
                    path.unlink(missing_ok=True)

    def has_room(self, min_free_bytes: int) -> bool:
        """Whether the disk has that much left. False where the folder cannot be read."""
        try:
            return shutil.disk_usage(self.folder).free >= min_free_bytes
        except OSError:
            return False

    def demand_room(self, min_free_bytes: int) -> None:
        """Raises StoreUnavailable where the disk has less left."""
        if not self.has_room(min_free_bytes):
            raise StoreUnavailable(f"the disk of {self.folder} has less than {min_free_bytes >> 20} MiB left")


@contextlib.contextmanager
def _kept() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise NotKept(error.strerror or "unwritable") from error


@contextlib.contextmanager
def _stored() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreUnavailable(f"the input cannot be kept: {error.strerror}") from error


def _meta_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.meta")


def _pieces(data: bytes | Readable) -> Iterator[bytes]:
    if isinstance(data, bytes):
        return iter((data,))
    return iter(lambda: data.read(_PIECE_BYTES), b"")


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_durably(path: Path, pieces: Iterable[bytes | memoryview]) -> None:
    """Write a file whole or not at all. Raises OSError."""
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    try:
        with part.open("xb") as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        part.rename(path)
    finally:
        part.unlink(missing_ok=True)
