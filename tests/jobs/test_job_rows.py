"""Jobs as rows."""

from __future__ import annotations

from trimtab.jobs import JobResult, JobSpec, JobState, job_rows
from trimtab.jobs.store.database import make_engine
from trimtab.jobs.store.job_store import migrate

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


def test_a_job_is_read_as_it_was_written(store_url: str) -> None:
    engine = make_engine(store_url)
    migrate(engine)
    job = SPEC.queued("place", 1.0)
    with engine.begin() as connection:
        job_rows.insert(connection, job)
        assert job_rows.find(connection, job.id, "a") == job
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
