"""Files of clients, and the progress of batches of requests in such files."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Empty tables: earlier versions had no batches."""
    op.create_table(
        "client_files",
        sa.Column("id", sa.String(64), primary_key=True),
        *(
            sa.Column(name, sa.String(size), nullable=False)
            for name, size in (("tenant", 255), ("place", 64), ("purpose", 32), ("filename", 255))
        ),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("created_s", sa.Float, nullable=False),
    )
    op.create_index("client_files_by_tenant", "client_files", ["tenant", "created_s"])
    op.create_table(
        "batches",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("created_s", sa.Float, nullable=False),
        *(sa.Column(name, sa.Integer, nullable=False) for name in ("completed", "failed")),
        *(sa.Column(name, sa.String(64), nullable=False) for name in ("output_file_id", "error_file_id")),
    )


def downgrade() -> None:
    """Files and batches are forgotten."""
    for table in ("batches", "client_files"):
        op.drop_table(table)
