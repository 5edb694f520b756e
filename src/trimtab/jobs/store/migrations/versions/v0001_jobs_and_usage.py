"""Jobs, usage and gateways: the first version."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_FLAGS = ("idempotent", "cancel_requested", "deleted")


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(64), primary_key=True),
        *(
            sa.Column(name, sa.String(size), nullable=False)
            for name, size in (
                ("tenant", 255),
                ("model", 255),
                ("kind", 32),
                ("method", 8),
                ("request_type", 255),
                ("place", 64),
                ("state", 16),
                ("node", 255),
                ("backend_job_id", 255),
                ("error_code", 64),
                ("result_file", 255),
                ("result_type", 255),
            )
        ),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("target", "facts", "shown", "error")),
        *(sa.Column(name, sa.Integer, nullable=False) for name in ("priority", "attempt")),
        *(sa.Column(name, sa.Boolean, nullable=False) for name in _FLAGS),
        *(sa.Column(name, sa.Float, nullable=False) for name in ("not_before_s", "created_s")),
        *(sa.Column(name, sa.Float) for name in ("dispatched_s", "ended_s", "expires_s")),
        sa.Column("owner", sa.String(64)),
        sa.Column("result_bytes", sa.BigInteger, nullable=False),
    )
    op.create_index("jobs_by_state", "jobs", ["state", "created_s"])
    op.create_index("jobs_by_tenant", "jobs", ["tenant", "created_s"])
    op.create_table(
        "usage",
        sa.Column("tenant", sa.String(255), primary_key=True),
        sa.Column("day", sa.String(10), primary_key=True),
        *(
            sa.Column(name, sa.BigInteger, nullable=False)
            for name in ("requests", "prompt_tokens", "completion_tokens")
        ),
        sa.Column("service_s", sa.Float, nullable=False),
    )
    op.create_table(
        "gateways",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("seen_s", sa.Float, nullable=False),
        sa.Column("usage_batch", sa.BigInteger, nullable=False),
    )


def downgrade() -> None:
    """Drop the tables."""
    for table in ("gateways", "usage", "jobs"):
        op.drop_table(table)
