"""Files that clients upload and that batches make: rows in the store, contents in the folder of results."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from trimtab.jobs import JobStore, StoreUnavailable, TooManyBytes, job_rows
from trimtab.jobs.job_files import write_durably
from trimtab.jobs.store.schema import batches, client_files

Pieces = Iterator[bytes]


@dataclass(frozen=True, slots=True)
class ClientFile:
    """A file of a tenant."""

    id: str
    tenant: str
    place: str
    purpose: str
    filename: str
    bytes: int
    created_s: float  # since 1970

    def shown(self) -> dict[str, Any]:
        """In OpenAI's form."""
        return {
            "id": self.id,
            "object": "file",
            "bytes": self.bytes,
            "created_at": int(self.created_s),
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed",
        }


class ClientFiles:
    """The files of all tenants; each finds its own only."""

    def __init__(
        self,
        store: JobStore,
        folder: Path,
        bound: Callable[[str], int | None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`folder`: of results; `bound`: bytes that a tenant's jobs and files may take."""
        self._store, self._bound, self._clock = store, bound, clock
        self._folder, self._place = folder / "files", ""

    async def open(self, place: str) -> None:
        """Make the folder. `place`: the lasting name of the folder of results. Raises OSError."""
        self._place = place
        await asyncio.to_thread(self._folder.mkdir, parents=True, exist_ok=True, mode=0o700)

    def path(self, file: ClientFile) -> Path:
        """Where its content lies."""
        return self._folder / file.id

    def has(self, file_id: str) -> bool:
        """Whether its content lies here."""
        return (self._folder / file_id).exists()

    async def add(self, tenant: str, purpose: str, filename: str, pieces: Pieces, size: int) -> ClientFile:
        """Keep a new file. Raises StoreUnavailable, TooManyBytes."""
        file_id = f"file-{secrets.token_hex(16)}"
        file = ClientFile(file_id, tenant, self._place, purpose, filename[:255], size, self._clock())
        try:
            await asyncio.to_thread(write_durably, self.path(file), pieces)
            await self._store.write(partial(_insert, file=file, bound=self._bound(tenant)))
        except OSError as error:
            raise StoreUnavailable(f"the file cannot be kept: {error.strerror}") from error
        except BaseException:
            self.path(file).unlink(missing_ok=True)
            raise
        return file

    async def adopt(self, file_id: str, tenant: str, filename: str, path: Path) -> None:
        """Make what a batch has written a file of its tenant; again after a crash in between."""
        target = self._folder / file_id
        if path.exists():
            await asyncio.to_thread(_sync, path)
            path.rename(target)
        size, created_s = target.stat().st_size, self._clock()
        file = ClientFile(file_id, tenant, self._place, "batch_output", filename, size, created_s)
        await self._store.write(partial(_insert_once, file=file))

    async def find(self, file_id: str, tenant: str) -> ClientFile | None:
        """A tenant's file. Raises StoreUnavailable."""
        query = sa.select(client_files).where(client_files.c.id == file_id, client_files.c.tenant == tenant)
        row = await self._store.read(lambda connection: connection.execute(query).first())
        return None if row is None else ClientFile(**row._mapping)

    async def list(
        self, tenant: str, *, purpose: str, after: str, limit: int, oldest_first: bool
    ) -> list[ClientFile]:
        """A page of a tenant's files. Raises StoreUnavailable."""
        last = await self.find(after, tenant) if after else None
        columns = client_files.c
        key = sa.tuple_(columns.created_s, columns.id)
        query = sa.select(client_files).where(columns.tenant == tenant)
        if purpose:
            query = query.where(columns.purpose == purpose)
        if last is not None:
            edge = sa.tuple_(sa.literal(last.created_s), sa.literal(last.id))
            query = query.where(key > edge if oldest_first else key < edge)
        turn = sa.asc if oldest_first else sa.desc
        query = query.order_by(turn(columns.created_s), turn(columns.id)).limit(limit)
        rows = await self._store.read(lambda connection: connection.execute(query).all())
        return [ClientFile(**row._mapping) for row in rows]

    async def delete(self, file: ClientFile) -> None:
        """Delete a file. Raises StoreUnavailable."""
        query = sa.delete(client_files).where(client_files.c.id == file.id)
        await self._store.write(lambda connection: connection.execute(query))
        with suppress(OSError):
            self.path(file).unlink(missing_ok=True)

    async def sweep(self, ttl_s: float) -> None:
        """Delete old files of this folder, and old batches. Raises StoreUnavailable."""
        before_s = self._clock() - ttl_s
        columns = client_files.c
        query = sa.select(client_files).where(columns.created_s < before_s, columns.place == self._place)
        for row in await self._store.read(lambda connection: connection.execute(query).all()):
            await self.delete(ClientFile(**row._mapping))
        old = sa.delete(batches).where(batches.c.created_s < before_s)
        await self._store.write(lambda connection: connection.execute(old))


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _row(file: ClientFile) -> dict[str, Any]:
    return {column.key: getattr(file, column.key) for column in client_files.c}


def _insert(connection: sa.Connection, file: ClientFile, bound: int | None) -> None:
    kept = sa.select(sa.func.coalesce(sa.func.sum(client_files.c.bytes), 0))
    of_files = int(connection.execute(kept.where(client_files.c.tenant == file.tenant)).scalar_one())
    if bound is not None and of_files + job_rows.bytes_of(connection, file.tenant) + file.bytes > bound:
        raise TooManyBytes(bound)
    connection.execute(sa.insert(client_files), [_row(file)])


def _insert_once(connection: sa.Connection, file: ClientFile) -> None:
    query = sa.select(client_files.c.id).where(client_files.c.id == file.id)
    if connection.execute(query).first() is None:
        connection.execute(sa.insert(client_files), [_row(file)])
