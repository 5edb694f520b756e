"""Bodies above 1 MiB that become jobs: on disk before the answer, relayed from there, gone at the end."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from support.gateway.plane import Plane, gateway, read_request
from support.waiting import until
from trimtab.gateway.api.endpoints import Endpoints
from trimtab.gateway.config.routes import RouteSpec, resolved
from trimtab.gateway.http.connection_context import LocalAnswer, Settings
from trimtab.gateway.http.proxied_exchange import ProxiedExchange
from trimtab.gateway.job_api.job_handlers import JobRequest, JobsApi
from trimtab.gateway.job_api.job_requests import JobRequestReader
from trimtab.gateway.job_api.node_runner import NodeJobs, NodeRunner, RunnerSettings, Surroundings
from trimtab.gateway.model import Refusal, Tenant
from trimtab.gateway.tenancy.admission import Admission
from trimtab.jobs import JobFiles, JobInput, JobQueue, JobSettings, JobState, JobStore, StagedInput, job_files

MIB = 1 << 20
TENANT = Tenant("t", 0)
PICTURE = random.Random(7).randbytes(3 * MIB)
FORM = (
    b'--B\r\nContent-Disposition: form-data; name="input_reference"; filename="a.png"\r\n\r\n%b\r\n'
    b'--B\r\nContent-Disposition: form-data; name="seconds"\r\n\r\n8\r\n'
    b'--B\r\nContent-Disposition: form-data; name="model"\r\n\r\nfilm\r\n--B--\r\n' % PICTURE
)


class Maker:
    """A backend that makes a film of each form, when it is let."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.go = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head, body = await read_request(reader)
        assert b"content-type: multipart/form-data; boundary=b\r\n" in head.lower()
        self.seen.append(body)
        await self.go.wait()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: video/mp4\r\ncontent-length: 4\r\n\r\nfilm")
        await writer.drain()


class Made:
    """What a test holds."""

    def __init__(self, plane: Plane, jobs: JobQueue, maker: Maker, folder: Path) -> None:
        self.plane, self.jobs, self.maker = plane, jobs, maker
        self._folder = folder

    @property
    def bodies(self) -> list[Path]:
        return sorted((self._folder / "bodies").iterdir())

    async def send(self, path: bytes = b"/v1/videos", body: bytes = FORM) -> tuple[bytes, dict[str, Any]]:
        """Head and JSON of the answer to a form."""
        answer = await self.plane.raw(request(path, body))
        head, _, said = answer.partition(b"\r\n\r\n")
        return head, orjson.loads(said)

    async def reach(self, job_id: str, state: JobState) -> None:
        async def is_reached() -> bool:
            job = await self.jobs.find(job_id, "t")
            return job is not None and job.state is state

        await until(is_reached, f"the job is {state.value}")


def request(path: bytes = b"/v1/videos", body: bytes = FORM) -> bytes:
    return (
        b"POST %b HTTP/1.1\r\nhost: g\r\nauthorization: Bearer k\r\nconnection: close\r\n"
        b"content-type: multipart/form-data; boundary=B\r\ncontent-length: %d\r\n\r\n%b"
    ) % (path, len(body), body)


@asynccontextmanager
async def opened(folder: Path, min_free_bytes: int = 0, max_active: int = 100) -> AsyncIterator[Made]:
    """A data plane, jobs, and a backend that takes them; all of it in one process."""
    maker, endpoints = Maker(), Endpoints()
    look = Admission(endpoints, lambda _: TENANT, jobs=True)
    async with gateway(maker.serve, look=look, settings=Settings(body_bytes=4 * MIB)) as g:
        around = Surroundings(
            node=lambda name: next((n for n in g.dispatcher.nodes if n.name == name), None),
            declared=lambda _: NodeJobs(),
            tenant=lambda _: TENANT,
            endpoint=endpoints.find,
        )
        runner = NodeRunner(g.dispatcher, around, RunnerSettings(again_s=0.05))
        store = JobStore(f"sqlite:///{folder / 'store.db'}")
        await store.open()
        settings = JobSettings(
            folder, poll_s=0.02, sweep_s=0.02, min_free_bytes=min_free_bytes, max_active_per_tenant=max_active
        )
        jobs = JobQueue(store, runner, settings)
        await jobs.open()
        api, intake = JobsApi(jobs), JobRequestReader(settings)

        async def send(asked: JobRequest, body: JobInput) -> LocalAnswer | Refusal:
            return await (api.answer if asked.facts is None else api.submit)(asked, body)

        async def local(exchange: ProxiedExchange, body: bytes) -> LocalAnswer | Refusal:
            return await intake.answer(exchange, body, send)

        g.context.local = local
        try:
            yield Made(g, jobs, maker, folder)
        finally:
            maker.go.set()
            await jobs.close()
            await runner.close()
            await store.close()


@pytest.mark.parametrize("path", [b"/v1/videos", b"/v1/images/edits"])
async def test_a_long_upload_is_on_disk_when_it_is_accepted(tmp_path: Path, path: bytes) -> None:
    async with opened(tmp_path) as made:
        if path == b"/v1/videos":
            head, job = await made.send()
            assert (job["status"], job["seconds"], job["model"]) == ("queued", "8", "film")
        else:
            asked = request(path).replace(b"host: g", b"host: g\r\nprefer: respond-async")
            head, _, said = (await made.plane.raw(asked)).partition(b"\r\n\r\n")
            job = orjson.loads(said)
            assert head.startswith(b"HTTP/1.1 202 ")
        (body,) = made.bodies
        assert body.name == job["id"]
        assert body.read_bytes() == FORM
        made.maker.go.set()
        await made.reach(job["id"], JobState.DONE)
        assert made.maker.seen == [FORM]
        await until(lambda: not made.bodies)


