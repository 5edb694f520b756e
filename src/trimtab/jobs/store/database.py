"""An SQLAlchemy engine for the URL of a store, and SQL that differs between databases."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from trimtab.errors import MissingExtra, UsageError

BUSY_S = 5.0  # how long SQLite waits for another process's write
BUSY_STEP_S = 0.005
CONNECT_S = 3
_SQLITE_OPTIONS = {"timeout": BUSY_S}
STATEMENT_MS = 10_000

_PRIMARY_CODE = 0xFF  # of an error code of SQLite's
_EXPECTED = "sqlite:///FILE or postgresql://USER:PASSWORD@HOST/DATABASE"


def make_engine(url: str, *, outlives_power_loss: bool = True) -> sa.Engine:
    """An engine with two connections at most; it connects at first use. Raises UsageError, MissingExtra.

    A transaction always outlives its process. In SQLite it is ten times as fast if it need not outlive a loss
    of power.
    """
    parsed = _parse(url)
    if parsed.get_backend_name() == "sqlite":
        return _sqlite(parsed, "FULL" if outlives_power_loss else "NORMAL")
    try:
        return sa.create_engine(
            parsed,
            pool_size=2,
            max_overflow=0,
            pool_pre_ping=True,  # a server that was restarted is noticed before a statement is sent
            connect_args=_postgres_options(parsed),
        )
    except ModuleNotFoundError as error:
        raise MissingExtra(
            "PostgreSQL needs a driver", field="store.url", expected="pip install 'trimtab[postgres]'"
        ) from error


def _parse(url: str) -> sa.URL:
    try:
        parsed = sa.make_url(url)
        backend = parsed.get_backend_name()
    except (ArgumentError, NoSuchModuleError) as error:
        # The value is left out: it may hold a password.
        raise UsageError("not a database URL", field="store.url", expected=_EXPECTED) from error
    if backend in ("postgresql", "postgres"):
        return parsed.set(drivername="postgresql+psycopg")
    if backend == "sqlite" and parsed.database not in (None, "", ":memory:"):
        return parsed.set(drivername="sqlite+pysqlite")
    raise UsageError("not a store", field="store.url", value=backend, expected=_EXPECTED)


def _postgres_options(url: sa.URL) -> dict[str, Any]:
    options = {
        "connect_timeout": CONNECT_S,
        "options": f"-c statement_timeout={STATEMENT_MS} -c lock_timeout={STATEMENT_MS // 2}",
        "tcp_user_timeout": STATEMENT_MS,
        # A machine that vanished while it had a statement is noticed in 11 s, not in two hours.
        "keepalives_idle": 5,
        "keepalives_interval": 2,
        "keepalives_count": 3,
        "application_name": "trimtab",
    }
    return {name: value for name, value in options.items() if name not in url.query}


def sqlite_file(url: str) -> Path | None:
    """The file of an SQLite database; None for another. Raises UsageError."""
    parsed = _parse(url)
    return _file_of(parsed) if parsed.get_backend_name() == "sqlite" else None


def _file_of(url: sa.URL) -> Path:
    return Path(str(url.database)).expanduser()


def _sqlite(url: sa.URL, synchronous: str) -> sa.Engine:
    path = _file_of(url)
    folder, name = path.parent, path.name
    engine = sa.create_engine(
        url, pool_size=2, max_overflow=0, poolclass=sa.QueuePool, connect_args=_SQLITE_OPTIONS
    )

    def make_file(*_: object) -> None:  # not before the first use: a disk may be away at the start
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):  # tenants' names and usage are for its owner only
            os.close(os.open(folder / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))

    sa.event.listen(engine, "do_connect", make_file)
    sa.event.listen(engine, "connect", partial(_prepare_sqlite, synchronous))
    sa.event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(synchronous: str, connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None  # Python's own BEGIN would come late, and never before DDL
    _use_wal(connection)
    for pragma in (f"synchronous={synchronous}", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")


def _use_wal(connection: sqlite3.Connection) -> None:
    """Where several do so to a new file together, SQLite refuses all but one of them without waiting."""
    end_s = monotonic() + BUSY_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            is_busy = error.sqlite_errorcode & _PRIMARY_CODE == sqlite3.SQLITE_BUSY
            if not is_busy or monotonic() >= end_s:
                raise
        sleep(BUSY_STEP_S)


def _begin_sqlite(connection: sa.Connection) -> None:
    """Take the write lock at once: a read that later wants to write can fail without waiting."""
    writes = connection.get_execution_options().get("writes", True)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def database_now_s(connection: sa.Connection) -> sa.ColumnElement[Any]:
    """An expression: seconds since 1970. Processes on several machines compare their signs of life by it."""
    if connection.dialect.name == "postgresql":
        return sa.literal_column("EXTRACT(EPOCH FROM clock_timestamp())", sa.Float)
    return sa.literal_column("((julianday('now') - 2440587.5) * 86400.0)", sa.Float)


def upsert(connection: sa.Connection, table: sa.Table) -> Any:
    """An INSERT that may be given `on_conflict_do_update`."""
    if connection.dialect.name == "postgresql":
        return postgresql.insert(table)
    return sqlite.insert(table)
