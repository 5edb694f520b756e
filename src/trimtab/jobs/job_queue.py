"""The job queue of a process: accepts jobs durably, claims, runs, ends and expires them.

Several processes may share one database: a job is claimed by one conditional update. A process that has given
no sign of life for `lease_s` has lost its jobs to another one that has the same folder.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from trimtab.errors import StoreUnavailable
from trimtab.jobs import job_rows
from trimtab.jobs.job import (
    ACTIVE,
    Job,
    JobObserver,
    JobResult,
    JobSettings,
    JobSpec,
    JobState,
    Runner,
    TenantBounds,
    TooManyBytes,
    TooManyJobs,
)
from trimtab.jobs.job_files import JobFiles, JobInput
from trimtab.jobs.store.job_store import JobStore
from trimtab.jobs.store.processes import forget_silent, leave, sign_of_life
from trimtab.jobs.stored_progress import StoredProgress

_log = logging.getLogger(__name__)

_MAX_PAUSE_S = 5.0  # between retries of database calls
_NO_ROOM_S = 10.0  # retry delay of a job when the disk is full
_DRAIN_STEP_S = 0.05
_EVER_S = 1e9  # a lease that only processes that have left exceed


class JobQueue:
    """Open it, then `submit`; close it before the store."""

    def __init__(
        self,
        store: JobStore,
        runner: Runner,
        settings: JobSettings,
        *,
        observers: Sequence[JobObserver] = (),
        bounds: Callable[[str], TenantBounds] | None = None,
        owner: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`bounds`: of a tenant, now; `owner`: this process's id, new at every start.

        `clock`: seconds since 1970.
        """
        self.settings, self.owner = settings, owner or secrets.token_hex(8)
        self._store, self._runner, self._clock, self._observers = store, runner, clock, observers
        self._bounds = bounds or (lambda _: TenantBounds(settings.max_active_per_tenant))
        self._files = JobFiles(settings.folder, settings.result_max_bytes)
        self._place = ""
        self._running: dict[str, asyncio.Task[None]] = {}
        self._progress: dict[str, StoredProgress] = {}  # of running jobs
        self._draining = False
        self._cancelled: set[str] = set()  # by their tenant, not by this process's end
        self._ending: set[str] = set()  # their end is being written, so they cannot be cancelled
        self._strays: set[str] = set()  # claimed here and not running: the answer to their claim was lost
        self._loops: list[asyncio.Task[None]] = []
        self._wake = asyncio.Event()
        self._alive_since_s: float | None = None  # of the unbroken signs of life, by the loop's clock
        self._signed_s = -inf  # when the last of them was given
        self._pause_s = 0.0  # until the next look

    async def open(self) -> None:
        """Begin to run jobs. Raises OSError where the folder cannot be made."""
        self._place = await asyncio.to_thread(self._files.open)
        for loop in (self._look_loop(), self._sweep_loop()):
            self._loops.append(asyncio.create_task(loop))

    async def drain(self, timeout_s: float) -> int:
        """Begin no job any more, and wait for those that would be lost from sight with this process.

        A job that waits for a worker is free again. The next process finds a job that a worker knows by an
        id. Returns how many were not done in time.
        """
        self._draining = True
        loop = asyncio.get_running_loop()
        end_s = loop.time() + timeout_s
        while True:
            await asyncio.sleep(0)  # what has just been started has its progress now
            with suppress(StoreUnavailable, TimeoutError):  # `close` tries once more
                async with asyncio.timeout_at(end_s):
                    await self._give_back()
            left = sum(progress.is_only_here for progress in self._progress.values())
            if not left or loop.time() >= end_s:
                return left
            await asyncio.sleep(_DRAIN_STEP_S)

    async def _give_back(self) -> None:
        """Stop the jobs that wait for a worker."""
        waiting = [job_id for job_id, progress in self._progress.items() if progress.waits]
        tasks = [self._running[job_id] for job_id in waiting if job_id not in self._ending]
        if not tasks:
            return
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await self._store.write(partial(job_rows.release, owner=self.owner))

    async def close(self) -> None:
        """Stop at once: what is queued stays queued, what is dispatched is found by the next process."""
        tasks = [*self._loops, *self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with suppress(StoreUnavailable):
            await self._store.write(partial(_leave, owner=self.owner))

    async def submit(self, spec: JobSpec, job_input: JobInput) -> Job:
        """Make a job durable. Raises StoreUnavailable, TooManyJobs, TooManyBytes."""
        self._files.demand_room(self.settings.min_free_bytes)
        size = len(job_input) if isinstance(job_input, bytes) else job_input.bytes
        job = spec.queued(self._place, self._clock(), size)
        try:
            await asyncio.to_thread(self._files.keep_input, job.id, job_input)
            await self._store.write(partial(_insert, job=job, bounds=self._bounds(job.tenant)))
        except BaseException:
            with suppress(OSError):
                self._files.drop_input(job.id)  # the job cannot run, should the database have it
            raise
        self._notify(job.id, JobState.QUEUED)
        self._wake.set()
        return job

    async def find(self, job_id: str, tenant: str) -> Job | None:
        """A tenant's job. Raises StoreUnavailable."""
        return await self._store.read(partial(job_rows.find, job_id=job_id, tenant=tenant))

    async def position(self, job: Job) -> int:
        """Its place among the waiting jobs of its queue, from 1. Raises StoreUnavailable."""
        return await self._store.read(partial(job_rows.position, job=job))

    async def list(
        self, tenant: str, *, kind: str = "", after: str = "", limit: int = 20, oldest_first: bool = False
    ) -> list[Job]:
        """A page of a tenant's jobs. Raises StoreUnavailable."""
        page = partial(
            job_rows.listed, tenant=tenant, kind=kind, after=after, limit=limit, oldest_first=oldest_first
        )
        return await self._store.read(page)

    async def counts(self) -> dict[str, int]:
        """How many jobs there are in each state, of all processes. Raises StoreUnavailable."""
        return await self._store.read(job_rows.counts)

    async def cancel(self, job_id: str, tenant: str, *, delete: bool = False) -> Job | None:
        """Cancel a job; `delete` also hides it. Returns the job as it is now. Raises StoreUnavailable."""
        now_s = self._clock()
        expires_s = now_s + self.settings.result_ttl_s
        wish = partial(job_rows.request_cancel, job_id=job_id, tenant=tenant, delete=delete)
        job = await self._store.write(partial(wish, now_s=now_s, expires_s=expires_s))
        if job is None:
            return None
        if job.state is JobState.CANCELLED:
            self._notify(job.id, job.state)
            with suppress(OSError):
                self._files.drop_input(job.id)
        task = self._running.get(job_id)
        if job.state not in ACTIVE or task is None:
            return job
        self._stop(job_id)
        await asyncio.wait([task])
        return job if delete else await self.find(job_id, tenant)

    def result_path(self, job: Job) -> Path | None:
        """Where a done job's result lies; None = it has expired."""
        if not job.result_file or (job.expires_s is not None and job.expires_s <= self._clock()):
            return None
        path = self._files.result(job.result_file)
        return path if path.exists() else None

    async def _look_loop(self) -> None:
        """Look for jobs when one was submitted or has ended here, and periodically for those of others."""
        while True:
            self._wake.clear()
            if not await self._tried(self._look):
                self._alive_since_s = None
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pause_s):
                    await self._wake.wait()

    async def _look(self) -> None:
        """Look for work. While no process has any, one look per sign of life is enough."""
        sign_s = self.settings.lease_s / 4
        self._pause_s = min(self.settings.poll_s, sign_s)
        is_free, is_owned = await self._store.read(job_rows.found)
        if not is_free and not is_owned:
            self._pause_s = sign_s
        silent_s = asyncio.get_running_loop().time() - self._signed_s
        if silent_s >= (self._pause_s if is_owned else sign_s) and not await self._tried(self._life):
            self._alive_since_s = None
        if is_free:
            await self._tried(self._claim)

    async def _tried(self, turn: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Run one turn of a loop that must not end, because accepted jobs would then never run."""
        try:
            await turn()
        except StoreUnavailable:
            return False
        except Exception:
            _log.exception("jobs: a turn has failed; it is tried again")
            return False
        return True

    async def _claim(self) -> None:
        free = self.settings.max_running - len(self._running)
        if free <= 0 or self._draining:
            return
        claim = partial(job_rows.claim, owner=self.owner, place=self._place, now_s=self._clock(), limit=free)
        for job in await self._store.write(claim):
            self._begin(job, self._run)

    async def _life(self) -> None:
        """Give a sign of life, learn of cancellations and lost claims, adopt the jobs of silent processes."""
        now_s = asyncio.get_running_loop().time()
        since_s = now_s if self._alive_since_s is None else self._alive_since_s
        # After an outage of the database all processes look silent: wait for the others' signs of life.
        lease_s = self.settings.lease_s if now_s - since_s >= self.settings.lease_s else _EVER_S
        place = None if self._draining else self._place
        owned, adopted = await self._store.write(
            partial(_alive, owner=self.owner, place=place, lease_s=lease_s)
        )
        self._alive_since_s, self._signed_s = since_s, now_s
        for job_id in list(self._running):
            if owned.get(job_id):
                self._stop(job_id)
        for job in adopted:
            self._begin(job, self._recover)
        if not self._draining:
            await self._find_strays(owned.keys() - self._running.keys())

    async def _find_strays(self, idle: set[str]) -> None:
        again, self._strays = idle & self._strays, idle
        if again:
            for job in await self._store.read(partial(job_rows.of_owner, owner=self.owner, ids=again)):
                self._begin(job, self._recover)

    async def _sweep_loop(self) -> None:
        while True:
            with suppress(StoreUnavailable, OSError):
                await sweep(self._store, self._files, self._place, self._clock(), self.settings.row_ttl_s)
            await asyncio.sleep(self.settings.sweep_s)

    def _begin(self, job: Job, work: Callable[[Job], Coroutine[Any, Any, None]]) -> None:
        if job.id in self._running or self._draining:  # claimed while the drain began: `close` frees it
            return
        task = asyncio.create_task(work(job), name=job.id)
        self._running[job.id] = task
        task.add_done_callback(partial(self._ended, job.id))

    def _ended(self, job_id: str, task: asyncio.Task[None]) -> None:
        self._running.pop(job_id, None)
        self._progress.pop(job_id, None)
        self._cancelled.discard(job_id)
        self._ending.discard(job_id)
        self._wake.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("job %s: %s", job_id, error, exc_info=error)

    def _stop(self, job_id: str) -> None:
        if job_id not in self._cancelled and job_id not in self._ending:
            self._cancelled.add(job_id)
            self._running[job_id].cancel()

    async def _recover(self, job: Job) -> None:
        """Continue a job of a process that is gone: see the diagram in `jobs.job`."""
        if job.state is JobState.QUEUED:
            await self._run(job)
        elif (file := self._files.whole_result(job.id, job.attempt)) is not None:
            await self._finish(job, JobResult(JobState.DONE, file=file))
        elif job.cancel_requested:
            await self._runner.cancel(job)
            await self._finish(job, _CANCELLED)
        elif job.remote_id:
            await self._follow(job, self._runner.resume)
        elif job.idempotent:
            await self._finish(job, JobResult(JobState.QUEUED))
        else:
            await self._finish(job, _LOST)

    async def _run(self, job: Job) -> None:
        if job.cancel_requested:
            await self._finish(job, _CANCELLED)
        elif not self._files.input(job.id).exists():
            await self._finish(job, _NO_INPUT)
        elif not self._files.has_room(self.settings.min_free_bytes) or await self._is_full(job.tenant):
            await self._finish(job, JobResult(JobState.QUEUED, retry_after_s=_NO_ROOM_S))
        elif self._clock() - job.created_s > self.settings.queue_max_s:
            await self._finish(job, _EXPIRED)
        else:
            await self._follow(job, self._runner.run)

    async def _is_full(self, tenant: str) -> bool:
        """Whether a tenant's inputs and results have filled what they may take: no job adds a result."""
        most = self._bounds(tenant).bytes
        if most is None:
            return False
        try:
            return await self._store.read(partial(job_rows.bytes_of, tenant=tenant)) > most
        except StoreUnavailable:
            return True

    async def _follow(
        self, job: Job, run: Callable[[Job, StoredProgress], Coroutine[Any, Any, JobResult]]
    ) -> None:
        """Run a job to its end. Its tenant can cancel it; the end of this process is no end of the job."""
        progress = self._progress[job.id] = self._new_progress(job)
        try:
            result = await run(job, progress)
        except asyncio.CancelledError:
            if job.id not in self._cancelled:
                raise
            await self._runner.cancel(progress.job)
            result = _CANCELLED
        except StoreUnavailable:
            result = JobResult(JobState.QUEUED, retry_after_s=self.settings.poll_s)
        except Exception as error:  # a fault in the runner must not leave a job that never ends
            _log.exception("job %s", job.id)
            result = JobResult(JobState.FAILED, error_code="internal_error", error=type(error).__name__)
        finally:
            progress.discard()  # unless it was finished
        if not progress.lost:
            await self._finish(job, result, progress)

    def _new_progress(self, job: Job) -> StoredProgress:
        return StoredProgress(self._store, self._files, job, self.owner, self._clock, self._notify)

    async def _finish(self, job: Job, result: JobResult, progress: StoredProgress | None = None) -> None:
        """Write the end of a job, and retry until the database is back. The result itself is on disk."""
        self._ending.add(job.id)
        progress, pause_s = progress or self._new_progress(job), 0.1
        while True:
            try:
                return await progress.end(result, self.settings.result_ttl_s)
            except StoreUnavailable:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _MAX_PAUSE_S)

    def _notify(self, job_id: str, state: JobState) -> None:
        for observer in self._observers:
            observer.job_changed(job_id, state)


