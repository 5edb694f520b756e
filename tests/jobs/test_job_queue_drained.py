"""A drain of jobs: who would be lost from sight is waited for, the others are found by the next process."""

from __future__ import annotations

import asyncio
from pathlib import Path

from support.job_queues import HandRunner, opened, reach, settings, spec
from support.waiting import until
from trimtab.jobs import JobState


async def test_a_drain_waits_for_what_was_sent_and_gives_back_what_waits(
    store_url: str, tmp_path: Path
) -> None:
    runner = HandRunner()
    async with opened(store_url, runner, settings(tmp_path / "jobs")) as jobs:
        sent = await jobs.submit(spec(), b"{}")
        await reach(jobs, sent, JobState.DISPATCHED)
        runner.go.clear()
        waiting = await jobs.submit(spec(), b"{}")
        await until(lambda: len(runner.taken) == 2)  # it is claimed
        draining = asyncio.create_task(jobs.drain(60.0))
        late = await jobs.submit(spec(), b"{}")
        await asyncio.sleep(0.1)
        assert not draining.done()
        runner.go.set()
        await asyncio.sleep(0.1)
        assert runner.sent == [sent.id]
        heir_runner = HandRunner()
        heir_runner.finish.set()
        async with opened(store_url, heir_runner, settings(tmp_path / "jobs")) as heir:
            for job in (waiting, late):  # while the first process drains
                await reach(heir, job, JobState.DONE)
        runner.finish.set()
        assert await draining == 0
        await reach(jobs, sent, JobState.DONE)
        assert sorted(heir_runner.sent) == sorted([waiting.id, late.id])


async def test_a_drain_leaves_what_a_backend_knows_by_an_id(store_url: str, tmp_path: Path) -> None:
    runner = HandRunner()
    runner.remote_id = "v1"
    async with opened(store_url, runner, settings(tmp_path / "jobs")) as jobs:
        job = await jobs.submit(spec(), b"{}")
        await reach(jobs, job, JobState.DISPATCHED)
        async with asyncio.timeout(60.0):
            assert await jobs.drain(60.0) == 0
    heir_runner = HandRunner()
    heir_runner.finish.set()
    async with opened(store_url, heir_runner, settings(tmp_path / "jobs")) as heir:
        await reach(heir, job, JobState.DONE)
    assert (runner.sent, heir_runner.sent, heir_runner.resumed) == ([job.id], [], ["v1"])


async def test_a_drain_says_how_many_were_not_done(store_url: str, tmp_path: Path) -> None:
    runner = HandRunner()
    async with opened(store_url, runner, settings(tmp_path / "jobs")) as jobs:
        await reach(jobs, await jobs.submit(spec(), b"{}"), JobState.DISPATCHED)
        assert await jobs.drain(0.1) == 1
