"""The admissions of each replica for each tenant, for limits that replicas share."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """An empty table: earlier versions had limits of their own."""
    op.create_table(
        "limit_counts",
        sa.Column("process", sa.String(64), primary_key=True),
        sa.Column("tenant", sa.String(255), primary_key=True),
        *(
            sa.Column(name, sa.Float, nullable=False)
            for name in ("requests", "tokens", "requests_left", "tokens_left")
        ),
        *(sa.Column(name, sa.Integer, nullable=False) for name in ("in_flight", "jobs")),
        sa.Column("seen_s", sa.Float, nullable=False),
    )
    op.create_index("limit_counts_by_time", "limit_counts", ["seen_s"])


def downgrade() -> None:
    """The counts are forgotten."""
    op.drop_table("limit_counts")