async def test_a_long_upload_by_an_alias_names_the_model_on_disk(tmp_path: Path) -> None:
    async with opened(tmp_path) as made:
        made.plane.context.admission.routes = resolved(
            {"movie": RouteSpec.model_validate({"targets": "film"})}
        )
        _, job = await made.send(body=FORM.replace(b"\r\n\r\nfilm\r\n", b"\r\n\r\nmovie\r\n"))
        assert job["model"] == "film"
        assert [body.read_bytes() for body in made.bodies] == [FORM]


async def test_a_body_over_the_limit_is_refused_as_everywhere(tmp_path: Path) -> None:
    async with opened(tmp_path) as made:
        head, said = await made.send(body=FORM + b" " * MIB)
        assert head.startswith(b"HTTP/1.1 413 ")
        assert said["error"]["code"] == "body_too_large"
        head, _ = await made.send(b"/v1/jobs/job_1/cancel")
        assert head.startswith(b"HTTP/1.1 413 ")
        assert made.bodies == []


async def test_what_is_refused_leaves_no_file(tmp_path: Path) -> None:
    async with opened(tmp_path, max_active=1) as made:
        await made.send()
        head, _ = await made.send()
        assert head.startswith(b"HTTP/1.1 429 ")
        head, _ = await made.send(body=FORM.replace(b'name="model"', b'name="mode"'))
        assert head.startswith(b"HTTP/1.1 400 ")
        assert len(made.bodies) == 1


async def test_a_full_disk_refuses_a_long_job_and_loses_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async with opened(tmp_path) as made:
        _, accepted = await made.send()
        with monkeypatch.context() as patched:
            patched.setattr(job_files.os, "fsync", full)
            head, said = await made.send()
        assert head.startswith(b"HTTP/1.1 503 ")
        assert b"\r\nretry-after: 5" in head.lower()
        assert said["error"]["code"] == "store_unavailable"
        assert [path.name for path in made.bodies] == [accepted["id"]]
        made.maker.go.set()
        await made.reach(accepted["id"], JobState.DONE)
    async with opened(tmp_path, min_free_bytes=1 << 60) as made:
        head, _ = await made.send()
        assert head.startswith(b"HTTP/1.1 503 ")
        assert made.bodies == []


async def test_a_short_result_that_meets_a_full_disk_waits_for_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[int] = []

    def full(fd: int) -> None:
        refused.append(fd)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async with opened(tmp_path) as made:
        _, accepted = await made.send()
        await until(lambda: made.maker.seen)
        with monkeypatch.context() as patched:
            patched.setattr(job_files.os, "fsync", full)
            made.maker.go.set()
            await until(lambda: len(refused) >= 3)
        await made.reach(accepted["id"], JobState.DONE)
        job = await made.jobs.find(accepted["id"], "t")
        assert job is not None
        path = made.jobs.result_path(job)
        assert path is not None
        assert path.read_bytes() == b"film"
        assert len(made.maker.seen) == 1


async def test_a_client_that_leaves_while_its_body_is_copied_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go, copied = threading.Event(), threading.Event(), threading.Event()
    stage: Callable[..., StagedInput] = JobFiles.stage_input

    def slow(files: JobFiles, file: Any) -> StagedInput:
        begun.set()
        assert go.wait(60)
        staged = stage(files, file)
        copied.set()
        return staged

    monkeypatch.setattr(JobFiles, "stage_input", slow)
    async with opened(tmp_path) as made:
        _, writer = await made.plane.connect()
        writer.write(request())
        await until(begun.is_set)
        writer.close()
        await until(lambda: made.plane.context.exchanges == 0)
        go.set()
        await until(copied.is_set)
        await until(lambda: not made.bodies)
        assert await made.jobs.counts() == {}


async def test_a_job_that_is_cancelled_before_it_is_sent_gives_its_space_back(tmp_path: Path) -> None:
    async with opened(tmp_path) as made:
        made.plane.dispatcher.hold = True
        _, job = await made.send()
        assert len(made.bodies) == 1
        await made.jobs.cancel(job["id"], "t")
        await until(lambda: not made.bodies)
        made.plane.dispatcher.nodes.clear()  # from here on jobs wait on disk, claimed by nobody
        made.plane.dispatcher.hold = False
        _, job = await made.send()
        await made.jobs.cancel(job["id"], "t")
        await until(lambda: not made.bodies)
        assert made.maker.seen == []


async def test_what_a_crash_left_is_swept_and_what_is_being_made_is_not(tmp_path: Path) -> None:
    bodies = tmp_path / "bodies"
    bodies.mkdir()
    for name in ("1f.staged", "1f.staged.2a.part", "new.staged"):
        (bodies / name).write_bytes(b"x")
    for name in ("1f.staged", "1f.staged.2a.part"):
        os.utime(bodies / name, (time.time() - 7200.0,) * 2)
    async with opened(tmp_path) as made:
        await until(lambda: [path.name for path in made.bodies] == ["new.staged"])
