"""Which gateway processes live, as the database sees it."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from trimtab.gateway.store.dialect import database_now_s, upsert
from trimtab.gateway.store.schema import gateways

_SIGNS: dict[str, Any] = {}  # by dialect: given every second, so made once


def sign_of_life(connection: sa.Connection, gateway: str) -> None:
    """`gateway` lives now."""
    dialect = connection.dialect.name
    if dialect not in _SIGNS:
        insert = upsert(connection, gateways).values(seen_s=database_now_s(connection), usage_batch=0)
        seen = {"seen_s": insert.excluded.seen_s}
        _SIGNS[dialect] = insert.on_conflict_do_update(index_elements=[gateways.c.id], set_=seen)
    connection.execute(_SIGNS[dialect], {"id": gateway})


def living(connection: sa.Connection, lease_s: float) -> sa.Select[tuple[str]]:
    """A query: the ids of the gateways that gave a sign of life within `lease_s`."""
    return sa.select(gateways.c.id).where(gateways.c.seen_s > database_now_s(connection) - lease_s)


def leave(connection: sa.Connection, gateway: str) -> None:
    """`gateway` ends: nobody needs to wait for its silence."""
    connection.execute(sa.delete(gateways).where(gateways.c.id == gateway))


def forget_silent(connection: sa.Connection, after_s: float) -> None:
    """Drop the rows of processes that ended long ago."""
    connection.execute(sa.delete(gateways).where(gateways.c.seen_s < database_now_s(connection) - after_s))


def usage_batch_is_new(connection: sa.Connection, gateway: str, batch: int) -> bool:
    """Note that this batch is being added; False = it already was."""
    sign_of_life(connection, gateway)
    done = connection.execute(
        sa.update(gateways)
        .where(gateways.c.id == gateway, gateways.c.usage_batch < batch)
        .values(usage_batch=batch)
    )
    return done.rowcount > 0
