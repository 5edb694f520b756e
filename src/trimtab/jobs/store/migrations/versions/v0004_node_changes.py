"""Changes of nodes by operators: added, drained, removed."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """An empty table: earlier versions forgot such changes at their end."""
    op.create_table(
        "node_changes",
        sa.Column("name", sa.String(255), primary_key=True),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("entry", sa.Text, nullable=False),
        sa.Column("changed_s", sa.Float, nullable=False),
    )


def downgrade() -> None:
    """The changes are forgotten."""
    op.drop_table("node_changes")
