"""Upgrades a database to this version's tables."""

from __future__ import annotations

import sqlalchemy as sa

from trimtab.errors import StoreNewer
from trimtab.jobs.store.schema import REVISION, metadata

_LOCK = 0x7472696D  # any number of our own


_VERSION = sa.Table(  # as Alembic makes it
    "alembic_version",
    sa.MetaData(),
    sa.Column("version_num", sa.String(32), nullable=False),
    sa.PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)


def migrate(engine: sa.Engine) -> None:
    """Run the migrations that are missing; an empty database gets the newest tables at once.

    Raises StoreNewer, and SQLAlchemy's errors.
    """
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":  # SQLite's BEGIN IMMEDIATE already keeps others out
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
        current = _revision(connection)
        if current is None and not sa.inspect(connection).get_table_names():
            _make(connection)
        elif current != REVISION:
            _upgrade(connection, current)


def _make(connection: sa.Connection) -> None:
    metadata.create_all(connection)
    _VERSION.create(connection)
    connection.execute(sa.insert(_VERSION), [{"version_num": REVISION}])


def _revision(connection: sa.Connection) -> str | None:
    if not sa.inspect(connection).has_table(_VERSION.name):
        return None
    revision: str | None = connection.scalar(sa.select(_VERSION.c.version_num))
    return revision


def _upgrade(connection: sa.Connection, current: str | None) -> None:
    # Imported here: a start with a new or up-to-date store needs no Alembic.
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", "trimtab.jobs.store:migrations")
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
