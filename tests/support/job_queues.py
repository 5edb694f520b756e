"""A queue of jobs whose worker is the test itself."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from support.waiting import until
from trimtab.jobs import (
    Job,
    JobQueue,
    JobResult,
    JobSettings,
    JobSpec,
    JobState,
    JobStore,
    RunProgress,
    TenantBounds,
    TooLarge,
)

PARAMETERS = {"seconds": 4.0, "blocks": [1, 2**62]}


def spec(tenant: str = "a", queue: str = "m") -> JobSpec:
    return JobSpec(tenant, queue, "video", "make_video", "application/json", PARAMETERS, {"size": "small"})


class HandRunner:
    """Does no work; the test says when each job is done."""

    def __init__(self) -> None:
        self.taken: list[str] = []  # by `run`, whether or not a worker was free
        self.sent: list[str] = []
        self.inputs: list[bytes] = []
        self.resumed: list[str] = []
        self.cancelled: list[str] = []
        self.go = asyncio.Event()  # there is a free worker
        self.go.set()
        self.finish = asyncio.Event()  # the worker is done
        self.idempotent = False
        self.remote_id = ""
        self.answer = b"film"

    async def run(self, job: Job, progress: RunProgress) -> JobResult:
        self.taken.append(job.id)
        await self.go.wait()
        if not await progress.started("n1", self.idempotent):
            return JobResult(JobState.CANCELLED)
        self.sent.append(job.id)
        self.inputs.append(progress.input.read_bytes())
        if self.remote_id:
            await progress.attached(self.remote_id)
        return await self._end(progress)

    async def resume(self, job: Job, progress: RunProgress) -> JobResult:
        self.resumed.append(job.remote_id)
        return await self._end(progress)

    async def cancel(self, job: Job) -> None:
        self.cancelled.append(job.remote_id)

    async def _end(self, progress: RunProgress) -> JobResult:
        await self.finish.wait()
        file = progress.result("video/mp4")
        try:
            file.write(self.answer)
        except TooLarge:
            return JobResult(JobState.FAILED, error_code="result_too_large", error="too large")
        return JobResult(JobState.DONE, file=file.finish())


class Clock:
    now_s = 1_000_000.0

    def __call__(self) -> float:
        return self.now_s


def settings(folder: Path, **changes: object) -> JobSettings:
    quick = JobSettings(folder=folder, poll_s=0.02, lease_s=5.0, sweep_s=0.02, min_free_bytes=0)
    return dataclasses.replace(quick, **changes)  # type: ignore[arg-type]


@asynccontextmanager
async def opened(
    at: str | JobStore,
    runner: HandRunner,
    chosen: JobSettings,
    clock: Clock | None = None,
    bounds: TenantBounds | None = None,
) -> AsyncIterator[JobQueue]:
    """A queue on a store, or at the URL of one."""
    store = JobStore(at) if isinstance(at, str) else at
    await store.open()
    of_tenant = None if bounds is None else lambda _: bounds
    jobs = JobQueue(store, runner, chosen, bounds=of_tenant, clock=clock or Clock())
    await jobs.open()
    try:
        yield jobs
    finally:
        await jobs.close()
        await store.close()


async def reach(jobs: JobQueue, job: Job, state: JobState) -> Job:
    async def reached() -> Job | None:
        found = await jobs.find(job.id, job.tenant)
        assert found is not None
        return found if found.state is state else None

    found = await until(reached, f"the job is {state.value}")
    assert found is not None
    return found
