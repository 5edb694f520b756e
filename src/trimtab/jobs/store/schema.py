"""The tables. A change here needs a new migration in `migrations/versions` and the new `REVISION`.

The tables of usage, nodes, limits, keys, files and batches are the gateway's: they lie here because one
database has one line of migrations.

Times are seconds since 1970: `processes.seen_s` by the database's own clock, those of jobs by the process's.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

REVISION = "0001"  # of the newest migration

metadata = sa.MetaData()

jobs = sa.Table(
    "jobs",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("tenant", sa.String(255), nullable=False),
    sa.Column("queue", sa.String(255), nullable=False),
    sa.Column("kind", sa.String(32), nullable=False),
    sa.Column("target", sa.Text, nullable=False),
    sa.Column("input_type", sa.String(255), nullable=False),  # a content type
    sa.Column("parameters", sa.Text, nullable=False),  # JSON
    sa.Column("labels", sa.Text, nullable=False),  # JSON
    sa.Column("priority", sa.Integer, nullable=False),
    sa.Column("place", sa.String(64), nullable=False),  # the folder of its files
    sa.Column("only_worker", sa.String(255), nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("owner", sa.String(64)),  # the process that has claimed it
    sa.Column("attempt", sa.Integer, nullable=False),  # how often a worker began it
    sa.Column("worker", sa.String(255), nullable=False),
    sa.Column("remote_id", sa.String(255), nullable=False),
    sa.Column("idempotent", sa.Boolean, nullable=False),  # it may run twice
    sa.Column("cancel_requested", sa.Boolean, nullable=False),
    sa.Column("deleted", sa.Boolean, nullable=False),  # its tenant no longer sees it
    sa.Column("not_before_s", sa.Float, nullable=False),
    sa.Column("created_s", sa.Float, nullable=False),
    sa.Column("input_bytes", sa.BigInteger, nullable=False),
    sa.Column("dispatched_s", sa.Float),
    sa.Column("ended_s", sa.Float),
    sa.Column("expires_s", sa.Float),
    sa.Column("error_code", sa.String(64), nullable=False),
    sa.Column("error", sa.Text, nullable=False),
    sa.Column("result_file", sa.String(255), nullable=False),  # name in the folder of results; "" = none
    sa.Column("result_bytes", sa.BigInteger, nullable=False),
    sa.Column("result_type", sa.String(255), nullable=False),
    sa.Index("jobs_by_state", "state", "created_s"),
    sa.Index("jobs_by_tenant", "tenant", "created_s"),
)

usage = sa.Table(
    "usage",
    metadata,
    sa.Column("tenant", sa.String(255), primary_key=True),
    sa.Column("model", sa.String(256), primary_key=True),  # "" = not known, or none
    sa.Column("day", sa.String(10), primary_key=True),  # 2030-01-31, UTC
    sa.Column("requests", sa.BigInteger, nullable=False),
    sa.Column("prompt_tokens", sa.BigInteger, nullable=False),
    sa.Column("completion_tokens", sa.BigInteger, nullable=False),
    sa.Column("service_s", sa.Float, nullable=False),
)

node_changes = sa.Table(
    "node_changes",
    metadata,
    sa.Column("name", sa.String(255), primary_key=True),
    sa.Column("status", sa.String(16), nullable=False),  # what an operator wants of the node
    sa.Column("entry", sa.Text, nullable=False),  # JSON, of a node that the admin API added; else ""
    sa.Column("changed_s", sa.Float, nullable=False),
)

limit_counts = sa.Table(
    "limit_counts",
    metadata,
    sa.Column("process", sa.String(64), primary_key=True),
    sa.Column("tenant", sa.String(255), primary_key=True),
    sa.Column("requests", sa.Float, nullable=False),  # that it has admitted since its start
    sa.Column("tokens", sa.Float, nullable=False),
    sa.Column("requests_left", sa.Float, nullable=False),  # in its bucket at seen_s
    sa.Column("tokens_left", sa.Float, nullable=False),
    sa.Column("in_flight", sa.Integer, nullable=False),  # running jobs included
    sa.Column("jobs", sa.Integer, nullable=False),
    sa.Column("seen_s", sa.Float, nullable=False),  # by the database's clock
    sa.Index("limit_counts_by_time", "seen_s"),
)

api_keys = sa.Table(
    "api_keys",
    metadata,
    sa.Column("name", sa.String(255), primary_key=True),  # of its tenant
    sa.Column("sha256", sa.String(64), nullable=False, unique=True),  # hexadecimal; the key is kept nowhere
    sa.Column("entry", sa.Text, nullable=False),  # JSON: models, budget, limits, …
    sa.Column("created_s", sa.Float, nullable=False),
    sa.Column("expires_s", sa.Float),
)

client_files = sa.Table(
    "client_files",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("tenant", sa.String(255), nullable=False),
    sa.Column("place", sa.String(64), nullable=False),  # the folder that has it
    sa.Column("purpose", sa.String(32), nullable=False),
    sa.Column("filename", sa.String(255), nullable=False),
    sa.Column("bytes", sa.BigInteger, nullable=False),
    sa.Column("created_s", sa.Float, nullable=False),
    sa.Index("client_files_by_tenant", "tenant", "created_s"),
)

batches = sa.Table(
    "batches",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),  # of its job
    sa.Column("created_s", sa.Float, nullable=False),
    sa.Column("completed", sa.Integer, nullable=False),  # lines
    sa.Column("failed", sa.Integer, nullable=False),
    sa.Column("output_file_id", sa.String(64), nullable=False),  # "" = none yet
    sa.Column("error_file_id", sa.String(64), nullable=False),
)

chain_runs = sa.Table(
    "chain_runs",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("chain", sa.String(255), nullable=False),
    sa.Column("tenant", sa.String(255), nullable=False),
    sa.Column("key", sa.String(255)),  # given by its user: a run of this key is made once
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("options", sa.Text, nullable=False),  # JSON
    sa.Column("source", sa.Text, nullable=False),  # where its chain is defined; "" = not known
    sa.Column("created_s", sa.Float, nullable=False),
    sa.Column("ended_s", sa.Float),
    sa.Column("owner", sa.String(64), nullable=False),  # the process that works on it; "" = none
    sa.Column("cancel_requested", sa.Boolean, nullable=False),
    sa.Index("chain_runs_by_key", "tenant", "key", unique=True),
    sa.Index("chain_runs_by_time", "created_s"),
)

chain_inputs = sa.Table(
    "chain_inputs",
    metadata,
    sa.Column("run", sa.String(64), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("given", sa.LargeBinary, nullable=False),  # the serialised input
    sa.Column("error", sa.Text, nullable=False),
    sa.Column("ended_s", sa.Float),
)

_INSTANCE = ("run", "number", "stage", "instance")


def _instance() -> list[sa.Column[Any]]:
    """The columns that name an instance of a stage in the run of an input."""
    kinds: list[Any] = [sa.String(64), sa.Integer, sa.String(255), sa.Integer]
    return [sa.Column(name, kind, primary_key=True) for name, kind in zip(_INSTANCE, kinds, strict=True)]


chain_attempts = sa.Table(
    "chain_attempts",
    metadata,
    *_instance(),
    sa.Column("attempt", sa.Integer, primary_key=True),
    sa.Column("node", sa.String(255), nullable=False),
    sa.Column("started_s", sa.Float, nullable=False),
)

chain_results = sa.Table(
    "chain_results",
    metadata,
    *_instance(),  # one result each: the first that is stored
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("node", sa.String(255), nullable=False),
    sa.Column("output", sa.LargeBinary, nullable=False),  # its values, or where they are
    sa.Column("bytes", sa.BigInteger, nullable=False),
    sa.Column("service_s", sa.Float, nullable=False),
    sa.Column("load_s", sa.Float, nullable=False),
    sa.Column("peak_gib", sa.Float, nullable=False),
    sa.Column("ended_s", sa.Float, nullable=False),
    sa.Column("worker", sa.String(64), nullable=False),  # of the node; "" = not known
)

chain_memo = sa.Table(
    "chain_memo",
    metadata,
    sa.Column("key", sa.String(64), primary_key=True),  # of a stage's code and arguments
    sa.Column("output", sa.LargeBinary, nullable=False),
    sa.Column("bytes", sa.BigInteger, nullable=False),
    sa.Column("service_s", sa.Float, nullable=False),
    sa.Column("credit", sa.Float, nullable=False),  # the least goes first
    sa.Index("chain_memo_by_credit", "credit"),
)

processes = sa.Table(
    "processes",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("seen_s", sa.Float, nullable=False),
    sa.Column("usage_batch", sa.BigInteger, nullable=False),  # the newest batch of usage that it has added
)
