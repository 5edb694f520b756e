"""The worker of each result of a chain's stage, for reports."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """Of earlier results it is not known."""
    op.add_column("chain_results", sa.Column("worker", sa.String(64), nullable=False, server_default=""))


def downgrade() -> None:
    """Drop it."""
    op.drop_column("chain_results", "worker")
