"""A process that runs a Python function as a job: `function_jobs.py URL FOLDER LOG WAIT_AT [LAST]`.

A job adds up the squares from 1 to LAST, one step at a time, and keeps a checkpoint. The process logs each
step; at step WAIT_AT (0 = never) it waits to be killed. With LAST it submits a job first.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from trimtab.jobs import (
    ACTIVE,
    Job,
    JobQueue,
    JobResult,
    JobSettings,
    JobSpec,
    JobState,
    JobStore,
    RunProgress,
)


class SquaresRunner:
    """A job's name at its worker is the number of its checkpoint file."""

    def __init__(self, folder: Path, log: Path, wait_at: int) -> None:
        self._folder, self._log, self._wait_at = folder, log, wait_at

    async def run(self, job: Job, progress: RunProgress) -> JobResult:
        last = int(progress.input.read_text())
        if not await progress.started("this machine", idempotent=False):
            return JobResult(JobState.CANCELLED)
        self._checkpoint(job).write_text(f"0 0 {last}")
        await progress.attached(job.id)
        return await self.resume(job, progress)

    async def resume(self, job: Job, progress: RunProgress) -> JobResult:
        done, total, last = map(int, self._checkpoint(job).read_text().split())
        for step in range(done + 1, last + 1):
            if step == self._wait_at:
                self._say("waits")
                await asyncio.Event().wait()
            self._say(f"step {step}")
            total += step * step
            self._checkpoint(job).write_text(f"{step} {total} {last}")
        result = progress.result("text/plain")
        result.write(str(total).encode())
        return JobResult(JobState.DONE, file=result.finish())

    async def cancel(self, job: Job) -> None:
        self._checkpoint(job).unlink(missing_ok=True)

    def _checkpoint(self, job: Job) -> Path:
        return self._folder / f"{job.id}.checkpoint"

    def _say(self, line: str) -> None:
        with self._log.open("a") as log:
            log.write(f"{line}\n")


async def main(url: str, folder: Path, log: Path, wait_at: int, last: str) -> None:
    store = JobStore(url)
    await store.open()
    settings = JobSettings(folder / "jobs", lease_s=1.0, poll_s=0.05, min_free_bytes=0)
    queue = JobQueue(store, SquaresRunner(folder, log, wait_at), settings)
    await queue.open()
    if last:
        await queue.submit(JobSpec("me", "sums", "function", "squares"), last.encode())
    while any(job.state in ACTIVE for job in await queue.list("me")):
        await asyncio.sleep(0.02)
    for job in await queue.list("me"):
        path = queue.result_path(job)
        print(job.state.value, "" if path is None else path.read_text())
    await queue.close()
    await store.close()


if __name__ == "__main__":
    asyncio.run(
        main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]), "".join(sys.argv[5:]))
    )
