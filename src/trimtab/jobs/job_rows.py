"""The rows of jobs: one function per change of state, each one conditional statement.

A change names the owner and the attempt it stands on, so that of several processes only one makes it, and so
that making it twice, after the answer to a COMMIT was lost, does no harm.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import orjson
import sqlalchemy as sa

from trimtab.jobs.job import ACTIVE, Job, JobResult, JobState
from trimtab.jobs.store.database import upsert
from trimtab.jobs.store.processes import living
from trimtab.jobs.store.schema import jobs

_ACTIVE = [state.value for state in ACTIVE]
_QUEUED, _DISPATCHED = JobState.QUEUED.value, JobState.DISPATCHED.value
_JSON = ("parameters", "labels")  # columns whose text is JSON
_COLUMNS = [jobs.c[field.name].label(field.name) for field in fields(Job)]


@dataclass(frozen=True, slots=True)
class Claim:
    """The conditions of a change: the job, its owner, and the attempt that makes it."""

    id: str
    owner: str
    attempt: int


def insert(connection: sa.Connection, job: Job) -> None:
    """A new job. A second time does nothing."""
    values = {field.name: getattr(job, field.name) for field in fields(Job)}
    values |= {"state": job.state.value}
    values |= {name: orjson.dumps(values[name]).decode() for name in _JSON}
    connection.execute(upsert(connection, jobs).values(values).on_conflict_do_nothing())


def find(connection: sa.Connection, job_id: str, tenant: str) -> Job | None:
    """A tenant's job."""
    query = sa.select(*_COLUMNS).where(jobs.c.id == job_id, jobs.c.tenant == tenant, sa.not_(jobs.c.deleted))
    row = connection.execute(query).one_or_none()
    return _job(row) if row else None


def listed(
    connection: sa.Connection, tenant: str, kind: str, after: str, limit: int, oldest_first: bool
) -> list[Job]:
    """A tenant's jobs of a kind ("" = all) behind the one named `after` ("" = from the start)."""
    order = sa.tuple_(jobs.c.created_s, jobs.c.id)
    query = sa.select(*_COLUMNS).where(jobs.c.tenant == tenant, sa.not_(jobs.c.deleted))
    if kind:
        query = query.where(jobs.c.kind == kind)
    if after:
        edge = sa.select(jobs.c.created_s, jobs.c.id).where(jobs.c.id == after, jobs.c.tenant == tenant)
        subquery = edge.scalar_subquery()
        query = query.where(order > subquery if oldest_first else order < subquery)
    columns = (jobs.c.created_s, jobs.c.id)
    query = query.order_by(*(columns if oldest_first else [column.desc() for column in columns]))
    return [_job(row) for row in connection.execute(query.limit(limit))]


def position(connection: sa.Connection, job: Job) -> int:
    """How many jobs of its queue are waiting up to it, itself included."""
    query = sa.select(sa.func.count()).where(
        jobs.c.state == _QUEUED, jobs.c.queue == job.queue, jobs.c.created_s <= job.created_s
    )
    return int(connection.scalar(query) or 0)


def active_of(connection: sa.Connection, tenant: str) -> int:
    """How many jobs of a tenant are not over."""
    query = sa.select(sa.func.count()).where(jobs.c.tenant == tenant, jobs.c.state.in_(_ACTIVE))
    return int(connection.scalar(query) or 0)


def bytes_of(connection: sa.Connection, tenant: str) -> int:
    """The inputs of a tenant's unfinished jobs, and its results that are kept."""
    is_active = jobs.c.state.in_(_ACTIVE)
    query = sa.select(sa.func.sum(sa.case((is_active, jobs.c.input_bytes), else_=jobs.c.result_bytes))).where(
        jobs.c.tenant == tenant, sa.or_(is_active, jobs.c.result_file != "")
    )
    return int(connection.scalar(query) or 0)


def counts(connection: sa.Connection) -> dict[str, int]:
    """How many jobs there are in each state."""
    return {str(state): int(count) for state, count in connection.execute(_COUNTED)}


# These run every second, so they are made once.
_FOUND = sa.select(
    sa.exists().where(jobs.c.state == _QUEUED, jobs.c.owner.is_(None)),
    sa.exists().where(jobs.c.state.in_(_ACTIVE), jobs.c.owner.is_not(None)),
)
_COUNTED = sa.select(jobs.c.state, sa.func.count()).group_by(jobs.c.state)
_OWN = sa.select(jobs.c.id, jobs.c.cancel_requested).where(
    jobs.c.owner == sa.bindparam("owner"), jobs.c.state.in_(_ACTIVE)
)


