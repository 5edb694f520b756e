"""The journal of chains: runs, their inputs, attempts and results of stages, and results to use again."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"

_INSTANCE = (
    ("run", sa.String(64)),
    ("number", sa.Integer),
    ("stage", sa.String(255)),
    ("instance", sa.Integer),
)


def upgrade() -> None:
    """Empty tables: earlier versions ran no chains."""
    op.create_table(
        "chain_runs",
        sa.Column("id", sa.String(64), primary_key=True),
        *(sa.Column(name, sa.String(255), nullable=False) for name in ("chain", "tenant")),
        sa.Column("key", sa.String(255)),
        sa.Column("state", sa.String(16), nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("options", "source")),
        sa.Column("created_s", sa.Float, nullable=False),
        sa.Column("ended_s", sa.Float),
        sa.Column("owner", sa.String(64), nullable=False),
        sa.Column("cancel_requested", sa.Boolean, nullable=False),
    )
    op.create_index("chain_runs_by_key", "chain_runs", ["tenant", "key"], unique=True)
    op.create_index("chain_runs_by_time", "chain_runs", ["created_s"])
    op.create_table(
        "chain_inputs",
        sa.Column("run", sa.String(64), primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("given", sa.LargeBinary, nullable=False),
        sa.Column("error", sa.Text, nullable=False),
        sa.Column("ended_s", sa.Float),
    )
    op.create_table(
        "chain_attempts",
        *(sa.Column(name, kind, primary_key=True) for name, kind in _INSTANCE),
        sa.Column("attempt", sa.Integer, primary_key=True),
        sa.Column("node", sa.String(255), nullable=False),
        sa.Column("started_s", sa.Float, nullable=False),
    )
    op.create_table(
        "chain_results",
        *(sa.Column(name, kind, primary_key=True) for name, kind in _INSTANCE),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("node", sa.String(255), nullable=False),
        sa.Column("output", sa.LargeBinary, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        *(
            sa.Column(name, sa.Float, nullable=False)
            for name in ("service_s", "load_s", "peak_gib", "ended_s")
        ),
    )
    op.create_table(
        "chain_memo",
        sa.Column("key", sa.String(64), primary_key=True),
        sa.Column("output", sa.LargeBinary, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        *(sa.Column(name, sa.Float, nullable=False) for name in ("service_s", "credit")),
    )
    op.create_index("chain_memo_by_credit", "chain_memo", ["credit"])


def downgrade() -> None:
    """Runs and results are forgotten."""
    for table in ("chain_memo", "chain_results", "chain_attempts", "chain_inputs", "chain_runs"):
        op.drop_table(table)
