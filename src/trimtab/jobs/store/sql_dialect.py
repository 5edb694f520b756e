"""SQL that differs between the two databases: their clock, and an INSERT with ON CONFLICT."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite


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
