"""The progress of a run, written to the store."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

from trimtab.errors import StoreUnavailable
from trimtab.jobs import job_rows
from trimtab.jobs.job import Job, JobResult, JobState
from trimtab.jobs.job_files import JobFiles, ResultFile
from trimtab.jobs.store.job_store import JobStore


class StoredProgress:
    """A `RunProgress` for one claim of a job. `lost`: another process has it, or its tenant cancelled it."""

    def __init__(
        self,
        store: JobStore,
        files: JobFiles,
        job: Job,
        owner: str,
        clock: Callable[[], float],
        notify: Callable[[str, JobState], None],
    ) -> None:
        self.job, self.lost, self.input = job, False, files.input(job.id)
        self.waits = job.state is JobState.QUEUED  # it waits for a worker: stopping it loses no work
        self.is_only_here = False  # no other process could follow the job after this one ends
        self._store, self._files, self._owner, self._clock, self._notify = store, files, owner, clock, notify
        self._open: ResultFile | None = None

    async def started(self, worker: str, idempotent: bool) -> bool:
        """Store that `worker` is about to begin. False = do not begin."""
        self.waits, self.is_only_here = False, True
        attempt = self.job.attempt + 1
        claim, now_s = job_rows.Claim(self.job.id, self._owner, attempt), self._clock()
        change = partial(job_rows.dispatch, claim=claim, worker=worker, idempotent=idempotent, now_s=now_s)
        self.lost = not await self._store.write(change)
        if not self.lost:
            self.job = replace(
                self.job, state=JobState.DISPATCHED, attempt=attempt, worker=worker, idempotent=idempotent
            )
            self._notify(self.job.id, JobState.DISPATCHED)
        return not self.lost

    async def returned(self) -> None:
        """The worker did no work: the job is queued again, and this process still owns it."""
        self.discard()
        await self._back(self._owner, 0.0)
        self.waits, self.is_only_here = True, False

    async def attached(self, remote_id: str) -> None:
        """The worker has accepted the job under this id.

        The work has begun. The runner follows it even without the database; only a crash loses it.
        """
        self.job = replace(self.job, remote_id=remote_id)
        with suppress(StoreUnavailable):
            await self._store.write(partial(job_rows.attach, claim=self._claim(), remote_id=remote_id))
            self.is_only_here = False

    def result(self, content_type: str) -> ResultFile:
        """A new file for the result. Raises NotKept."""
        self.discard()
        self._open = self._files.new_result(self.job.id, self.job.attempt, content_type)
        return self._open

    def discard(self) -> None:
        """Delete an unfinished result."""
        if self._open is not None:
            self._open.discard()
            self._open = None

    async def end(self, result: JobResult, ttl_s: float) -> None:
        """Store `result` as the job's result, or queue the job again. Raises StoreUnavailable: retry."""
        now_s = self._clock()
        if result.state is JobState.QUEUED:
            await self._back(None, now_s + result.retry_after_s)
            return
        end = partial(job_rows.end, claim=self._claim(), result=result, now_s=now_s, expires_s=now_s + ttl_s)
        if await self._store.write(end):
            self._notify(self.job.id, result.state)
            with suppress(OSError):
                self._files.drop_input(self.job.id)

    async def _back(self, owner: str | None, not_before_s: float) -> None:
        back = partial(job_rows.back_to_queue, claim=self._claim(), owner=owner, not_before_s=not_before_s)
        await self._store.write(back)
        self._notify(self.job.id, JobState.QUEUED)

    def _claim(self) -> job_rows.Claim:
        return job_rows.Claim(self.job.id, self._owner, self.job.attempt)
