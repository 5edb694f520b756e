"""SQL of the journal of chains, and of copies of whole runs, page by page, between databases of any kind."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from trimtab.jobs.store.database import database_now_s
from trimtab.jobs.store.processes import living
from trimtab.jobs.store.schema import (
    chain_attempts,
    chain_inputs,
    chain_memo,
    chain_results,
    chain_runs,
    processes,
)

ACTIVE, STOPPED = "running", "stopped"
LEASE_S: Final = 10.0  # a process that is silent for so long has lost its runs
PAGE_ROWS: Final = 5_000
TABLES: Final = {table.name: table for table in (chain_inputs, chain_attempts, chain_results, chain_memo)}
OF_RUNS: Final = tuple(name for name, table in TABLES.items() if "run" in table.c)


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run as the journal has it. Times are seconds since 1970."""

    id: str
    chain: str
    tenant: str
    key: str | None
    state: str
    options: str
    source: str
    created_s: float
    ended_s: float | None
    owner: str
    cancel_requested: bool


class InputRecord(NamedTuple):
    """An input of a run."""

    number: int
    state: str
    given: bytes
    error: str


class ResultRecord(NamedTuple):
    """The result of an instance of a stage, or of an earlier process's attempt at it."""

    number: int
    stage: str
    instance: int
    attempt: int
    node: str
    output: bytes
    bytes: int
    service_s: float
    load_s: float
    peak_gib: float
    ended_s: float
    worker: str = ""


class AttemptRecord(NamedTuple):
    """An attempt that was begun."""

    number: int
    stage: str
    instance: int
    attempt: int
    node: str
    started_s: float


def begin(connection: sa.Connection, run: RunRecord, inputs: Sequence[tuple[int, bytes]]) -> RunRecord:
    """Store a new run and its inputs; or return the run that has its key."""
    if run.key is not None and (found := by_key(connection, run.tenant, run.key)) is not None:
        return found
    connection.execute(sa.insert(chain_runs), [{name: getattr(run, name) for name in RunRecord.__slots__}])
    add_inputs(connection, run.id, inputs)
    return run


def by_key(connection: sa.Connection, tenant: str, key: str) -> RunRecord | None:
    """The run of a key."""
    return _run(connection, (chain_runs.c.tenant == tenant) & (chain_runs.c.key == key))


def by_id(connection: sa.Connection, run_id: str) -> RunRecord | None:
    """The run of an id."""
    return _run(connection, chain_runs.c.id == run_id)


def _run(connection: sa.Connection, where: sa.ColumnElement[bool]) -> RunRecord | None:
    return next(iter(_found(connection, _runs(connection).where(where))), None)


def newest(connection: sa.Connection, limit: int) -> list[RunRecord]:
    """The last runs, the newest first."""
    return _found(connection, _runs(connection).order_by(chain_runs.c.created_s.desc()).limit(limit))


def _runs(connection: sa.Connection) -> sa.Select[Any]:
    """A query of runs, each with the last sign of life of its process, and whether that still counts."""
    is_alive = processes.c.seen_s > database_now_s(connection) - LEASE_S
    owners = chain_runs.outerjoin(processes, processes.c.id == chain_runs.c.owner)
    return sa.select(chain_runs, processes.c.seen_s, is_alive.label("is_alive")).select_from(owners)


def _found(connection: sa.Connection, query: sa.Select[Any]) -> list[RunRecord]:
    """The runs of a query. One whose process was killed has stopped: no process has noted it."""
    found = []
    for row in map(dict, connection.execute(query).mappings()):
        seen_s, is_alive = row.pop("seen_s"), row.pop("is_alive")
        record = RunRecord(**row)
        if record.owner and not is_alive:
            record = replace(record, owner="", state=STOPPED, ended_s=seen_s)
        found.append(record)
    return found


def take_over(connection: sa.Connection, run_id: str, owner: str) -> bool:
    """`owner` works on the run from now on. False if another process that lives does."""
    is_free = (chain_runs.c.owner == "") | chain_runs.c.owner.not_in(living(connection, LEASE_S))
    changed = connection.execute(
        sa.update(chain_runs)
        .where(chain_runs.c.id == run_id, is_free)
        .values(owner=owner, state=ACTIVE, ended_s=None, cancel_requested=False)
    )
    return changed.rowcount == 1


def owner_seen_s(connection: sa.Connection, run_id: str) -> float | None:
    """The last sign of life of the process that works on a run; None = none does."""
    query = sa.select(processes.c.seen_s).join(chain_runs, chain_runs.c.owner == processes.c.id)
    seen_s: float | None = connection.scalar(query.where(chain_runs.c.id == run_id))
    return seen_s


def end(connection: sa.Connection, run_id: str, owner: str, state: str, now_s: float) -> None:
    """The run is over, or, in state \"stopped\", its process works on it no more."""
    connection.execute(
        sa.update(chain_runs)
        .where(chain_runs.c.id == run_id, chain_runs.c.owner == owner)
        .values(owner="", state=state, ended_s=now_s)
    )


def note_models(
    connection: sa.Connection, run_id: str, stage: str, records: Sequence[Sequence[object]]
) -> None:
    """Add what was measured of models of a stage to its run; of each model, as it runs, the first stays."""
    where = chain_runs.c.id == run_id
    options = json.loads(connection.scalar(sa.select(chain_runs.c.options).where(where)) or "{}")
    known = options.setdefault("models", {}).setdefault(stage, [])
    for record in records:
        if all(row[:2] != list(record[:2]) for row in known):
            known.append([None if value != value else value for value in record])
    connection.execute(sa.update(chain_runs).where(where).values(options=json.dumps(options)))