_CANCELLED = JobResult(JobState.CANCELLED, error_code="cancelled", error="cancelled by its owner")
_EXPIRED = JobResult(JobState.FAILED, error_code="no_capacity", error="no worker took the job in time")
_NO_INPUT = JobResult(JobState.FAILED, error_code="request_lost", error="the job's input is not there")
_LOST = JobResult(
    JobState.UNKNOWN,
    error_code="gateway_lost",
    error="the process ended while a worker was at work on it",
)


def _leave(connection: sa.Connection, owner: str) -> None:
    job_rows.release(connection, owner)
    leave(connection, owner)


def _insert(connection: sa.Connection, job: Job, bounds: TenantBounds) -> None:
    if bounds.jobs is not None and job_rows.active_of(connection, job.tenant) >= bounds.jobs:
        raise TooManyJobs(max(0, bounds.jobs))
    most = bounds.bytes
    if most is not None and job_rows.bytes_of(connection, job.tenant) + job.input_bytes > most:
        raise TooManyBytes(most)
    job_rows.insert(connection, job)


def _alive(
    connection: sa.Connection, owner: str, place: str | None, lease_s: float
) -> tuple[dict[str, bool], list[Job]]:
    """A sign of life, in one transaction with what it is asked with: jobs that are ours, and adopted ones."""
    sign_of_life(connection, owner)
    owned = job_rows.owned(connection, owner)
    return owned, [] if place is None else job_rows.adopt(connection, owner, place, lease_s)


_STRAY_S = 3600.0  # younger files may belong to a job that is being created


async def sweep(store: JobStore, files: JobFiles, place: str, now_s: float, row_ttl_s: float) -> None:
    """Delete expired results, rows of old jobs, and files of no job. Raises StoreUnavailable, OSError."""
    over = await store.read(partial(job_rows.expired, place=place, now_s=now_s))
    for job in over:
        await asyncio.to_thread(files.drop_result, job.result_file)
    if over:
        await store.write(partial(job_rows.without_result, job_ids=[job.id for job in over]))
    await store.write(partial(job_rows.purge, ended_before_s=now_s - row_ttl_s))
    await store.write(partial(forget_silent, after_s=row_ttl_s))
    inputs, results = await store.read(partial(job_rows.known, place=place))
    await asyncio.to_thread(files.sweep, now_s - _STRAY_S, inputs, results)
