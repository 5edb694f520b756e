"""Durable jobs: accepted, claimed, run, resumed after a crash, and kept until their results expire.

A job is a piece of work with an input and a result, both files. `JobQueue` keeps jobs in a `JobStore`
(SQLite or PostgreSQL), claims them for its process and gives them to a `Runner`, which knows how to do the
work. Several processes may share one database and one folder: each job runs in one of them, and the others
take over the jobs of a process that ends.
"""

from __future__ import annotations

from trimtab.errors import MissingExtra

try:
    from trimtab.errors import StoreNewer, StoreUnavailable
    from trimtab.jobs.job import (
        ACTIVE,
        Job,
        JobObserver,
        JobResult,
        JobSettings,
        JobSpec,
        JobState,
        Runner,
        RunProgress,
        TenantBounds,
        TooManyBytes,
        TooManyJobs,
    )
    from trimtab.jobs.job_files import (
        JobFiles,
        JobInput,
        NotKept,
        ResultFile,
        StagedInput,
        StoredResult,
        TooLarge,
    )
    from trimtab.jobs.job_queue import JobQueue
    from trimtab.jobs.store.job_store import JobStore
except ModuleNotFoundError as missing:
    raise MissingExtra(
        f"durable jobs need {missing.name}", expected="pip install 'trimtab[jobs]'"
    ) from missing

__all__ = [
    "ACTIVE",
    "Job",
    "JobFiles",
    "JobInput",
    "JobObserver",
    "JobQueue",
    "JobResult",
    "JobSettings",
    "JobSpec",
    "JobState",
    "JobStore",
    "NotKept",
    "ResultFile",
    "RunProgress",
    "Runner",
    "StagedInput",
    "StoreNewer",
    "StoreUnavailable",
    "StoredResult",
    "TenantBounds",
    "TooLarge",
    "TooManyBytes",
    "TooManyJobs",
]
