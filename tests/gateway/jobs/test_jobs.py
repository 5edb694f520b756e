"""Jobs and their states, on both databases, with a runner whose backend is the test itself."""

from __future__ import annotations

import asyncio
import dataclasses
import io
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from support.waiting import until
from trimtab.gateway.jobs import manager, rows
from trimtab.gateway.jobs.job import Delivery, Job, JobResult, State
from trimtab.gateway.jobs.manager import Jobs, JobSettings, TooManyJobs
from trimtab.gateway.jobs.order import Order
from trimtab.gateway.jobs.results import JobFiles, TooLarge
from trimtab.gateway.model import Facts
from trimtab.gateway.store.errors import StoreUnavailable
from trimtab.gateway.store.store import Store

FACTS = Facts(model="m", video_s=4.0, prefix_blocks=(1, 2**62))


def order(tenant: str = "a", model: str = "m") -> Order:
    return Order(tenant, model, "video", "POST", "/v1/videos", "application/json", FACTS, {"seconds": "4"})


class HandRunner:
    """Sends jobs to nobody; the test says when each is done."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.bodies: list[bytes] = []
        self.polled: list[str] = []
        self.cancelled: list[str] = []
        self.go = asyncio.Event()  # the dispatcher has a node
        self.go.set()
        self.finish = asyncio.Event()  # the backend is done
        self.idempotent = False
        self.backend_id = ""
        self.answer = b"film"

    async def run(self, job: Job, deliver: Delivery) -> JobResult:
        await self.go.wait()
        if not await deliver.dispatched("n1", self.idempotent):
            return JobResult(State.CANCELLED)
        self.sent.append(job.id)
        self.bodies.append(deliver.body.read_bytes())
        if self.backend_id:
            await deliver.attached(self.backend_id)
        return await self._end(deliver)

    async def poll(self, job: Job, deliver: Delivery) -> JobResult:
        self.polled.append(job.backend_job_id)
        return await self._end(deliver)

    async def cancel(self, job: Job) -> None:
        self.cancelled.append(job.backend_job_id)

    async def _end(self, deliver: Delivery) -> JobResult:
        await self.finish.wait()
        file = deliver.result("video/mp4")
        try:
            file.write(self.answer)
        except TooLarge:
            return JobResult(State.FAILED, error_code="result_too_large", error="too large")
        return JobResult(State.DONE, file=file.finish())


class Clock:
    now_s = 1_000_000.0

    def __call__(self) -> float:
        return self.now_s


def settings(folder: Path, **changes: object) -> JobSettings:
    quick = JobSettings(folder=folder, poll_s=0.02, lease_s=5.0, sweep_s=0.02, min_free_bytes=0)
    return dataclasses.replace(quick, **changes)  # type: ignore[arg-type]


@asynccontextmanager
async def opened(
    url: str, runner: HandRunner, chosen: JobSettings, clock: Clock | None = None
) -> AsyncIterator[Jobs]:
    store = Store(url)
    await store.open()
    jobs = Jobs(store, runner, chosen, clock=clock or Clock())
    await jobs.open()
    try:
        yield jobs
    finally:
        await jobs.close()
        await store.close()


async def reach(jobs: Jobs, job: Job, state: State) -> Job:
    async with asyncio.timeout(60):
        while True:
            found = await jobs.find(job.id, job.tenant)
            assert found is not None
            if found.state is state:
                return found
            await asyncio.sleep(0.01)


def test_a_job_is_kept_dispatched_and_done(store_url: str, tmp_path: Path) -> None:
    async def main() -> None:
        runner = HandRunner()
        async with opened(store_url, runner, settings(tmp_path / "jobs")) as jobs:
            runner.go.clear()
            job = await jobs.submit(order(), b'{"prompt": "x"}')
            assert job.state is State.QUEUED
            assert await jobs.position(job) == 1
            staged = JobFiles(tmp_path / "jobs", 0).stage_body(io.BytesIO(b"spooled"))
            second = await jobs.submit(order(), staged)
            assert await jobs.position(second) == 2
            runner.go.set()
            running = await reach(jobs, job, State.DISPATCHED)
            assert (running.node, running.attempt, running.facts) == ("n1", 1, FACTS)
            runner.finish.set()
            done = await reach(jobs, job, State.DONE)
            path = jobs.result_path(done)
            assert path is not None
            assert path.read_bytes() == b"film"
            assert (done.result_type, done.result_bytes) == ("video/mp4", 4)
            await reach(jobs, second, State.DONE)
            assert sorted(runner.bodies) == [b"spooled", b'{"prompt": "x"}']
            assert list((tmp_path / "jobs" / "bodies").iterdir()) == []
            assert await jobs.counts() == {"done": 2}

    asyncio.run(main())


def test_a_fault_in_one_turn_does_not_end_the_running_of_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim, faults = rows.claim, [RuntimeError("a fault")]

    def faulty(connection: sa.Connection, **how: Any) -> list[Job]:
        if faults:
            raise faults.pop()
        return claim(connection, **how)

    async def main() -> None:
        runner = HandRunner()
        runner.finish.set()
        monkeypatch.setattr(rows, "claim", faulty)
        async with opened(f"sqlite:///{tmp_path / 'store.db'}", runner, settings(tmp_path / "jobs")) as jobs:
            await reach(jobs, await jobs.submit(order(), b"{}"), State.DONE)
            assert not faults

    asyncio.run(main())


def test_a_gateway_without_jobs_writes_its_sign_of_life_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        runner, seen = HandRunner(), Counter[str]()
        for module, name in ((rows, "found"), (rows, "claim"), (rows, "adopt"), (manager, "sign_of_life")):
            monkeypatch.setattr(module, name, counted(getattr(module, name), seen, name))
        quick = settings(tmp_path / "jobs", lease_s=2.0, poll_s=0.01)
        async with opened(f"sqlite:///{tmp_path / 'store.db'}", runner, quick) as jobs:
            await until(lambda: seen["sign_of_life"] >= 2)  # the second after half a second
            assert seen["found"] <= seen["sign_of_life"] + 1  # nor does it ask more often
            assert seen["claim"] == 0
            job = await jobs.submit(order(), b"{}")
            await reach(jobs, job, State.DISPATCHED)
            assert seen["claim"] == 1
            signs, adoptions = seen["sign_of_life"], seen["adopt"]
            await until(lambda: seen["sign_of_life"] >= signs + 5)  # at every look now: it has a job
            assert seen["adopt"] >= adoptions + 5

    asyncio.run(main())


def counted(function: Callable[..., Any], seen: Counter[str], name: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        seen[name] += 1
        return function(*args, **kwargs)

    return call


def test_a_tenant_sees_its_own_jobs_page_by_page(store_url: str, tmp_path: Path) -> None:
    async def main() -> None:
        runner, clock = HandRunner(), Clock()
        runner.go.clear()
        async with opened(store_url, runner, settings(tmp_path / "jobs"), clock) as jobs:
            mine = []
            for _ in range(5):
                clock.now_s += 1.0
                mine.append((await jobs.submit(order(), b"{}")).id)
                await jobs.submit(order("b"), b"{}")
            newest = [job.id for job in await jobs.list("a", limit=2)]
            rest = [job.id for job in await jobs.list("a", after=newest[-1])]
            assert newest + rest == mine[::-1]
            forward = await jobs.list("a", after=mine[1], oldest_first=True)
            assert [job.id for job in forward] == mine[2:]
            assert await jobs.find(mine[0], "b") is None
            assert await jobs.cancel(mine[0], "b") is None
            assert await jobs.list("a", kind="chat") == []

    asyncio.run(main())


def test_models_and_tenants_take_turns(store_url: str, tmp_path: Path) -> None:
    async def main() -> None:
        runner = HandRunner()
        store = Store(store_url)
        await store.open()
        jobs = Jobs(store, runner, settings(tmp_path / "jobs", max_running=2), clock=Clock())
        jobs._place = await asyncio.to_thread(jobs._files.open)  # not opened yet: nothing is claimed
        greedy = [await jobs.submit(order("greedy"), b"{}") for _ in range(4)]
        modest = await jobs.submit(order("modest"), b"{}")
        await jobs.open()
        await until(lambda: len(runner.sent) == 2)
        assert modest.id in runner.sent
        assert set(runner.sent) <= {job.id for job in greedy} | {modest.id}
        runner.finish.set()
        await until(lambda: len(runner.sent) == 5)
        await jobs.close()
        await store.close()

    asyncio.run(main())


@pytest.mark.parametrize("stage", ["unclaimed", "waiting", "dispatched", "attached"])
def test_cancel_in_each_state(store_url: str, tmp_path: Path, stage: str) -> None:
    async def main() -> None:
        runner = HandRunner()
        chosen = settings(tmp_path / "jobs", max_running=0 if stage == "unclaimed" else 4)
        async with opened(store_url, runner, chosen) as jobs:
            if stage == "waiting":
                runner.go.clear()
            runner.backend_id = "video_1" if stage == "attached" else ""
            job = await jobs.submit(order(), b"{}")
            if stage in ("dispatched", "attached"):
                await until(lambda: runner.sent)
                await reach(jobs, job, State.DISPATCHED)
            elif stage == "waiting":
                await until(lambda: jobs._running)
            cancelled = await jobs.cancel(job.id, "a")
            assert cancelled is not None
            assert cancelled.state is State.CANCELLED
            assert runner.cancelled == ([] if stage == "unclaimed" else [runner.backend_id])
            assert len(runner.sent) == (stage in ("dispatched", "attached"))
            runner.go.set()
            runner.finish.set()
            await asyncio.sleep(0.1)
            assert (await reach(jobs, job, State.CANCELLED)).result_file == ""
            again = await jobs.cancel(job.id, "a")
            assert again is not None
            assert again.state is State.CANCELLED

    asyncio.run(main())


def test_a_done_job_stays_done_when_cancelled_and_goes_when_deleted(store_url: str, tmp_path: Path) -> None:
    async def main() -> None:
        runner = HandRunner()
        runner.finish.set()
        async with opened(store_url, runner, settings(tmp_path / "jobs")) as jobs:
            job = await jobs.submit(order(), b"{}")
            done = await reach(jobs, job, State.DONE)
            unchanged = await jobs.cancel(job.id, "a")
            assert unchanged is not None
            assert unchanged.state is State.DONE
            await jobs.cancel(job.id, "a", delete=True)
            assert await jobs.find(job.id, "a") is None
            assert await jobs.list("a") == []
            results = tmp_path / "jobs" / "results"
            await until(lambda: not (results / done.result_file).exists())
            await until(lambda: list(results.iterdir()) == [])

    asyncio.run(main())


def test_another_gateway_s_job_is_cancelled_through_the_store(store_url: str, tmp_path: Path) -> None:
    async def main() -> None:
        first, second = HandRunner(), HandRunner()
        async with (
            opened(store_url, first, settings(tmp_path / "jobs")) as one,
            opened(store_url, second, settings(tmp_path / "jobs", max_running=0)) as two,
        ):
            job = await one.submit(order(), b"{}")
            await reach(one, job, State.DISPATCHED)
            asked = await two.cancel(job.id, "a")
            assert asked is not None
            assert asked.cancel_requested
            await reach(two, job, State.CANCELLED)
            assert first.sent == [job.id]

    asyncio.run(main())


def test_two_gateways_run_each_job_once(store_url: str, tmp_path: Path) -> None:
    async def main() -> None:
        runners = HandRunner(), HandRunner()
        for runner in runners:
            runner.finish.set()
        async with (
            opened(store_url, runners[0], settings(tmp_path / "jobs", max_running=3)) as one,
            opened(store_url, runners[1], settings(tmp_path / "jobs", max_running=3)) as two,
        ):
            submitted = [await (one, two)[n % 2].submit(order(), b"{}") for n in range(40)]
            for job in submitted:
                await reach(one, job, State.DONE)
            sent = runners[0].sent + runners[1].sent
            assert sorted(sent) == sorted(job.id for job in submitted)
            assert runners[0].sent
            assert runners[1].sent

    asyncio.run(main())


def test_a_folder_of_another_machine_is_left_alone(store_url: str, tmp_path: Path) -> None:
    async def main() -> None:
        here, there = HandRunner(), HandRunner()
        async with (
            opened(store_url, here, settings(tmp_path / "here", max_running=0)) as one,
            opened(store_url, there, settings(tmp_path / "there")) as two,
        ):
            await one.submit(order(), b"{}")
            job = await two.submit(order(), b"{}")
            await reach(two, job, State.DISPATCHED)
            await asyncio.sleep(0.1)
            assert there.sent == [job.id]

    asyncio.run(main())


def test_results_expire_then_rows(store_url: str, tmp_path: Path) -> None:
    async def main() -> None:
        runner, clock = HandRunner(), Clock()
        runner.finish.set()
        chosen = settings(tmp_path / "jobs", result_ttl_s=100.0, row_ttl_s=1000.0)
        async with opened(store_url, runner, chosen, clock) as jobs:
            job = await reach(jobs, await jobs.submit(order(), b"{}"), State.DONE)
            assert job.expires_s == clock.now_s + 100.0
            clock.now_s += 101.0
            assert jobs.result_path(job) is None
            await until(lambda: not list((tmp_path / "jobs" / "results").iterdir()))
            kept = await jobs.find(job.id, "a")
            assert kept is not None
            assert kept.state is State.DONE
            clock.now_s += 1000.0
            async with asyncio.timeout(60):
                while await jobs.find(job.id, "a") is not None:
                    await asyncio.sleep(0.01)

    asyncio.run(main())


def test_a_result_above_the_cap_fails_and_leaves_nothing(store_url: str, tmp_path: Path) -> None:
    async def main() -> None:
        runner = HandRunner()
        runner.finish.set()
        runner.answer = b"x" * 1001
        async with opened(store_url, runner, settings(tmp_path / "jobs", result_max_bytes=1000)) as jobs:
            job = await reach(jobs, await jobs.submit(order(), b"{}"), State.FAILED)
            assert job.error_code == "result_too_large"
            runner.answer = b"x" * 1000
            await reach(jobs, await jobs.submit(order(), b"{}"), State.DONE)

    asyncio.run(main())


def test_a_tenant_has_no_more_active_jobs_than_allowed(store_url: str, tmp_path: Path) -> None:
    async def main() -> None:
        runner = HandRunner()
        async with opened(store_url, runner, settings(tmp_path / "jobs", max_active_per_tenant=2)) as jobs:
            first = await jobs.submit(order(), b"{}")
            await jobs.submit(order(), b"{}")
            with pytest.raises(TooManyJobs):
                await jobs.submit(order(), b"{}")
            await jobs.submit(order("b"), b"{}")
            await jobs.cancel(first.id, "a")
            await jobs.submit(order(), b"{}")

    asyncio.run(main())


def test_a_job_without_a_node_fails_after_its_time(store_url: str, tmp_path: Path) -> None:
    async def main() -> None:
        class NoNode(HandRunner):
            async def run(self, job: Job, deliver: Delivery) -> JobResult:
                self.sent.append(job.id)
                return JobResult(State.QUEUED, retry_after_s=5.0)

        runner, clock = NoNode(), Clock()
        async with opened(store_url, runner, settings(tmp_path / "jobs", queue_max_s=60.0), clock) as jobs:
            job = await jobs.submit(order(), b"{}")
            await until(lambda: runner.sent)
            await asyncio.sleep(0.1)
            assert len(runner.sent) == 1  # it waits
            clock.now_s += 6.0
            await until(lambda: len(runner.sent) == 2)
            clock.now_s += 60.0
            assert (await reach(jobs, job, State.FAILED)).error_code == "no_capacity"

    asyncio.run(main())


def test_a_full_disk_refuses_jobs_and_keeps_those_that_wait(store_url: str, tmp_path: Path) -> None:
    async def main() -> None:
        runner = HandRunner()
        async with opened(store_url, runner, settings(tmp_path / "jobs", max_running=0)) as jobs:
            job = await jobs.submit(order(), b"{}")
        async with opened(store_url, runner, settings(tmp_path / "jobs", min_free_bytes=1 << 60)) as jobs:
            with pytest.raises(StoreUnavailable, match="full"):
                await jobs.submit(order(), b"{}")
            await asyncio.sleep(0.1)
            assert (await jobs.list("a"))[0].state is State.QUEUED
            assert runner.sent == []
        async with opened(store_url, runner, settings(tmp_path / "jobs"), _Later()) as jobs:
            await reach(jobs, job, State.DISPATCHED)

    asyncio.run(main())


class _Later(Clock):
    now_s = Clock.now_s + 60.0


def _read_only(connection: sa.Connection, on: bool) -> None:
    connection.exec_driver_sql(f"PRAGMA query_only={'ON' if on else 'OFF'}")


def test_while_the_database_cannot_write_nothing_accepted_is_lost(tmp_path: Path) -> None:
    async def main() -> None:
        runner = HandRunner()
        url = f"sqlite:///{tmp_path / 'store.db'}"
        async with opened(url, runner, settings(tmp_path / "jobs", max_running=1)) as jobs:
            running = await jobs.submit(order(), b"{}")
            await reach(jobs, running, State.DISPATCHED)
            waiting = await jobs.submit(order(), b"{}")
            await jobs._store.read(lambda connection: _read_only(connection, True))
            with pytest.raises(StoreUnavailable, match="readonly"):
                await jobs.submit(order(), b"{}")
            runner.finish.set()  # its end cannot be written now
            await asyncio.sleep(0.1)
            assert (await reach(jobs, running, State.DISPATCHED)).state is State.DISPATCHED
            assert runner.sent == [running.id]
            await jobs._store.read(lambda connection: _read_only(connection, False))
            await reach(jobs, running, State.DONE)
            await reach(jobs, waiting, State.DONE)
            assert runner.sent == [running.id, waiting.id]
            assert await jobs.counts() == {"done": 2}

    asyncio.run(main())


def test_a_refused_submission_whose_insert_came_through_never_runs(store_url: str, tmp_path: Path) -> None:
    async def main() -> None:
        runner = HandRunner()
        async with opened(store_url, runner, settings(tmp_path / "jobs")) as jobs:
            write = jobs._store.write

            async def loses_the_answer(work: object) -> object:
                await write(work)  # type: ignore[arg-type]
                raise StoreUnavailable("the connection closed")

            jobs._store.write = loses_the_answer  # type: ignore[method-assign, assignment]
            task = asyncio.ensure_future(jobs.submit(order(), b"{}"))
            with pytest.raises(StoreUnavailable):
                await task
            jobs._store.write = write  # type: ignore[method-assign]
            async with asyncio.timeout(60):
                while not (found := await jobs.list("a")) or found[0].state is State.QUEUED:
                    await asyncio.sleep(0.01)
            assert found[0].error_code == "request_lost"
            assert runner.sent == []

    asyncio.run(main())


def test_a_stopped_gateway_leaves_its_jobs_to_the_next(store_url: str, tmp_path: Path) -> None:
    async def main() -> None:
        first, second = HandRunner(), HandRunner()
        chosen = settings(tmp_path / "jobs", lease_s=3600.0)  # nobody waits for it after an orderly end
        first.backend_id = "video_7"
        async with opened(store_url, first, chosen) as jobs:
            at_backend = await jobs.submit(order(), b"{}")
            await reach(jobs, at_backend, State.DISPATCHED)
            await until(lambda: first.sent)
            await asyncio.sleep(0.05)
            first.go.clear()
            queued = await jobs.submit(order(), b"{}")
        second.finish.set()
        async with opened(store_url, second, chosen) as jobs:
            await reach(jobs, at_backend, State.DONE)
            await reach(jobs, queued, State.DONE)
            assert second.polled == ["video_7"]
            assert second.sent == [queued.id]

    asyncio.run(main())
