"""The size of a job's input, for its tenant's bound."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Jobs that were accepted before, or by an earlier version, count with no input."""
    op.add_column("jobs", sa.Column("input_bytes", sa.BigInteger, nullable=False, server_default="0"))


def downgrade() -> None:
    """Drop it."""
    op.drop_column("jobs", "input_bytes")
