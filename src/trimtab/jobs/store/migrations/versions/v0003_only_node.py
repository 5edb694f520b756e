"""Jobs that one node alone can run: remixes of a video that it keeps."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add the node's name; a gateway of the version before, which knows none, leaves it empty."""
    op.add_column("jobs", sa.Column("only_node", sa.String(255), nullable=False, server_default=""))


def downgrade() -> None:
    """Drop it."""
    op.drop_column("jobs", "only_node")
