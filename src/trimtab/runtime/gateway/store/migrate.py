"""Brings a database to this version's tables."""

from __future__ import annotations

import sqlalchemy as sa

from trimtab.runtime.gateway.store.errors import StoreNewer
from trimtab.runtime.gateway.store.schema import REVISION

_LOCK = 0x7472696D  # any number of our own


def migrate(engine: sa.Engine) -> None:
    """Run the migrations that are missing. Raises StoreNewer, and SQLAlchemy's errors."""
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":  # SQLite's BEGIN IMMEDIATE already keeps others out
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
        current = _revision(connection)
        if current != REVISION:
            _upgrade(connection, current)


def _revision(connection: sa.Connection) -> str | None:
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    revision: str | None = connection.scalar(sa.text("SELECT version_num FROM alembic_version"))
    return revision


def _upgrade(connection: sa.Connection, current: str | None) -> None:
    # Imported here: a start with an up-to-date store saves its time and memory.
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", "trimtab.runtime.gateway.store:migrations")
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if current is not None and current not in known:
        raise StoreNewer(
            "the database was written by a newer trimtab",
            field="store.url",
            value=current,
            expected=f"version {REVISION} or older: upgrade trimtab, or name another database",
        )
    command.upgrade(config, "head")
