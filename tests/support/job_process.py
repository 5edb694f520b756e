"""A process with jobs, to be killed: `job_process.py URL FOLDER LOG STAGE COUNT`.

It submits COUNT jobs, and appends to LOG what reaches the worker. STAGE: where its jobs stop.
"""

from __future__ import annotations

import asyncio
import io
import random
import sys
from pathlib import Path

from trimtab.jobs import (
    Job,
    JobFiles,
    JobQueue,
    JobResult,
    JobSettings,
    JobSpec,
    JobState,
    JobStore,
    RunProgress,
)

BODY = random.Random(1).randbytes(2 << 20)


class LoggingRunner:
    """A worker that is a file."""

    def __init__(self, log: Path, stage: str) -> None:
        self._log, self._stage = log, stage

    def _say(self, *words: str) -> None:
        with self._log.open("a") as log:
            log.write(" ".join(words) + "\n")

    async def _stop_at(self, stage: str) -> None:
        if self._stage == stage:
            self._say("at", stage)
            await asyncio.Event().wait()

    async def run(self, job: Job, progress: RunProgress) -> JobResult:
        await self._stop_at("queued")
        assert await progress.started("n1", self._stage == "idempotent")
        assert progress.input.read_bytes() == BODY
        self._say("sent", job.id)
        await self._stop_at("dispatched")
        await self._stop_at("idempotent")
        await progress.attached("video_1")
        await self._stop_at("attached")
        return await self.resume(job, progress)

    async def resume(self, job: Job, progress: RunProgress) -> JobResult:
        self._say("resumed", job.id)
        file = progress.result("video/mp4")
        file.write(b"film")
        stored = file.finish()
        await self._stop_at("finished")
        return JobResult(JobState.DONE, file=stored)

    async def cancel(self, job: Job) -> None:
        self._say("cancelled", job.id)


async def main(url: str, folder: str, log: str, stage: str, count: int) -> None:
    store = JobStore(url)
    await store.open()
    settings = JobSettings(Path(folder), lease_s=1.0, poll_s=0.05, min_free_bytes=0)
    jobs = JobQueue(store, LoggingRunner(Path(log), stage), settings)
    await jobs.open()
    for _ in range(count):
        spec = JobSpec("a", "m", "video", "make_video", id_prefix="video")
        staged = JobFiles(settings.folder, settings.result_max_bytes).stage_input(io.BytesIO(BODY))
        await jobs.submit(spec, staged)
    async with asyncio.timeout(60):
        while True:
            await asyncio.sleep(0.05)
            counts = await jobs.counts()
            if not stage and not counts.keys() & {"queued", "dispatched"}:
                break
    await jobs.close()
    await store.close()
    print(counts, flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:5], int(sys.argv[5])))