def found(connection: sa.Connection) -> tuple[bool, bool]:
    """Whether any job is free to be claimed, and whether any is owned by a process: mostly none is."""
    is_free, is_owned = connection.execute(_FOUND).one()
    return bool(is_free), bool(is_owned)


def claim(connection: sa.Connection, owner: str, place: str, now_s: float, limit: int) -> list[Job]:
    """Up to `limit` queued jobs become `owner`'s: tenants and queues take turns, each in its own order."""
    turn = sa.func.row_number().over(
        partition_by=(jobs.c.tenant, jobs.c.queue), order_by=(jobs.c.created_s, jobs.c.id)
    )
    free = (
        sa.select(jobs.c.id, turn.label("turn"), jobs.c.created_s)
        .where(
            jobs.c.state == _QUEUED,
            jobs.c.owner.is_(None),
            jobs.c.place == place,
            jobs.c.not_before_s <= now_s,
        )
        .subquery()
    )
    query = sa.select(free.c.id).order_by(free.c.turn, free.c.created_s).limit(limit)
    free_still = (jobs.c.state == _QUEUED, jobs.c.owner.is_(None))
    ids = connection.scalars(query).all()
    claimed = [job_id for job_id in ids if _taken(connection, job_id, owner, *free_still)]
    return _by_ids(connection, claimed)


def adopt(connection: sa.Connection, owner: str, place: str, lease_s: float) -> list[Job]:
    """Active jobs whose owner has left, or been silent for `lease_s`, become `owner`'s."""
    orphaned = sa.select(jobs.c.id, jobs.c.owner).where(
        jobs.c.state.in_(_ACTIVE),
        jobs.c.place == place,
        jobs.c.owner.is_not(None),
        jobs.c.owner.not_in(living(connection, lease_s)),
    )
    adopted = []
    for job_id, old in connection.execute(orphaned).all():
        if _taken(connection, job_id, owner, jobs.c.owner == old, jobs.c.state.in_(_ACTIVE)):
            adopted.append(job_id)
    return _by_ids(connection, adopted)


def _taken(connection: sa.Connection, job_id: str, owner: str, *still: sa.ColumnElement[bool]) -> bool:
    """Make it the owner's where it still is as it was found: another process may have been quicker."""
    update = sa.update(jobs).where(jobs.c.id == job_id, *still).values(owner=owner)
    return bool(connection.execute(update).rowcount)


def of_owner(connection: sa.Connection, owner: str, ids: set[str]) -> list[Job]:
    """Those of these active jobs that are still `owner`'s."""
    query = sa.select(*_COLUMNS).where(jobs.c.id.in_(ids), jobs.c.owner == owner, jobs.c.state.in_(_ACTIVE))
    return [_job(row) for row in connection.execute(query)]


def release(connection: sa.Connection, owner: str) -> None:
    """Queued jobs of `owner` are free again."""
    connection.execute(
        sa.update(jobs).where(jobs.c.owner == owner, jobs.c.state == _QUEUED).values(owner=None)
    )


def owned(connection: sa.Connection, owner: str) -> dict[str, bool]:
    """The active jobs of `owner`, and whether each is to be cancelled."""
    rows = connection.execute(_OWN, {"owner": owner})
    return {str(job_id): bool(cancel) for job_id, cancel in rows}


def dispatch(connection: sa.Connection, claim: Claim, worker: str, idempotent: bool, now_s: float) -> bool:
    """Queued → dispatched, as attempt `claim.attempt`. False = not ours any more, or to be cancelled."""
    was_queued = sa.and_(jobs.c.state == _QUEUED, jobs.c.attempt == claim.attempt - 1)
    already = sa.and_(jobs.c.state == _DISPATCHED, jobs.c.attempt == claim.attempt)
    done = connection.execute(
        sa.update(jobs)
        .where(
            jobs.c.id == claim.id,
            jobs.c.owner == claim.owner,
            sa.or_(was_queued, already),
            sa.not_(jobs.c.cancel_requested),
        )
        .values(
            state=_DISPATCHED,
            attempt=claim.attempt,
            worker=worker,
            idempotent=idempotent,
            remote_id="",
            dispatched_s=now_s,
        )
    )
    return done.rowcount > 0


def attach(connection: sa.Connection, claim: Claim, remote_id: str) -> None:
    """The worker knows the job by this id."""
    connection.execute(_dispatched_by(claim).values(remote_id=remote_id))


def back_to_queue(connection: sa.Connection, claim: Claim, owner: str | None, not_before_s: float) -> None:
    """Dispatched (or still queued) → queued, for `owner` (None = for any process)."""
    connection.execute(
        sa.update(jobs)
        .where(jobs.c.id == claim.id, jobs.c.owner == claim.owner, jobs.c.state.in_(_ACTIVE))
        .values(state=_QUEUED, owner=owner, not_before_s=not_before_s, worker="", remote_id="")
    )


