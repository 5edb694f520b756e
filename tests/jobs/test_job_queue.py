"""Jobs and their states, on both databases, with a runner whose backend is the test itself."""

from __future__ import annotations

import asyncio
import io
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from support.job_queues import PARAMETERS, Clock, HandRunner, opened, reach, settings, spec
from support.waiting import until
from trimtab.jobs import (
    Job,
    JobFiles,
    JobQueue,
    JobResult,
    JobState,
    JobStore,
    RunProgress,
    StoreUnavailable,
    TenantBounds,
    TooManyBytes,
    TooManyJobs,
    job_queue,
    job_rows,
)


async def test_a_job_is_kept_dispatched_and_done(store_url: str, tmp_path: Path) -> None:
    runner = HandRunner()
    async with opened(store_url, runner, settings(tmp_path / "jobs")) as jobs:
        runner.go.clear()
        job = await jobs.submit(spec(), b'{"prompt": "x"}')
        assert job.state is JobState.QUEUED
        assert await jobs.position(job) == 1
        staged = JobFiles(tmp_path / "jobs", 0).stage_input(io.BytesIO(b"spooled"))
        second = await jobs.submit(spec(), staged)
        assert await jobs.position(second) == 2
        runner.go.set()
        running = await reach(jobs, job, JobState.DISPATCHED)
        assert (running.worker, running.attempt, running.parameters) == ("n1", 1, PARAMETERS)
        runner.finish.set()
        done = await reach(jobs, job, JobState.DONE)
        path = jobs.result_path(done)
        assert path is not None
        assert path.read_bytes() == b"film"
        assert (done.result_type, done.result_bytes) == ("video/mp4", 4)
        await reach(jobs, second, JobState.DONE)
        assert sorted(runner.inputs) == [b"spooled", b'{"prompt": "x"}']
        assert list((tmp_path / "jobs" / "bodies").iterdir()) == []
        assert await jobs.counts() == {"done": 2}


async def test_a_fault_in_one_turn_does_not_end_the_running_of_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim, faults = job_rows.claim, [RuntimeError("a fault")]

    def faulty(connection: sa.Connection, **how: Any) -> list[Job]:
        if faults:
            raise faults.pop()
        return claim(connection, **how)

    runner = HandRunner()
    runner.finish.set()
    monkeypatch.setattr(job_rows, "claim", faulty)
    async with opened(f"sqlite:///{tmp_path / 'store.db'}", runner, settings(tmp_path / "jobs")) as jobs:
        await reach(jobs, await jobs.submit(spec(), b"{}"), JobState.DONE)
        assert not faults


async def test_a_gateway_without_jobs_writes_its_sign_of_life_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, seen = HandRunner(), Counter[str]()
    for module, name in (
        (job_rows, "found"),
        (job_rows, "claim"),
        (job_rows, "adopt"),
        (job_queue, "sign_of_life"),
    ):
        monkeypatch.setattr(module, name, counted(getattr(module, name), seen, name))
    quick = settings(tmp_path / "jobs", lease_s=2.0, poll_s=0.01)
    async with opened(f"sqlite:///{tmp_path / 'store.db'}", runner, quick) as jobs:
        await until(lambda: seen["sign_of_life"] >= 2)  # the second after half a second
        assert seen["found"] <= seen["sign_of_life"] + 1  # nor does it ask more often
        assert seen["claim"] == 0
        job = await jobs.submit(spec(), b"{}")
        await reach(jobs, job, JobState.DISPATCHED)
        assert seen["claim"] == 1
        signs, adoptions = seen["sign_of_life"], seen["adopt"]
        # At every look now: it has a job
        await until(lambda: seen["sign_of_life"] >= signs + 5 and seen["adopt"] >= adoptions + 5)