def request_cancel(connection: sa.Connection, run_id: str) -> bool:
    """Ask the process that works on a run to cancel it. False if none does."""
    changed = connection.execute(
        sa.update(chain_runs)
        .where(chain_runs.c.id == run_id, chain_runs.c.owner.in_(living(connection, LEASE_S)))
        .values(cancel_requested=True)
    )
    return changed.rowcount == 1


def to_cancel(connection: sa.Connection, owner: str) -> list[str]:
    """The runs of a process that are to be cancelled."""
    query = sa.select(chain_runs.c.id).where(chain_runs.c.owner == owner, chain_runs.c.cancel_requested)
    return list(connection.scalars(query))


def inputs_of(connection: sa.Connection, run_id: str) -> list[InputRecord]:
    """All inputs of a run."""
    table = chain_inputs.c
    query = sa.select(table.number, table.state, table.given, table.error).where(table.run == run_id)
    return [InputRecord(*row) for row in connection.execute(query.order_by(table.number))]


def results_of(connection: sa.Connection, run_id: str) -> list[ResultRecord]:
    """All results of a run's stages."""
    columns = [chain_results.c[name] for name in ResultRecord._fields]
    return [ResultRecord(*row) for row in connection.execute(_of_run(columns, chain_results, run_id))]


def attempts_of(connection: sa.Connection, run_id: str) -> list[AttemptRecord]:
    """All attempts of a run."""
    columns = [chain_attempts.c[name] for name in AttemptRecord._fields]
    return [AttemptRecord(*row) for row in connection.execute(_of_run(columns, chain_attempts, run_id))]


class Peak(NamedTuple):
    """The memory that a stage has taken."""

    stage: str
    results: int
    gib: float


def peaks_of(connection: sa.Connection, chain: str, runs: int) -> list[Peak]:
    """The most memory that each stage of a chain has taken in its last runs."""
    of_chain = sa.select(chain_runs.c.id).where(chain_runs.c.chain == chain)
    last = of_chain.order_by(chain_runs.c.created_s.desc()).limit(runs)
    columns = chain_results.c.stage, sa.func.count(), sa.func.max(chain_results.c.peak_gib)
    query = sa.select(*columns).where(chain_results.c.run.in_(last)).group_by(chain_results.c.stage)
    return [Peak(*row) for row in connection.execute(query)]


def _of_run(columns: Sequence[Any], table: sa.Table, run_id: str) -> sa.Select[Any]:
    return sa.select(*columns).where(table.c.run == run_id)


def add_inputs(connection: sa.Connection, run_id: str, inputs: Sequence[tuple[int, bytes]]) -> None:
    """Further inputs of a run."""
    rows = [
        {"run": run_id, "number": number, "state": ACTIVE, "given": given, "error": "", "ended_s": None}
        for number, given in inputs
    ]
    if rows:
        connection.execute(sa.insert(chain_inputs), rows)


def change_input(connection: sa.Connection, run_id: str, number: int, given: bytes) -> None:
    """An input is another."""
    where = (chain_inputs.c.run == run_id) & (chain_inputs.c.number == number)
    connection.execute(sa.update(chain_inputs).where(where).values(given=given))


def change_options(connection: sa.Connection, run_id: str, options: str) -> None:
    """A run has other options."""
    connection.execute(sa.update(chain_runs).where(chain_runs.c.id == run_id).values(options=options))


def begin_failed_again(
    connection: sa.Connection, run_id: str, states: Sequence[str] = ("failed", "cancelled")
) -> int:
    """Inputs of a run that ended in these states begin again; returns how many."""
    table = chain_inputs
    changed = connection.execute(
        sa.update(table)
        .where(table.c.run == run_id, table.c.state.in_(states))
        .values(state=ACTIVE, error="", ended_s=None)
    )
    return int(changed.rowcount)


class KeptOutput(NamedTuple):
    """An output that is kept for equal inputs."""

    output: bytes
    bytes: int
    service_s: float


def remembered(connection: sa.Connection, most: int) -> dict[str, KeptOutput]:
    """The outputs that are kept, by key: those of most worth."""
    table = chain_memo.c
    query = sa.select(table.key, table.output, table.bytes, table.service_s)
    rows = connection.execute(query.order_by(table.credit.desc()).limit(most))
    return {row[0]: KeptOutput(*row[1:]) for row in rows}


def evict(connection: sa.Connection, most_bytes: int) -> tuple[list[bytes], float]:
    """Drop the outputs of least credit until the others fit.

    Returns what is dropped, and its largest credit, which becomes the store's inflation (GreedyDual-Size).
    """
    total = int(connection.scalar(sa.select(sa.func.coalesce(sa.func.sum(chain_memo.c.bytes), 0))) or 0)
    dropped: list[bytes] = []
    keys: list[str] = []
    inflation = 0.0
    if total <= most_bytes:
        return dropped, inflation
    query = sa.select(chain_memo.c.key, chain_memo.c.output, chain_memo.c.bytes, chain_memo.c.credit)
    for key, output, size, credit in connection.execute(query.order_by(chain_memo.c.credit)):
        if total <= most_bytes:
            break
        total, inflation = total - size, credit
        keys.append(key)
        dropped.append(output)
    connection.execute(sa.delete(chain_memo).where(chain_memo.c.key.in_(keys)))
    return dropped, inflation


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
