"""SQL that copies whole runs of the journal, page by page, between databases of any kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sa

from trimtab.jobs.run_rows import RunRecord, by_id, by_key
from trimtab.jobs.store.schema import chain_attempts, chain_inputs, chain_memo, chain_results, chain_runs

PAGE_ROWS: Final = 5_000
TABLES: Final = {table.name: table for table in (chain_inputs, chain_attempts, chain_results, chain_memo)}
OF_RUNS: Final = tuple(name for name, table in TABLES.items() if "run" in table.c)
"""In this order: what is noted while a run is copied is then missing with all that follows from it."""
MEMO: Final = chain_memo.name

Row = dict[str, Any]


def page(connection: sa.Connection, table: str, run_id: str, first: int) -> list[Row]:
    """Rows of a table in a fixed order from `first` on: of one run, or all results that are kept."""
    found = TABLES[table]
    query = sa.select(found).order_by(*found.primary_key).offset(first).limit(PAGE_ROWS)
    if "run" in found.c:
        query = query.where(found.c.run == run_id)
    return [dict(row) for row in connection.execute(query).mappings()]


def refusal(connection: sa.Connection, run: RunRecord) -> str:
    """Why a run cannot be added; "" = it can. What an earlier copy has left of it is dropped."""
    if by_id(connection, run.id) is not None:
        return "is there already"
    if run.key is not None and by_key(connection, run.tenant, run.key) is not None:
        return f"has the key {run.key!r}, which another run has here"
    for name in OF_RUNS:
        connection.execute(sa.delete(TABLES[name]).where(TABLES[name].c.run == run.id))
    return ""


def add_rows(connection: sa.Connection, table: str, rows: Sequence[Row]) -> None:
    """Add rows. Results that are kept for equal inputs already stay as they are."""
    if table == MEMO:
        keys = [row["key"] for row in rows]
        known = set(connection.scalars(sa.select(chain_memo.c.key).where(chain_memo.c.key.in_(keys))))
        rows = [row for row in rows if row["key"] not in known]
    if rows:
        connection.execute(sa.insert(TABLES[table]), rows)


def add_run(connection: sa.Connection, run: RunRecord) -> None:
    """Add a run whose rows are there."""
    connection.execute(sa.insert(chain_runs), [{name: getattr(run, name) for name in RunRecord.__slots__}])
