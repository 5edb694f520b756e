"""Usage by model too; what was counted before stands under the empty name."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_COUNTS = ("requests", "prompt_tokens", "completion_tokens")
_COPIED = f"tenant, day, {', '.join(_COUNTS)}, service_s"


def upgrade() -> None:
    """A primary key cannot change in place everywhere: the rows move to another table."""
    op.create_table(
        "usage_by_model",
        sa.Column("tenant", sa.String(255), primary_key=True),
        sa.Column("model", sa.String(256), primary_key=True),
        sa.Column("day", sa.String(10), primary_key=True),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in _COUNTS),
        sa.Column("service_s", sa.Float, nullable=False),
    )
    op.execute(f"INSERT INTO usage_by_model (model, {_COPIED}) SELECT '', {_COPIED} FROM usage")
    op.drop_table("usage")


def downgrade() -> None:
    """The sums over all models."""
    op.create_table(
        "usage",
        sa.Column("tenant", sa.String(255), primary_key=True),
        sa.Column("day", sa.String(10), primary_key=True),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in _COUNTS),
        sa.Column("service_s", sa.Float, nullable=False),
    )
    sums = ", ".join(f"sum({name})" for name in (*_COUNTS, "service_s"))
    op.execute(
        f"INSERT INTO usage ({_COPIED}) SELECT tenant, day, {sums} FROM usage_by_model GROUP BY tenant, day"
    )
    op.drop_table("usage_by_model")
