"""Rows of jobs keep the columns of the first version, which replicas of it read."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from trimtab.jobs import JobResult, JobSpec, JobState, job_rows
from trimtab.jobs.store.database import make_engine
from trimtab.jobs.store.migrate import migrate

SPEC = JobSpec(
    tenant="a",
    queue="film-1",
    kind="video",
    target="/v1/videos",
    input_type="application/json",
    parameters={"model": "film-1", "video_s": 4.0, "prefix_blocks": [2**62]},
    labels={"seconds": "4"},
    only_worker="n1",
)
FIRST_COLUMNS = {
    "model": "film-1",
    "method": "POST",
    "request_type": "application/json",
    "facts": '{"model":"film-1","video_s":4.0,"prefix_blocks":[4611686018427387904]}',
    "shown": '{"seconds":"4"}',
    "only_node": "n1",
    "node": "",
    "backend_job_id": "",
}


def test_a_job_is_written_to_the_columns_of_the_first_version_and_read_from_them(store_url: str) -> None:
    engine = make_engine(store_url)
    migrate(engine)
    job = SPEC.queued("place", 1.0)
    with engine.begin() as connection:
        job_rows.insert(connection, job)
        assert job_rows.find(connection, job.id, "a") == job
        table = sa.Table("jobs", sa.MetaData(), autoload_with=connection)
        row: dict[str, Any] = connection.execute(sa.select(table)).one()._asdict()
        assert {name: row[name] for name in FIRST_COLUMNS} == FIRST_COLUMNS
        connection.execute(sa.update(table).values(node="n2", backend_job_id="v1"))
        found = job_rows.find(connection, job.id, "a")
        assert found is not None
        assert (found.worker, found.remote_id) == ("n2", "v1")
    engine.dispose()


def test_a_job_that_was_unknown_and_is_done_after_all_says_so(store_url: str) -> None:
    engine = make_engine(store_url)
    migrate(engine)
    with engine.begin() as connection:
        notes = []
        for was_unknown in (False, True):
            job = SPEC.queued("place", 1.0)
            job_rows.insert(connection, job)
            (claimed,) = job_rows.claim(connection, "us", "place", 2.0, 1)
            claim = job_rows.Claim(job.id, "us", claimed.attempt)
            if was_unknown:
                lost = JobResult(JobState.UNKNOWN, error_code="gateway_lost", error="the process ended")
                assert job_rows.end(connection, claim, lost, 3.0, 9.0)
            assert job_rows.end(connection, claim, JobResult(JobState.DONE), 4.0, 9.0)
            found = job_rows.find(connection, job.id, "a")
            assert found is not None
            assert (found.state, found.error_code) == (JobState.DONE, "")
            notes.append(found.error)
    engine.dispose()
    assert notes == ["", "its result came later; it was unknown meanwhile"]
