"""The interface between the queue of jobs and the code that does the work."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from trimtab.jobs.job import Job, JobResult, JobState
from trimtab.jobs.job_files import ResultFile


class RunProgress(Protocol):
    """Records the progress of a run. `started` and `returned` raise StoreUnavailable."""

    input: Path

    async def started(self, worker: str, idempotent: bool) -> bool:
        """Store that `worker` is about to begin. False = do not begin: the job is lost or cancelled.

        `idempotent`: the work may be done twice, so a job whose process dies goes back to the queue.
        """

    async def returned(self) -> None:
        """Record that the worker did no work. Another worker may be tried."""

    async def attached(self, remote_id: str) -> None:
        """Record the worker's own id of the job, with which a later process can resume it."""

    def result(self, content_type: str) -> ResultFile:
        """A new file for the result."""


class Runner(Protocol):
    """Does the work of jobs. A cancelled call stops the work that this process does for it."""

    async def run(self, job: Job, progress: RunProgress) -> JobResult:
        """Run a queued job to its end."""

    async def resume(self, job: Job, progress: RunProgress) -> JobResult:
        """Wait for a job that a worker already has under `job.remote_id`."""

    async def cancel(self, job: Job) -> None:
        """Stop the job at its worker, if the worker has it as `job.remote_id`. Never raises."""


class JobObserver(Protocol):
    """Observes changes of jobs, for metrics and logs. Must not raise or wait."""

    def job_changed(self, job_id: str, state: JobState) -> None:
        """A job of this process changed to `state`."""
