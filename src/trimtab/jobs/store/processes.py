"""The processes that are alive, as the database sees them."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from trimtab.jobs.store.database import database_now_s, upsert
from trimtab.jobs.store.schema import processes

_SIGNS: dict[str, Any] = {}  # by dialect: given every second, so made once


def sign_of_life(connection: sa.Connection, process: str) -> None:
    """`process` is alive now."""
    dialect = connection.dialect.name
    if dialect not in _SIGNS:
        insert = upsert(connection, processes).values(seen_s=database_now_s(connection), usage_batch=0)
        seen = {"seen_s": insert.excluded.seen_s}
        _SIGNS[dialect] = insert.on_conflict_do_update(index_elements=[processes.c.id], set_=seen)
    connection.execute(_SIGNS[dialect], {"id": process})


def living(connection: sa.Connection, lease_s: float) -> sa.Select[tuple[str]]:
    """A query: the ids of the processes that gave a sign of life within `lease_s`."""
    return sa.select(processes.c.id).where(processes.c.seen_s > database_now_s(connection) - lease_s)


def leave(connection: sa.Connection, process: str) -> None:
    """`process` ends: its jobs are free at once."""
    connection.execute(sa.delete(processes).where(processes.c.id == process))


def forget_silent(connection: sa.Connection, after_s: float) -> None:
    """Drop the rows of processes that ended long ago."""
    connection.execute(sa.delete(processes).where(processes.c.seen_s < database_now_s(connection) - after_s))