def end(connection: sa.Connection, claim: Claim, result: JobResult, now_s: float, expires_s: float) -> bool:
    """End a job. A true end also replaces `unknown`, which another process wrote while this one was away."""
    unknown = sa.and_(jobs.c.state == JobState.UNKNOWN.value, jobs.c.attempt == claim.attempt)
    ours = sa.and_(jobs.c.owner == claim.owner, jobs.c.state.in_(_ACTIVE))
    again = sa.and_(jobs.c.state == result.state.value, jobs.c.attempt == claim.attempt)
    file = result.file
    done = connection.execute(
        sa.update(jobs)
        .where(jobs.c.id == claim.id, sa.or_(ours, unknown, again))
        .values(
            state=result.state.value,
            owner=None,
            ended_s=now_s,
            expires_s=expires_s,
            error_code=result.error_code[:64],
            error=sa.case((unknown, _found_later(result)), else_=result.error),
            result_file=file.name if file else "",
            result_bytes=file.bytes if file else 0,
            result_type=file.content_type[:255] if file else "",
        )
    )
    return done.rowcount > 0


def _found_later(result: JobResult) -> str:
    """The note of a job that was `unknown` and has an end after all."""
    return f"{result.error or 'its result came later'}; it was unknown meanwhile"


def request_cancel(
    connection: sa.Connection, job_id: str, tenant: str, now_s: float, expires_s: float, delete: bool
) -> Job | None:
    """Cancel a tenant's job: at once where it is unclaimed, else its owner reads the wish in the row."""
    wanted = sa.and_(jobs.c.id == job_id, jobs.c.tenant == tenant, sa.not_(jobs.c.deleted))
    connection.execute(
        sa.update(jobs)
        .where(wanted, jobs.c.state == _QUEUED, jobs.c.owner.is_(None))
        .values(state=JobState.CANCELLED.value, ended_s=now_s, expires_s=expires_s)
    )
    connection.execute(sa.update(jobs).where(wanted, jobs.c.state.in_(_ACTIVE)).values(cancel_requested=True))
    job = find(connection, job_id, tenant)
    if job is not None and delete:
        connection.execute(sa.update(jobs).where(wanted).values(deleted=True))
    return job


def expired(connection: sa.Connection, place: str, now_s: float) -> list[Job]:
    """Jobs whose result may go: their time is over, or their tenant has deleted them."""
    over = jobs.c.state.not_in(_ACTIVE)
    query = sa.select(*_COLUMNS).where(
        jobs.c.place == place,
        jobs.c.result_file != "",
        over,
        sa.or_(jobs.c.expires_s <= now_s, jobs.c.deleted),
    )
    return [_job(row) for row in connection.execute(query.limit(1000))]


def without_result(connection: sa.Connection, job_ids: list[str]) -> None:
    """Their result files are deleted."""
    connection.execute(sa.update(jobs).where(jobs.c.id.in_(job_ids)).values(result_file=""))


def purge(connection: sa.Connection, ended_before_s: float) -> None:
    """Drop rows of jobs that ended long ago, and of deleted ones, once they have no file."""
    connection.execute(
        sa.delete(jobs).where(
            jobs.c.state.not_in(_ACTIVE),
            jobs.c.result_file == "",
            sa.or_(jobs.c.ended_s <= ended_before_s, jobs.c.deleted),
        )
    )


def known(connection: sa.Connection, place: str) -> tuple[set[str], set[str]]:
    """The ids of jobs that need their input, and of those that have or may get a result, in a folder."""
    query = sa.select(jobs.c.id, jobs.c.state, jobs.c.result_file).where(jobs.c.place == place)
    inputs, results = set(), set()
    for job_id, state, file in connection.execute(query):
        if state in _ACTIVE:
            inputs.add(job_id)
        if state in _ACTIVE or file:
            results.add(job_id)
    return inputs, results


def _dispatched_by(claim: Claim) -> sa.Update:
    return sa.update(jobs).where(
        jobs.c.id == claim.id,
        jobs.c.owner == claim.owner,
        jobs.c.attempt == claim.attempt,
        jobs.c.state == _DISPATCHED,
    )


def _by_ids(connection: sa.Connection, ids: list[str]) -> list[Job]:
    if not ids:
        return []
    query = sa.select(*_COLUMNS).where(jobs.c.id.in_(ids)).order_by(jobs.c.created_s, jobs.c.id)
    return [_job(row) for row in connection.execute(query)]


def _job(row: sa.Row[Any]) -> Job:
    values = row._asdict()
    values |= {name: orjson.loads(values[name]) for name in _JSON}
    values["state"] = JobState(values["state"])
    return Job(**values)
