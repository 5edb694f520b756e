"""Keys that operators make while the gateway runs."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """An empty table: earlier versions had the keys of the configuration only."""
    op.create_table(
        "api_keys",
        sa.Column("name", sa.String(255), primary_key=True),
        sa.Column("sha256", sa.String(64), nullable=False, unique=True),
        sa.Column("entry", sa.Text, nullable=False),
        sa.Column("created_s", sa.Float, nullable=False),
        sa.Column("expires_s", sa.Float),
    )


def downgrade() -> None:
    """The keys are forgotten."""
    op.drop_table("api_keys")