def counted(function: Callable[..., Any], seen: Counter[str], name: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        seen[name] += 1
        return function(*args, **kwargs)

    return call


async def test_a_tenant_sees_its_own_jobs_page_by_page(store_url: str, tmp_path: Path) -> None:
    runner, clock = HandRunner(), Clock()
    runner.go.clear()
    async with opened(store_url, runner, settings(tmp_path / "jobs"), clock) as jobs:
        mine = []
        for _ in range(5):
            clock.now_s += 1.0
            mine.append((await jobs.submit(spec(), b"{}")).id)
            await jobs.submit(spec("b"), b"{}")
        newest = [job.id for job in await jobs.list("a", limit=2)]
        rest = [job.id for job in await jobs.list("a", after=newest[-1])]
        assert newest + rest == mine[::-1]
        forward = await jobs.list("a", after=mine[1], oldest_first=True)
        assert [job.id for job in forward] == mine[2:]
        assert await jobs.find(mine[0], "b") is None
        assert await jobs.cancel(mine[0], "b") is None
        assert await jobs.list("a", kind="chat") == []


async def test_models_and_tenants_take_turns(store_url: str, tmp_path: Path) -> None:
    runner = HandRunner()
    async with opened(store_url, runner, settings(tmp_path / "jobs", max_running=0)) as jobs:
        greedy = [await jobs.submit(spec("greedy"), b"{}") for _ in range(4)]
        modest = await jobs.submit(spec("modest"), b"{}")
    async with opened(store_url, runner, settings(tmp_path / "jobs", max_running=2)) as jobs:
        await until(lambda: len(runner.sent) == 2)
        assert modest.id in runner.sent
        assert set(runner.sent) <= {job.id for job in greedy} | {modest.id}
        runner.finish.set()
        await until(lambda: len(runner.sent) == 5)


@pytest.mark.parametrize("stage", ["unclaimed", "waiting", "dispatched", "attached"])
async def test_cancel_in_each_state(store_url: str, tmp_path: Path, stage: str) -> None:
    runner = HandRunner()
    chosen = settings(tmp_path / "jobs", max_running=0 if stage == "unclaimed" else 4)
    async with opened(store_url, runner, chosen) as jobs:
        if stage == "waiting":
            runner.go.clear()
        runner.remote_id = "video_1" if stage == "attached" else ""
        job = await jobs.submit(spec(), b"{}")
        if stage in ("dispatched", "attached"):
            await until(lambda: runner.sent)
            await reach(jobs, job, JobState.DISPATCHED)
        elif stage == "waiting":
            await until(lambda: runner.taken)
        cancelled = await jobs.cancel(job.id, "a")
        assert cancelled is not None
        assert cancelled.state is JobState.CANCELLED
        assert runner.cancelled == ([] if stage == "unclaimed" else [runner.remote_id])
        assert len(runner.sent) == (stage in ("dispatched", "attached"))
        runner.go.set()
        runner.finish.set()
        await asyncio.sleep(0.1)
        assert (await reach(jobs, job, JobState.CANCELLED)).result_file == ""
        again = await jobs.cancel(job.id, "a")
        assert again is not None
        assert again.state is JobState.CANCELLED


async def test_a_done_job_stays_done_when_cancelled_and_goes_when_deleted(
    store_url: str, tmp_path: Path
) -> None:
    runner = HandRunner()
    runner.finish.set()
    async with opened(store_url, runner, settings(tmp_path / "jobs")) as jobs:
        job = await jobs.submit(spec(), b"{}")
        done = await reach(jobs, job, JobState.DONE)
        unchanged = await jobs.cancel(job.id, "a")
        assert unchanged is not None
        assert unchanged.state is JobState.DONE
        await jobs.cancel(job.id, "a", delete=True)
        assert await jobs.find(job.id, "a") is None
        assert await jobs.list("a") == []
        results = tmp_path / "jobs" / "results"
        await until(lambda: not (results / done.result_file).exists())
        await until(lambda: list(results.iterdir()) == [])


async def test_another_gateway_s_job_is_cancelled_through_the_store(store_url: str, tmp_path: Path) -> None:
    first, second = HandRunner(), HandRunner()
    async with (
        opened(store_url, first, settings(tmp_path / "jobs")) as one,
        opened(store_url, second, settings(tmp_path / "jobs", max_running=0)) as two,
    ):
        job = await one.submit(spec(), b"{}")
        await reach(one, job, JobState.DISPATCHED)
        asked = await two.cancel(job.id, "a")
        assert asked is not None
        assert asked.cancel_requested
        await reach(two, job, JobState.CANCELLED)
        assert first.sent == [job.id]


async def test_two_gateways_run_each_job_once(store_url: str, tmp_path: Path) -> None:
    runners = HandRunner(), HandRunner()
    for runner in runners:
        runner.finish.set()
    async with (
        opened(store_url, runners[0], settings(tmp_path / "jobs", max_running=3)) as one,
        opened(store_url, runners[1], settings(tmp_path / "jobs", max_running=3)) as two,
    ):
        submitted = [await (one, two)[n % 2].submit(spec(), b"{}") for n in range(40)]
        for job in submitted:
            await reach(one, job, JobState.DONE)
        sent = runners[0].sent + runners[1].sent
        assert sorted(sent) == sorted(job.id for job in submitted)
        assert runners[0].sent
        assert runners[1].sent


async def test_a_folder_of_another_machine_is_left_alone(store_url: str, tmp_path: Path) -> None:
    here, there = HandRunner(), HandRunner()
    async with (
        opened(store_url, here, settings(tmp_path / "here", max_running=0)) as one,
        opened(store_url, there, settings(tmp_path / "there")) as two,
    ):
        await one.submit(spec(), b"{}")
        job = await two.submit(spec(), b"{}")
        await reach(two, job, JobState.DISPATCHED)
        await asyncio.sleep(0.1)
        assert there.sent == [job.id]


async def test_results_expire_then_rows(store_url: str, tmp_path: Path) -> None:
    runner, clock = HandRunner(), Clock()
    runner.finish.set()
    chosen = settings(tmp_path / "jobs", result_ttl_s=100.0, row_ttl_s=1000.0)
    async with opened(store_url, runner, chosen, clock) as jobs:
        job = await reach(jobs, await jobs.submit(spec(), b"{}"), JobState.DONE)
        assert job.expires_s == clock.now_s + 100.0
        clock.now_s += 101.0
        assert jobs.result_path(job) is None
        await until(lambda: not list((tmp_path / "jobs" / "results").iterdir()))
        kept = await jobs.find(job.id, "a")
        assert kept is not None
        assert kept.state is JobState.DONE
        clock.now_s += 1000.0

        async def is_gone() -> bool:
            return await jobs.find(job.id, "a") is None

        await until(is_gone)


async def test_a_result_above_the_cap_fails_and_leaves_nothing(store_url: str, tmp_path: Path) -> None:
    runner = HandRunner()
    runner.finish.set()
    runner.answer = b"x" * 1001
    async with opened(store_url, runner, settings(tmp_path / "jobs", result_max_bytes=1000)) as jobs:
        job = await reach(jobs, await jobs.submit(spec(), b"{}"), JobState.FAILED)
        assert job.error_code == "result_too_large"
        runner.answer = b"x" * 1000
        await reach(jobs, await jobs.submit(spec(), b"{}"), JobState.DONE)


async def test_a_tenant_has_no_more_active_jobs_than_allowed(store_url: str, tmp_path: Path) -> None:
    runner = HandRunner()
    async with opened(store_url, runner, settings(tmp_path / "jobs", max_active_per_tenant=2)) as jobs:
        first = await jobs.submit(spec(), b"{}")
        await jobs.submit(spec(), b"{}")
        with pytest.raises(TooManyJobs):
            await jobs.submit(spec(), b"{}")
        await jobs.submit(spec("b"), b"{}")
        await jobs.cancel(first.id, "a")
        await jobs.submit(spec(), b"{}")


async def test_a_tenants_inputs_and_results_take_no_more_room_than_allowed(
    store_url: str, tmp_path: Path
) -> None:
    async def until_room(jobs: JobQueue) -> None:
        async def is_taken() -> bool:
            with suppress(TooManyBytes):
                await jobs.submit(spec(), b"x" * 100)
                return True
            return False

        await until(is_taken)

    runner, chosen = HandRunner(), settings(tmp_path / "jobs")
    async with opened(store_url, runner, chosen, bounds=TenantBounds(bytes=1000)) as jobs:
        first = await jobs.submit(spec(), b"x" * 600)
        with pytest.raises(TooManyBytes, match="1000 bytes"):
            await jobs.submit(spec(), b"x" * 500)
        await jobs.submit(spec("b"), b"x" * 500)
        runner.answer = b"y" * 900
        runner.finish.set()
        first = await reach(jobs, first, JobState.DONE)
        assert first.input_bytes == 600
        with pytest.raises(TooManyBytes):  # the input is gone, the result counts
            await jobs.submit(spec(), b"x" * 101)
        second = await jobs.submit(spec(), b"x" * 100)
        await reach(jobs, second, JobState.DONE)  # its result is over the bound: known only at its end
        with pytest.raises(TooManyBytes):
            await jobs.submit(spec(), b"")
        await jobs.cancel(first.id, "a", delete=True)
        await until_room(jobs)


async def test_a_job_waits_while_its_tenants_results_fill_its_room(store_url: str, tmp_path: Path) -> None:
    runner, chosen = HandRunner(), settings(tmp_path / "jobs", max_running=1)
    async with opened(store_url, runner, chosen, bounds=TenantBounds(bytes=100)) as jobs:
        runner.answer = b"y" * 200
        both = [await jobs.submit(spec(), b"x" * 40) for _ in range(2)]
        runner.finish.set()
        await until(lambda: runner.taken)
        served, waits = both if runner.taken == [both[0].id] else both[::-1]  # of one time: either is first
        await reach(jobs, served, JobState.DONE)

        async def is_put_back() -> bool:
            found = await jobs.find(waits.id, "a")
            assert found is not None
            return found.not_before_s > Clock.now_s

        await until(is_put_back)
        other = await jobs.submit(spec("b"), b"x")
        await reach(jobs, other, JobState.DONE)
        assert runner.taken == [served.id, other.id]


async def test_a_job_without_a_node_fails_after_its_time(store_url: str, tmp_path: Path) -> None:
    class NoNode(HandRunner):
        async def run(self, job: Job, progress: RunProgress) -> JobResult:
            self.sent.append(job.id)
            return JobResult(JobState.QUEUED, retry_after_s=5.0)

    runner, clock = NoNode(), Clock()
    async with opened(store_url, runner, settings(tmp_path / "jobs", queue_max_s=60.0), clock) as jobs:
        job = await jobs.submit(spec(), b"{}")
        await until(lambda: runner.sent)
        await asyncio.sleep(0.1)
        assert len(runner.sent) == 1  # it waits
        clock.now_s += 6.0
        await until(lambda: len(runner.sent) == 2)
        clock.now_s += 60.0
        assert (await reach(jobs, job, JobState.FAILED)).error_code == "no_capacity"


async def test_a_full_disk_refuses_jobs_and_keeps_those_that_wait(store_url: str, tmp_path: Path) -> None:
    runner = HandRunner()
    async with opened(store_url, runner, settings(tmp_path / "jobs", max_running=0)) as jobs:
        job = await jobs.submit(spec(), b"{}")
    async with opened(store_url, runner, settings(tmp_path / "jobs", min_free_bytes=1 << 60)) as jobs:
        with pytest.raises(StoreUnavailable, match="full"):
            await jobs.submit(spec(), b"{}")
        await asyncio.sleep(0.1)
        assert (await jobs.list("a"))[0].state is JobState.QUEUED
        assert runner.sent == []
    async with opened(store_url, runner, settings(tmp_path / "jobs"), _Later()) as jobs:
        await reach(jobs, job, JobState.DISPATCHED)


class _Later(Clock):
    now_s = Clock.now_s + 60.0


def _read_only(connection: sa.Connection, on: bool) -> None:
    connection.exec_driver_sql(f"PRAGMA query_only={'ON' if on else 'OFF'}")


async def test_while_the_database_cannot_write_nothing_accepted_is_lost(tmp_path: Path) -> None:
    runner = HandRunner()
    store = JobStore(f"sqlite:///{tmp_path / 'store.db'}")
    async with opened(store, runner, settings(tmp_path / "jobs", max_running=1)) as jobs:
        running = await jobs.submit(spec(), b"{}")
        await reach(jobs, running, JobState.DISPATCHED)
        waiting = await jobs.submit(spec(), b"{}")
        await store.read(lambda connection: _read_only(connection, True))
        with pytest.raises(StoreUnavailable, match="readonly"):
            await jobs.submit(spec(), b"{}")
        runner.finish.set()  # its end cannot be written now
        await asyncio.sleep(0.1)
        assert (await reach(jobs, running, JobState.DISPATCHED)).state is JobState.DISPATCHED
        assert runner.sent == [running.id]
        await store.read(lambda connection: _read_only(connection, False))
        await reach(jobs, running, JobState.DONE)
        await reach(jobs, waiting, JobState.DONE)
        assert runner.sent == [running.id, waiting.id]
        assert await jobs.counts() == {"done": 2}


class LosesAnswers(JobStore):
    """Writes come through, and the caller does not learn of it."""

    loses = False

    async def write(self, work: Callable[[sa.Connection], Any]) -> Any:
        result = await super().write(work)
        if self.loses:
            raise StoreUnavailable("the connection closed")
        return result


async def test_a_refused_submission_whose_insert_came_through_never_runs(
    store_url: str, tmp_path: Path
) -> None:
    runner, store = HandRunner(), LosesAnswers(store_url)
    async with opened(store, runner, settings(tmp_path / "jobs", max_running=0)) as jobs:
        await until(lambda: store.available)
        store.loses = True
        with pytest.raises(StoreUnavailable):
            await jobs.submit(spec(), b"{}")
        store.loses = False
    async with opened(store_url, runner, settings(tmp_path / "jobs")) as jobs:
        async with asyncio.timeout(60):
            while not (found := await jobs.list("a")) or found[0].state is JobState.QUEUED:
                await asyncio.sleep(0.01)
        assert found[0].error_code == "request_lost"
        assert runner.sent == []


async def test_a_stopped_gateway_leaves_its_jobs_to_the_next(store_url: str, tmp_path: Path) -> None:
    first, second = HandRunner(), HandRunner()
    chosen = settings(tmp_path / "jobs", lease_s=3600.0)  # nobody waits for it after an orderly end
    first.remote_id = "video_7"
    async with opened(store_url, first, chosen) as jobs:
        at_backend = await jobs.submit(spec(), b"{}")
        await reach(jobs, at_backend, JobState.DISPATCHED)
        await until(lambda: first.sent)
        await asyncio.sleep(0.05)
        first.go.clear()
        queued = await jobs.submit(spec(), b"{}")
    second.finish.set()
    async with opened(store_url, second, chosen) as jobs:
        await reach(jobs, at_backend, JobState.DONE)
        await reach(jobs, queued, JobState.DONE)
        assert second.resumed == ["video_7"]
        assert second.sent == [queued.id]
