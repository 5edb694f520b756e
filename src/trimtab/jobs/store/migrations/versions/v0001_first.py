"""The first version: all tables. Before a later one changes a table, write the tables out here."""

from alembic import op

from trimtab.jobs.store.schema import metadata

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make the tables."""
    metadata.create_all(op.get_bind())
