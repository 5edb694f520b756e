"""What a runner tells while a job runs, written to the store."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

from trimtab.gateway.jobs import rows
from trimtab.gateway.jobs.job import Job, JobResult, State
from trimtab.gateway.jobs.results import JobFiles, ResultFile
from trimtab.gateway.store.errors import StoreUnavailable
from trimtab.gateway.store.store import Store


class StoredDelivery:
    """A `job.Delivery` for one claim of a job. `lost`: another gateway has it, or its tenant cancelled it."""

    def __init__(
        self,
        store: Store,
        files: JobFiles,
        job: Job,
        owner: str,
        clock: Callable[[], float],
        tell: Callable[[str, State], None],
    ) -> None:
        self.job, self.lost, self.body = job, False, files.body(job.id)
        self.waits = job.state is State.QUEUED  # for a node: it may be stopped and nothing is lost
        self.is_only_here = False  # should this process end, nobody could learn what becomes of it
        self._store, self._files, self._owner, self._clock, self._tell = store, files, owner, clock, tell
        self._open: ResultFile | None = None

    async def dispatched(self, node: str, idempotent: bool) -> bool:
        """It is about to be sent to `node`. False = do not send it."""
        self.waits, self.is_only_here = False, True
        attempt = self.job.attempt + 1
        mine, now_s = rows.Mine(self.job.id, self._owner, attempt), self._clock()
        change = partial(rows.dispatch, mine=mine, node=node, idempotent=idempotent, now_s=now_s)
        self.lost = not await self._store.write(change)
        if not self.lost:
            self.job = replace(
                self.job, state=State.DISPATCHED, attempt=attempt, node=node, idempotent=idempotent
            )
            self._tell(self.job.id, State.DISPATCHED)
        return not self.lost

    async def returned(self) -> None:
        """Nothing was done at that node; it is queued, and still ours."""
        self.discard()
        await self._back(self._owner, 0.0)
        self.waits, self.is_only_here = True, False

    async def attached(self, backend_job_id: str) -> None:
        """The backend has accepted it under this id.

        It is at work: with the database away it is followed all the same, and only a crash loses it.
        """
        self.job = replace(self.job, backend_job_id=backend_job_id)
        with suppress(StoreUnavailable):
            await self._store.write(partial(rows.attach, mine=self._mine(), backend_job_id=backend_job_id))
            self.is_only_here = False

    def result(self, content_type: str) -> ResultFile:
        """A new file for the result. Raises NotKept."""
        self.discard()
        self._open = self._files.new_result(self.job.id, self.job.attempt, content_type)
        return self._open

    def discard(self) -> None:
        """Forget a result that was not finished."""
        if self._open is not None:
            self._open.discard()
            self._open = None

    async def end(self, result: JobResult, ttl_s: float) -> None:
        """Make `result` the job's end, or put it back. Raises StoreUnavailable: try again."""
        now_s = self._clock()
        if result.state is State.QUEUED:
            await self._back(None, now_s + result.retry_after_s)
            return
        end = partial(rows.end, mine=self._mine(), result=result, now_s=now_s, expires_s=now_s + ttl_s)
        if await self._store.write(end):
            self._tell(self.job.id, result.state)
            with suppress(OSError):
                self._files.drop_body(self.job.id)

    async def _back(self, owner: str | None, not_before_s: float) -> None:
        back = partial(rows.back_to_queue, mine=self._mine(), owner=owner, not_before_s=not_before_s)
        await self._store.write(back)
        self._tell(self.job.id, State.QUEUED)

    def _mine(self) -> rows.Mine:
        return rows.Mine(self.job.id, self._owner, self.job.attempt)
